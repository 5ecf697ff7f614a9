"""`launch`, on real jobs: the status comes back, and nothing is left running."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from refimpl.commands import launch

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(os.name == "nt", reason="there MPI is not installed with the requirements")


def parse(*words):
    parser = argparse.ArgumentParser()
    launch.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("words, complaint", [
    (["-n", "0", "demo"], "0 ranks cannot be started: the number of ranks is 1 or more"),
    (["-n", "-3", "demo"], "-3 ranks cannot be started"),
    (["-n", "2"], "nothing to run"),
    (["-n", "2", "--timeout", "0", "demo"], "--timeout 0: a number of seconds above 0"),
    (["-n", "2", "--timeout", "nan", "demo"], "--timeout nan"),
    (["-n", "2", "--timeout", "inf", "demo"], "--timeout inf"),
    (["-n", "2", "launch", "-n", "2", "demo", "mlp"], "launch in launch: a rank starts no ranks"),
    (["-n", "3", "train", "--dp", "2"], "-n 3, but `train --dp 2` runs on 2 ranks: -n 2, or sizes that make 3"),
    (["-n", "2", "train"], "-n 2, but `train` runs on 1 rank: -n 1, or"),
    (["-n", "2", "train", "--dp", "2", "--heads", "3"], "heads=3 does not divide hidden=64"),
    (["-n", "2", "demo", "mlp", "--tp", "0"], "--tp 0: the model is cut over 1 rank or more"),
    (["-n", "2", "demo", "mlp"], "`demo mlp` runs on 4 ranks: -n 4"),
    (["-n", "2", "verify", "--ranks", "0"], "--ranks 0: expected 1 to 32"),
    (["-n", "2", "verify"], "`verify` runs on 8 ranks: -n 8"),
    (["-n", "2", "bench", "overlap", "--ranks", "3"], "`bench overlap --ranks 3` runs on 3 ranks: -n 3"),
    (["-n", "2", "bench", "local"], "bench local starts processes of its own: run it without mpirun"),
    (["-n", "2", "doctor"], "doctor starts MPI jobs itself: run it without mpirun"),
    (["-n", "2", "gpu-check"], "gpu-check starts MPI jobs itself: run it without mpirun"),
])
def test_bad_arguments_start_nothing(monkeypatch, words, complaint):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(ValueError, match=complaint):
        launch.main(parse(*words))


@pytest.mark.parametrize("words, says", [
    (["train", "--dpp", "2"], "error: unrecognized arguments: --dpp 2"), (["trian"], "error: there is no verb 'trian'"),
    (["train", "--dp", "two"], "error: argument --dp: invalid int value: 'two'"), (["demo"], "error: the following"),
])
def test_a_command_that_cannot_be_parsed_is_one_line_and_starts_nothing(monkeypatch, capsys, words, says):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(SystemExit) as left:
        launch.main(parse("-n", "2", *words))
    shown = capsys.readouterr()
    assert left.value.code == 2 and shown.out == "" and shown.err.startswith(says) and shown.err.count("\n") == 1


def test_on_the_command_line_they_are_one_line_and_status_2():
    job = subprocess.run([sys.executable, "-m", "refimpl", "launch", "-n", "0", "demo"], cwd=ROOT, capture_output=True,
                         text=True, timeout=60)
    assert job.returncode == 2
    assert job.stderr == "error: 0 ranks cannot be started: the number of ranks is 1 or more\n"


@posix
def test_show_prints_a_line_for_the_shell_and_starts_nothing(capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("SET_ALREADY", "yes")
    assert launch.main(parse("-n", "4", "--show", "demo", "mlp", "--text", "my file")) == 0
    shown = capsys.readouterr().out
    assert "OPENBLAS_NUM_THREADS=1 \\\n" in shown and "SET_ALREADY" not in shown
    assert shown.endswith(f"-n 4 {sys.executable} -m mpi4py -m refimpl demo mlp --text 'my file'\n")


DRIVER = """
import sys
from types import SimpleNamespace
from refimpl.commands import launch
from refimpl.world.mpirun import start_job
launch.start_job = lambda ranks, arguments, timeout: start_job(ranks, ["-c", sys.argv[1]], timeout)
sys.exit(launch.main(SimpleNamespace(ranks=3, timeout=None, show=False, verb=["facts"])))
"""


def launch_code(code):
    """Start `launch` in a process of its own, with ranks that run `code` in place of a command."""
    return subprocess.Popen([sys.executable, "-c", DRIVER, "from mpi4py import MPI; import os, sys, time\n" + code],
                            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@posix
@pytest.mark.parametrize("status", [0, 7])
def test_the_status_of_the_ranks_is_the_status(status):
    job = launch_code(f"print(MPI.COMM_WORLD.size); sys.exit({status})")
    output, errors = job.communicate(timeout=60)
    assert job.returncode == status, errors
    assert output.split() == ["3"] * len(output.split()) and output


@posix
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_ranks_and_leaves_no_traceback(number, status):
    job = launch_code("print(os.getpid(), flush=True)\nwhile True: sum(range(1000))")
    pids = [job.stdout.readline().strip() for _ in range(3)]
    job.send_signal(number)                         # to `launch` alone: it has to pass it on
    errors = job.communicate(timeout=30)[1]
    assert job.returncode == status and "Traceback" not in errors
    left = subprocess.run(["ps", "-o", "stat=", "-p", ",".join(pids)], capture_output=True, text=True).stdout.split()
    assert all(state.startswith("Z") for state in left)             # gone, or nearly: waiting to be taken note of


@posix
def test_the_command_runs_on_every_rank():
    words = ["demo", "mlp", "--tp", "2", "--steps", "1", "--batch", "4", "--json"]
    job = subprocess.run([sys.executable, "-m", "refimpl", "launch", "-n", "2", *words], cwd=ROOT, capture_output=True,
                         text=True, timeout=60)
    assert job.returncode == 0, job.stderr
    found = json.loads(job.stdout)
    assert found["ranks"] == 2 and found["passed"] is True
