"""`train`: the whole command, in one process and under mpirun; what it reports, saves, draws; how it fails."""

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from refimpl import __main__
from refimpl.commands import train as command
from refimpl.train import checkpoint
from refimpl.train.trainer import Trainer
from refimpl.world.mpirun import end_job, start_job

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--layers", "3", "--heads", "4", "--hidden", "8", "--seq", "8", "--global-batch", "6")
QUICK = (*TINY, "--steps", "3")
NETWORK = """
flops = 1e10
node_size = 2
intra = {alpha = 1e-6, bandwidth = 1e10}
inter = {alpha = 1e-5, bandwidth = 1e9}
"""
posix = pytest.mark.skipif(os.name == "nt", reason="there MPI is not installed with the requirements")
ALL = os.environ.get("REFIMPL_TEST_ALL") == "1"


def run_train(*options):
    """The exit status of `train` with these options."""
    return __main__.main(["train", *options])


def report(capsys, *options, status=0, quick=QUICK):
    """What `train --json` prints, as an object; it must be one line of standard JSON."""
    assert run_train(*quick, "--json", *options) == status
    shown = capsys.readouterr()
    assert shown.err == "" and shown.out.count("\n") == 1
    return json.loads(shown.out, parse_constant=lambda name: pytest.fail(f"{name} is no standard JSON"))


def in_a_job(ranks, *options, timeout=120):
    """(exit status, output, errors) of the same under mpirun."""
    job = start_job(ranks, ["-m", "refimpl", "train", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    text=True, cwd=ROOT)
    try:
        output, errors = job.communicate(timeout=timeout)
    finally:
        end_job(job)
    return job.returncode, output, errors


# -- it runs, and agrees ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options", [
    (), ("--dp", "2", "--pp", "2", "--cp", "2", "--tp", "2", "--zero", "1"), ("--dp", "8", "--zero", "3"),
    ("--model", "llama", "--tp", "2", "--sp", "--recompute", "full", "--cp", "2", "--cp-kind", "ulysses"),
    ("--model", "moe", "--dp", "4", "--tp", "2", "--ep", "4"),
    ("--model", "moe", "--tp", "2", "--sp", "--expert-tp", "1"),
    ("--pp", "2", "--cp", "2", "--tp", "2", "--sp", "--schedule", "zb_h1"), ("--dtype", "float16", "--tp", "2"),
    ("--pp", "2", "--schedule", "interleaved", "--chunks", "1", "--dtype", "bfloat16", "--grad-dtype", "float32")],
    ids=" ".join)
def test_check_says_that_the_ranks_and_one_device_agree(options, capsys):
    found = report(capsys, "--check", *options)
    assert found["passed"] is True and len(found["losses"]) == len(found["reference_losses"]) == 3
    for when, allowed in found["allowed"].items():
        assert max(found["max_difference"][when].values()) <= allowed


def test_the_report_has_messages_bytes_memory_and_time(capsys):
    found = report(capsys, "--dp", "2", "--tp", "2", "--zero", "2")
    assert found["ranks"] == 4 and found["first_step"] == 1 and found["saved"] == [] and found["resumed"] is None
    for kind in ("bytes", "messages"):
        assert found[kind].keys() == {"tp", "cp", "pp", "ep", "dp"}
        assert all(len(counts) == 4 for counts in found[kind].values())
        assert min(found[kind]["tp"]) > 0 and min(found[kind]["dp"]) > 0 and max(found[kind]["pp"]) == 0
    for rank in found["memory"]:
        assert rank["at_rest"]["optimizer"] == 2 * rank["at_rest"]["gradients"] == rank["at_rest"]["parameters"]
        assert rank["total_peak"] >= sum(rank["at_rest"].values())
    assert found["time"]["virtual"] is False and found["time"]["total"] > 0 and found["tokens_per_second"] > 0
    assert 3 < found["entropy"] < 4 and found["reference_losses"] is None and found["device"] == "cpu"


def test_the_page_names_the_layout_the_losses_what_was_sent_held_and_how_fast(capsys):
    assert run_train(*TINY, "--steps", "60", "--dp", "2", "--pp", "2", "--check") == 0
    shown = capsys.readouterr()
    assert "4 ranks: dp 2 pp 2, ZeRO 0" in shown.out and "The ranks and the single device agree." in shown.out
    rows = re.findall(r"^ +(\d+) +(\d+\.\d{14}) +(\d+\.\d{14})$", shown.out, re.MULTILINE)
    assert len(rows) <= command.ROWS + 1 and rows[0][0] == "1" and rows[-1][0] == "60"
    assert re.search(r"^  pp +[\d.,]+ +[\d,]+", shown.out, re.MULTILINE) and "tokens/s" in shown.out
    assert "nats a byte after step 60; knowing only how frequent each byte of the text is: 3.2" in shown.out
    assert "token/s" in shown.err and "loss" in shown.err                                   # the progress bar


def test_on_a_text_of_one_letter_there_is_nothing_left_to_learn(tmp_path, capsys):
    (tmp_path / "text").write_bytes(b"a" * 9)
    found = report(capsys, "--text", str(tmp_path / "text"), "--steps", "40", "--rate", "0.1")
    assert found["entropy"] == 0 and found["losses"][-1] < 0.1 < found["losses"][0]


def test_the_losses_are_drawn_and_so_is_the_last_step_on_a_virtual_clock(tmp_path, capsys):
    network, plot, timeline = tmp_path / "net.toml", tmp_path / "loss.png", tmp_path / "step.svg"
    network.write_text(NETWORK)
    found = report(capsys, "--dp", "2", "--pp", "2", "--network", str(network), "--timeline", str(timeline), "--plot",
                   str(plot), "--check")
    time_ = found["time"]
    assert time_["virtual"] is True and 0 < time_["step"] < time_["total"]
    assert time_["compute"] + time_["communication"] + time_["waiting"] == pytest.approx(time_["step"])
    assert plot.read_bytes().startswith(b"\x89PNG")
    root = ElementTree.parse(timeline).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    lanes = [text for text in texts if text.startswith("rank")]
    assert lanes == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert found["time"] == report(capsys, "--dp", "2", "--pp", "2", "--network", str(network))["time"]     # every time


# -- it fails when it should ------------------------------------------------------------------------------------------

def test_check_exits_1_when_the_trainer_is_broken(capsys, monkeypatch):
    monkeypatch.setattr(Trainer, "tie", lambda self: None)
    assert report(capsys, "--pp", "2", "--check", status=1)["passed"] is False
    assert run_train(*QUICK, "--pp", "2", "--check") == 1
    assert "The ranks and the single device DISAGREE." in capsys.readouterr().out
    assert report(capsys, "--pp", "2")["passed"] is True                                    # nobody compares


@pytest.mark.parametrize("options, says", [
    (("--dp", "2", "--crash-at", "2:1"), "error: rank 1 was told to die at step 2 (--crash-at); nothing was saved"),
    (("--pp", "2", "--rate", "1e200", "--detect-anomaly"), "error: step 2, rank 0, ")])
def test_a_crash_and_a_nan_are_one_line_and_status_1(options, says, capsys):
    assert run_train(*QUICK, "--json", *options) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith(says) and shown.err.count("\n") == 1


def test_a_full_disk_is_one_line_and_status_1_and_the_last_checkpoint_survives(tmp_path, capsys):
    folder = str(tmp_path / "run")
    assert report(capsys, "--save", folder, "--dp", "2")["saved"] == [1, 2, 3]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        status = run_train(*TINY, "--steps", "5", "--json", "--save", folder, "--resume", folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    shown = capsys.readouterr()
    assert status == 1 and shown.out == "" and shown.err.count("\n") == 1
    assert shown.err.startswith("error: step 4 could not be saved in ") and "is still there" in shown.err
    found = report(capsys, "--steps", "5", "--resume", folder, quick=TINY)
    assert found["first_step"] == 4 and found["resumed"].endswith("step-00000003")


BAD = [
    (("--steps", "0"), "steps=0: expected 1 or more"), (("--crash-at", "0:0"), "--crash-at 0:0: expected STEP:RANK"),
    (("--dp", "9" * 20), "expected at most 100000; nearest 100000"), (("--hidden", "9" * 20), "--hidden 9999"),
    (("--dp", "1000", "--tp", "1000", "--heads", "1000", "--hidden", "1000"), "1000000 ranks: expected at most 100000"),
    (("--resume", "x" * 5000), "x" * 5000),
    (("--crash-at", "1:1"), "--crash-at 1:1"), (("--tp", "3"), "tp=3"), (("--dp", "0"), "dp=0"),
    (("--global-batch", "0"), "global_batch=0"),
    (("--resume", "/nowhere"), "no checkpoint to go on from in '/nowhere'"),
    (("--resume", ".", "--check"), "--check compares a run from its beginning"), (("--text", "/nowhere"), "/nowhere"),
    (("--timeline", "x.svg"), "--timeline draws virtual time: give --network"), (("--plot", "x.txt"), "--plot x.txt"),
    (("--network", "/nowhere"), "cannot read network '/nowhere'"),
    (("--save", "/dev/null"), "cannot write checkpoints"), (("--cp-kind", "zigzack"), "nearest 'zigzag'"),
    (("--schedule", "1f2b"), "1f2b"), (("--ep", "2", "--dp", "2"), "dense model"),
]


@pytest.mark.parametrize("options, says", BAD, ids=lambda value: str(value)[:40])
def test_bad_input_is_one_line_and_status_2(options, says, capsys):
    assert run_train(*QUICK, *options) == 2
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if line.startswith("error:")]
    assert shown.out == "" and len(lines) == 1 and says in lines[0]


@pytest.mark.parametrize("text, says", [
    ("flops = ", "is no TOML"),
    ("bandwith = 3\n[intra]\nalpha = 1\nbandwidth = 2\n", "has bandwith; expected flops, inter"),
    ("flops = 1", "lacks [intra]"), ("[intra]\nalpha = 1\n", "[intra] is {'alpha': 1}; expected alpha"),
    ("[intra]\nalpha = 1\nbandwidth = 0\n", "above 0"), ("[intra]\nalpha = -1\nbandwidth = 1\n", "alpha")])
def test_a_network_that_makes_no_sense_is_refused(text, says, tmp_path, capsys):
    path = tmp_path / "net.toml"
    path.write_text(text)
    assert run_train(*QUICK, "--network", str(path)) == 2
    assert says in capsys.readouterr().err


def test_a_folder_with_another_run_is_not_written_into(tmp_path, capsys):
    folder = str(tmp_path)
    assert report(capsys, "--save", folder)["saved"] == [1, 2, 3]
    assert run_train(*QUICK, "--save", folder) == 2
    assert "has checkpoints of another run, up to step-00000003" in capsys.readouterr().err


# -- under mpirun -----------------------------------------------------------------------------------------------------

@posix
def test_under_mpirun_the_same_command_reports_the_same_once(tmp_path, capsys):
    options = (*QUICK, "--dp", "2", "--pp", "2", "--zero", "1", "--check", "--json")
    status, output, errors = in_a_job(4, *options)
    assert status == 0, errors
    mpi, local = json.loads(output), report(capsys, "--dp", "2", "--pp", "2", "--zero", "1", "--check")
    assert mpi["passed"] and mpi["bytes"] == local["bytes"] and mpi["memory"] == local["memory"]
    assert mpi["losses"] == pytest.approx(local["losses"], rel=1e-12)
    assert 0 < mpi["time"]["waiting_share"] < 1


@posix
def test_a_rank_that_is_killed_ends_the_job_at_once_and_fewer_ranks_go_on(tmp_path, capsys):
    folder, options = str(tmp_path / "run"), (*TINY, "--steps", "6")
    began = time.monotonic()
    status, output, errors = in_a_job(3, *options, "--dp", "3", "--save", folder, "--crash-at", "4:1", "--json")
    assert status not in (0, 2) and output == "" and time.monotonic() - began < 60
    assert f"rank 1 was told to die at step 4 (--crash-at); --resume {folder} goes on from the newest" in errors
    assert "signal 9" in errors.lower()                                                   # mpirun says who, and of what
    found = report(capsys, "--resume", folder, "--tp", "2", "--zero", "1", "--steps", "6", quick=TINY)
    whole = report(capsys, "--steps", "6", quick=TINY)
    assert found["first_step"] == 4
    assert found["losses"] == pytest.approx(whole["losses"][3:], rel=1e-10)


@posix
@pytest.mark.parametrize("options, says", [
    (("--rate", "1e200", "--detect-anomaly"), "error: step 2, rank "), (("--tp", "3"), "error: ")])
def test_under_mpirun_a_failure_is_a_line_too_and_nobody_hangs(options, says):
    status, output, errors = in_a_job(2, *QUICK, "--dp", "2", "--json", *options, timeout=60)
    assert status in (1, 2) and output == "" and says in errors and "Traceback" not in errors


@posix
@pytest.mark.parametrize("turn", range(30 if ALL else 2))
def test_kill_9_of_any_rank_at_any_moment_loses_no_step_that_was_reported_as_saved(turn, tmp_path):
    """Ranks say on stderr what was saved; then one of them is killed, some time later, wherever it is."""
    rng, folder = random.Random(turn), tmp_path / "run"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    job = start_job(2, [str(program), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                    cwd=ROOT)
    try:
        pids, reported = {}, 0
        for line in job.stdout:
            word, number, *rest = line.split()
            if word == "pid":
                pids[int(number)] = int(rest[0])
            reported = int(number) if word == "saved" else reported
            if len(pids) == 2 and reported >= 2 + turn % 5:
                break
        time.sleep(rng.random() * 0.05)
        os.kill(pids[rng.randrange(2)], signal.SIGKILL)
        for line in job.stdout:
            reported = int(line.split()[1]) if line.startswith("saved") else reported
        assert job.wait(timeout=30) != 0
    finally:
        end_job(job)
    _, manifest, _ = checkpoint.newest(folder)
    assert manifest["number"] >= reported >= 2
    done = subprocess.run([sys.executable, str(program), str(folder), str(manifest["number"] + 1)], cwd=ROOT,
                          timeout=60, capture_output=True, text=True)
    assert done.returncode == 0 and f"saved {manifest['number'] + 1}" in done.stdout, done.stderr


PROGRAM = """
import os, pathlib, sys
from refimpl import Layout, run
from refimpl.model import text
from refimpl.model.config import Config
from refimpl.train import checkpoint
from refimpl.train.setup import Setup
from refimpl.train.trainer import Trainer
from refimpl.world.launch import under_mpi

folder, last = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10**6
world = 2 if under_mpi() else 1
config = Config("gpt2", text.VOCABULARY, hidden=8, layers=2, heads=2, context=8)
setup = Setup(config, Layout(dp=world), 8, 4, zero=world - 1)

def program(comm):
    print("pid", comm.rank, os.getpid(), flush=True)
    trainer = Trainer(comm, setup, text.load())
    if checkpoint.checkpoints(folder):
        checkpoint.restore(trainer, folder)
    while trainer.number < last:
        trainer.step()
        checkpoint.save(trainer, folder)
        if comm.rank == 0:
            print("saved", trainer.number, flush=True)

run(program, world)
"""


# -- it learns --------------------------------------------------------------------------------------------------------

@pytest.mark.skipif(not ALL, reason="a minute; start.py test --all")
def test_the_default_run_falls_well_below_what_the_frequency_of_each_byte_tells(capsys):
    found = report(capsys, quick=())
    assert found["ranks"] == 1 and len(found["losses"]) == 150
    assert np.mean(found["losses"][-10:]) < found["entropy"] - 0.5
