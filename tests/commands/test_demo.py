"""`demo mlp`: the whole command, in one process and under mpirun; what it prints, checks, draws, and refuses."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refimpl import __main__
from refimpl.commands import demo
from refimpl.cost import traffic
from refimpl.parallel import tensor
from refimpl.train import mlp
from refimpl.world.mpirun import start_job

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("--steps", "3", "--batch", "16", "--hidden", "6")
posix = pytest.mark.skipif(os.name == "nt", reason="there MPI is not installed with the requirements")


def run_demo(*options):
    """The exit status of `demo mlp` with these options."""
    return __main__.main(["demo", "mlp", *options])


def report(capsys, *options):
    """What `demo mlp --json` prints, as an object; it must be one line of standard JSON."""
    assert run_demo(*QUICK, "--json", *options) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and shown.out.count("\n") == 1
    return json.loads(shown.out, parse_constant=lambda name: pytest.fail(f"{name} is no standard JSON"))


# -- it runs, and agrees ----------------------------------------------------------------------------------------------

def test_the_demo_of_the_readme_learns_agrees_and_sends_what_the_formula_says(capsys):
    """python -m refimpl demo mlp --tp 4 --steps 20 --check"""
    assert run_demo("--tp", "4", "--steps", "20", "--check") == 0
    shown = capsys.readouterr().out
    assert "The ranks and the single device agree." in shown
    rows = re.findall(r"^ +(\d+) +(\d+\.\d{14}) +(\d+\.\d{14}) +\S+$", shown, re.MULTILINE)
    assert [int(step) for step, _, _ in rows] == list(range(1, 21))
    assert float(rows[-1][1]) < float(rows[0][1]) - 1                                     # the loss falls
    sent = re.findall(r"rank (\d) +(forward|backward) +([\d,]+) == +([\d,]+)$", shown, re.MULTILINE)
    assert len(sent) == 8 and all(counted == formula for _, _, counted, formula in sent)


@posix
def test_under_mpirun_the_same_command_prints_the_same_once():
    words = ["-m", "refimpl", "demo", "mlp", "--tp", "4", "--steps", "20", "--check", "--json"]
    job = start_job(4, words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    output, errors = job.communicate(timeout=120)
    assert job.returncode == 0, errors
    alone = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=60)
    mpi, local = json.loads(output), json.loads(alone.stdout)                              # one object: one rank speaks
    assert mpi["passed"] and mpi["bytes"] == local["bytes"]
    assert mpi["losses"] == pytest.approx(local["losses"], rel=1e-12)


def test_json_has_losses_differences_and_bytes_that_equal_the_formula(capsys):
    found = report(capsys, "--tp", "3")
    assert found["ranks"] == 3 and found["passed"] is True and found["copies_alike"] is True
    assert found["device"] == "cpu"
    assert len(found["losses"]) == len(found["reference_losses"]) == 3
    assert found["allowed"] == {"first": 1e-12, "last": 1e-10}
    for when, allowed in found["allowed"].items():
        assert found["max_difference"][when].keys() == {"loss", "gradients", "weights"}
        assert max(found["max_difference"][when].values()) <= allowed
    for row in found["bytes"]:
        n = {"forward": 16 * 256, "backward": 16 * 8 * 256}[row["phase"]]
        assert row["counted"] == row["formula"] == 3 * 8 * traffic.ring_all_reduce(n, 3, row["rank"])
    rows = [(row["rank"], row["phase"]) for row in found["bytes"]]
    assert rows == [(r, p) for r in range(3) for p in ("forward", "backward")]


@pytest.mark.parametrize("options", [("--tp", "1"), ("--tp", "9"), ("--seed", "5"), ("--steps", "1")])
def test_it_passes_with_one_rank_more_ranks_than_hidden_features_another_seed_one_step(options, capsys):
    assert report(capsys, *options)["passed"]


def test_another_seed_is_another_run_and_the_same_one_is_not(capsys):
    first, again, other = (report(capsys, "--tp", "2", "--seed", seed) for seed in ("0", "0", "1"))
    assert first == again and first["losses"] != other["losses"]


def test_it_trains_on_a_file_too_even_one_in_which_there_is_nothing_left_to_learn(tmp_path, capsys):
    (tmp_path / "text").write_bytes(b"a" * 9)                                        # 8 bytes, and the one that follows
    assert run_demo("--text", str(tmp_path / "text"), "--tp", "2", "--steps", "400", "--batch", "4", "--hidden", "3",
                    "--check") == 0
    shown = capsys.readouterr().out
    assert "9 bytes of text" in shown and "inf" not in shown and "nan" not in shown
    rows = re.findall(r"^ +\d+ +\d+\.\d{14}", shown, re.MULTILINE)
    assert 2 < len(rows) <= demo.ROWS + 1                               # a table of 400 rows helps nobody


def test_a_loss_of_zero_has_a_relative_difference_too(capsys):
    found = report(capsys, "--tp", "1")
    found |= {"losses": [0.0, 0.0, 1.0], "reference_losses": [0.0, 1.0, 0.0]}
    page = demo.describe(found, mlp.Setup(steps=3), text_bytes=9)
    assert re.findall(r"^ +[123] .* (\S+)$", page, re.MULTILINE) == ["0.0e+00", "1.0e+00", "inf"]


def test_of_many_ranks_only_some_are_shown_and_all_whose_bytes_are_wrong(capsys):
    found = report(capsys, "--tp", "30")
    wrong = found["bytes"][-1]
    wrong["counted"] += 8
    page = demo.describe(found, mlp.Setup(steps=3), text_bytes=9)
    assert page.count(" == ") == 2 * demo.ROWS and page.count(" != ") == 1
    assert f"rank {wrong['rank']} " in page and "and so on for 30 ranks" in page


def test_progress_goes_to_stderr_and_json_is_quiet(capsys):
    run_demo(*QUICK, "--tp", "2")
    shown = capsys.readouterr()
    assert "one device" in shown.err and "2 ranks" in shown.err and "3/3" in shown.err
    assert "3/3" not in shown.out


# -- it fails when it should ------------------------------------------------------------------------------------------

def twice_the_bias(x, w, b, comm):
    y, saved = ROW_PARALLEL(x, w, b, comm)
    return y + b + 1e-9, saved


def gradient_not_summed(dy, saved):
    saved, comm = saved
    return tensor.layers.linear_backward_input(dy, saved)


def drifting(dy, saved):
    dx, gradients = MLP_BACKWARD(dy, saved)
    return dx, gradients | {"b2": gradients["b2"] + 1e-18 * saved[0][1].rank}


def diverging(dy, saved):
    dx, gradients = MLP_BACKWARD(dy, saved)
    return dx, gradients | {"w1": gradients["w1"] * np.nan}


def talkative(x, parameters, comm):
    comm.sendrecv(x[:1, 0], (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
    return MLP_FORWARD(x, parameters, comm)


ROW_PARALLEL, MLP_FORWARD, MLP_BACKWARD = tensor.row_parallel, tensor.mlp_forward, tensor.mlp_backward
BROKEN = {                                               # how the operator is broken: (name, function, what is printed)
    "wrong values": ("row_parallel", twice_the_bias, "DISAGREE"),
    "one all-reduce too few": ("column_parallel_backward_input", gradient_not_summed, r" 0 != +\d"),
    "copies drift apart": ("mlp_backward", drifting, "copies of the bias b2 are not the same bits"),
    "not a number": ("mlp_backward", diverging, " inf "),
    "one message too many": ("mlp_forward", talkative, r"\d != +\d"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_check_exits_1_when_the_operator_is_broken_and_without_it_says_so(how, monkeypatch, capsys):
    name, function, says = BROKEN[how]
    monkeypatch.setattr(tensor, name, function)
    assert run_demo(*QUICK, "--tp", "2", "--check") == 1
    shown = capsys.readouterr().out
    assert re.search(says, shown) and "The ranks and the single device DISAGREE." in shown
    assert report(capsys, "--tp", "2")["passed"] is False


# -- the plot ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("json_too", [False, True])
def test_the_plot_is_written_and_named(tmp_path, capsys, json_too):
    path = tmp_path / "loss.png"
    assert run_demo(*QUICK, "--tp", "2", "--plot", str(path), *["--json"] * json_too) == 0
    assert path.read_bytes().startswith(b"\x89PNG") and [p.name for p in tmp_path.iterdir()] == ["loss.png"]
    assert (f"plot: {path}" in capsys.readouterr().out) is not json_too


# -- bad input --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options, says", [
    (["--tp", "0"], "--tp 0: the model is cut over 1 rank or more"),
    (["--tp", "-4"], "--tp -4: "),
    (["--steps", "0"], "steps=0: must be 1 or more"),
    (["--batch", "0"], "batch=0: must be 1 or more"),
    (["--hidden", "-1"], "hidden=-1: must be 1 or more"),
    (["--seed", "-1"], "seed=-1: must be 0 or more"),
    (["--text", "missing.txt"], "cannot read text 'missing.txt': No such file"),
    (["--text", "."], "cannot read text '.': Is a directory"),
    (["--text", "empty.txt"], "text 'empty.txt' is empty"),
    (["--text", "short.txt"], "context=8 and the byte after it do not fit 8 bytes of text"),
    (["--plot", "loss.gif"], "--plot loss.gif: the name must end in"),
    (["--plot", "nowhere/loss.png"], "--plot nowhere/loss.png: there is no folder nowhere"),
    (["--plot", ""], "--plot .: the name must end in"),
])
def test_bad_input_is_one_line_and_status_2_before_any_work(options, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("8 bytes.")
    monkeypatch.setattr(mlp, "train_alone", None)
    monkeypatch.setattr(mlp, "train_on_rank", None)
    assert run_demo(*options) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith(f"error: {says}") and shown.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.txt", "short.txt"]


@posix
def test_another_number_of_ranks_than_mpirun_started_is_one_line_and_status_2():
    job = start_job(2, ["-m", "refimpl", "demo", "mlp", "--tp", "3", "--json"], stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, text=True, cwd=ROOT)
    output, errors = job.communicate(timeout=60)
    assert job.returncode == 2 and output == ""
    assert errors.count("size=3, but mpirun started 2 ranks: run 2, or mpirun -n 3") == 1
    assert "Traceback" not in errors


def test_ctrl_c_ends_it_with_status_130_and_no_traceback(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(mlp, "softmax_cross_entropy", interrupted)                  # on a rank, in the middle of a step
    assert run_demo(*QUICK, "--tp", "2") == 130
    assert capsys.readouterr().err.endswith("interrupted\n")
