"""gpu-check: without a GPU it says "not run"; a rehearsal is no pass; what is wrong on a device fails, and is named."""

import json
import math
import pkgutil
import sys
import types

import fake_cupy
import numpy as np
import pytest

import refimpl.model
import refimpl.parallel
from refimpl import __main__, device
from refimpl.gpu import check, collectives, operators, steps, transport
from refimpl.gpu.check import FAILED, NOT_RUN, PASSED, REHEARSED, Outcome
from refimpl.model import activations, text
from refimpl.train import verify

DEVICE = fake_cupy.empty(0)


@pytest.fixture(autouse=True)
def no_rehearsal(monkeypatch):
    monkeypatch.setenv(device.LIBRARY, "")                    # and whatever a test sets is gone afterwards
    monkeypatch.setenv("PYTHONPATH", "tests")                 # for processes that rehearse with the stand-in


# -- what is checked --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", operators.TOLERANCE)
def test_every_operator_gives_on_the_stand_in_what_it_gives_on_the_host(dtype):
    found = operators.compare(DEVICE, dtype)
    assert len(found) >= 25 and set(found.values()) == {0.0}


def test_no_backward_of_a_model_or_of_a_parallel_layer_is_left_out():
    """The operators, and a few layouts of the trainer, between them call all functions with backward in their name."""
    wanted, called = set(), set()
    for package in (refimpl.model, refimpl.parallel):
        for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            module = __import__(found.name, fromlist=["_"])
            wanted |= {thing.__code__ for name, thing in vars(module).items()
                       if isinstance(thing, types.FunctionType) and "backward" in name and name[0] != "_"
                       and thing.__module__ == found.name}

    def look(frame, event, _):
        if event == "call":
            called.add(frame.f_code)

    data, sample = text.load(None), verify.sample(verify.valid(4)[0])
    sys.setprofile(look)
    try:
        operators.compare(np.empty(0))
        for case in sample[:20]:
            verify.verify(case, data)
    finally:
        sys.setprofile(None)
    composed = {"parallel/heads.py: attention_backward", "parallel/expert.py: backward"}         # of halves
    name = lambda code: f"{code.co_filename.rpartition('refimpl/')[2]}: {code.co_name}"
    missing = {name(code) for code in wanted - called} - composed
    assert not missing and len(wanted) > 50


def off_by_a_little(x):
    y, saved = GELU(x)
    return y * (1 + 1e-9) if isinstance(x, fake_cupy.ndarray) else y, saved


GELU = activations.gelu
MISTAKES = {                                                # what an operator may do wrong, and what is said
    "np. on a device array": (lambda x: (np.tanh(x), x), "np.tanh called on a device array"),
    "a host array mixed in": (lambda x: (x * np.ones(x.shape), x), "a host array .* meets device arrays"),
    "a hidden synchronisation": (lambda x: (x * float(x.max()), x), "float.x. waits for the device"),
    "host random numbers": (lambda x: (x + np.random.default_rng(0).random(x.shape), x), "a host array"),
    "a loop over values": (lambda x: (x if x.any() else x, x), "bool.x. waits for the device"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_stand_in_finds_a_mistake_in_an_operator_and_the_host_does_not(mistake, monkeypatch):
    wrong, says = MISTAKES[mistake]
    monkeypatch.setattr(activations, "gelu", wrong)
    x = np.linspace(-1.0, 1.0, 6).reshape(2, 3)
    wrong(x)                                                 # NumPy has nothing against it
    with pytest.raises((TypeError, RuntimeError), match=says):
        operators.compare(DEVICE)


@pytest.mark.mpi(2)
def test_a_device_array_in_a_lower_case_call_of_mpi_is_refused_and_ours_are_not():
    from mpi4py import MPI

    comm, x = MPI.COMM_SELF, fake_cupy.asarray(np.arange(3.0))
    with pytest.raises(TypeError, match="pickling a device array copies it through the host"):
        comm.sendrecv(x, 0, source=0)
    found = transport.run(transport.on_rank, 2, [2**20], DEVICE, 1)[0]
    assert all(found["equal"].values()) and len(found["equal"]) == 6


def test_numbers_that_are_off_on_the_device_fail_and_are_named(monkeypatch):
    monkeypatch.setattr(activations, "gelu", off_by_a_little)
    status, words, _ = steps.all_operators(device.Device("rehearsal", DEVICE, ""))
    assert status == FAILED and "gelu, float64: 1.0e-09" in words and "relu" not in words


def test_an_addition_that_rounds_otherwise_has_other_bits_and_fails(monkeypatch):
    there = device.Device("rehearsal", DEVICE, "")
    monkeypatch.setattr(collectives, "ELEMENTS", 103)
    monkeypatch.setattr(collectives, "RANKS", (1, 3))
    monkeypatch.setattr(collectives, "compare", lambda like, compare=collectives.compare: compare(like, 103))
    assert steps.all_collectives(there)[0] == PASSED
    add = fake_cupy.__getattr__
    monkeypatch.setattr(fake_cupy, "add", lambda a, b, out=None: add("add")(a, b * (1 + 2e-16), out=out), raising=False)
    status, words, rows = steps.all_collectives(there)
    assert status == FAILED and "ring, float64, 3 ranks" in words
    assert all(row["equal"] for row in rows if row["ranks"] == 1 or row["collective"] == "broadcast")


def test_layouts_are_tried_while_there_is_time_and_the_number_is_told(monkeypatch):
    there = device.Device("rehearsal", DEVICE, "")
    status, words, figures = steps.all_layouts(there, limit=0.5, ranks=2)
    assert status == PASSED and 1 <= figures["tried"] < figures["sample"] and figures["on_device"]
    assert words.startswith(f"{figures['tried']} of a sample of {figures['sample']} layouts on 2 ranks")
    off = {"passed": False, "first": {"gradients": 1.0}, "worst": "head.w"}
    monkeypatch.setattr(verify, "verify", lambda *_: off)
    assert steps.all_layouts(there, ranks=1)[0] == FAILED


# -- what is reported -------------------------------------------------------------------------------------------------

def gpu_check(*options):
    """The exit status of the command."""
    return __main__.main(["gpu-check", *options])


def test_without_a_gpu_nothing_has_run_nothing_has_passed_and_the_status_is_3(capsys, tmp_path):
    if check.no_gpu() is None:
        pytest.skip("there is a GPU here")
    file = tmp_path / "report.json"
    assert gpu_check("--json", str(file)) == 3
    shown, report = capsys.readouterr().out, json.loads(file.read_text())
    assert "passed " not in shown.replace("0 passed", "") and "10 of 10 steps did not run, 0 passed." in shown
    assert report["verdict"] == NOT_RUN and {step["status"] for step in report["steps"]} == {NOT_RUN}
    assert all("CuPy" in step["words"] for step in report["steps"])


def test_a_rehearsal_runs_the_same_steps_and_is_no_pass(capsys, tmp_path, monkeypatch):
    chosen = [step for step in check.STEPS if step.name in (
        "device", "operators", "transport, staged, 2 ranks", "transport, CUDA-aware, 2 ranks", "trainer, 2 ranks")]
    monkeypatch.setattr(check, "STEPS", chosen)
    monkeypatch.setattr(check.check, "__defaults__", (check.check.__defaults__[0], chosen))
    file = tmp_path / "report.json"
    assert gpu_check("--rehearse", "fake_cupy", "--json", str(file)) == 3
    shown, report = capsys.readouterr().out, json.loads(file.read_text())
    assert shown.startswith("A rehearsal with fake_cupy: it shows that the command works, and nothing about a GPU.")
    assert report["verdict"] == REHEARSED and {step["status"] for step in report["steps"]} == {REHEARSED}, shown
    assert report["rehearsed_with"] == "fake_cupy" and "none has run on a GPU" in shown
    rows = report["steps"][2]["figures"]["rows"]
    assert rows and all(row["bus_bytes_per_s"] > 0 and row["share_of_limit"] > 0 for row in rows)


@pytest.mark.parametrize(("statuses", "expected", "left"), [
    ([PASSED, PASSED], PASSED, 0), ([PASSED, NOT_RUN], NOT_RUN, 3), ([FAILED, NOT_RUN, PASSED], FAILED, 1),
    ([REHEARSED, REHEARSED], REHEARSED, 3), ([REHEARSED, FAILED], FAILED, 1)])
def test_only_if_all_passed_on_a_gpu_the_status_is_0(statuses, expected, left, monkeypatch, capsys):
    outcomes = [Outcome(f"step {k}", status, "words") for k, status in enumerate(statuses)]
    monkeypatch.setattr(check, "check", lambda report: [report(one) for one in outcomes] and outcomes)
    assert check.verdict(outcomes) == expected and gpu_check() == left
    assert capsys.readouterr().out.splitlines()[-1] != ""


def test_a_step_that_crashes_or_hangs_or_prints_nothing_failed_and_its_words_are_told():
    python = lambda code, seconds=20: check.answer([sys.executable, "-c", code], seconds)
    assert python("import os; os.kill(os.getpid(), 11)")[:2] == (FAILED, "it ended with status -11 and said nothing")
    assert python("raise MemoryError('no room')")[:2] == (FAILED, "MemoryError: no room")
    assert python("import time; time.sleep(60)", 0.5)[:2] == (FAILED, "no answer within 0.5 s")
    assert python("print('[\"passed\", \"fine\", null]')") == (PASSED, "fine", None)
    step = check.Step("job", 20, 2)
    found, wrong = check.job(step, ["-c", "raise ValueError('a rank fell')"])
    assert found is None and "a rank fell" in wrong
    found, wrong = check.job(step._replace(seconds=3), ["-c", "import time; time.sleep(60)"])
    assert found is None and wrong


def test_a_step_that_another_mpi_would_need_did_not_run(monkeypatch):
    aware = next(step for step in check.STEPS if step.aware)
    monkeypatch.setattr(check, "mpi_is_aware", lambda: False)
    assert check.transport(aware)[0] == NOT_RUN


def test_a_trainer_that_is_not_the_run_of_one_device_fails(monkeypatch):
    report = {"max_difference": {"first": {"gradients": 0.5}}, "passed": False}
    monkeypatch.setattr(check, "job", lambda *_: (report, ""))
    status, words, _ = check.trainer(check.STEPS[-1])
    assert status == FAILED and "--dp 2 --tp 2" in words and "gradients off by 5.0e-01" in words


def test_all_of_it_takes_less_than_6_minutes_even_if_every_step_hangs():
    patience = [step.seconds + (2 if step.ranks else 0) * len(check.LAYOUTS) for step in check.STEPS]
    assert sum(patience) + 10 < 6 * 60 and steps.LAYOUT_SECONDS < 60 - 10
    assert math.isfinite(sum(patience))


@pytest.mark.parametrize(("options", "says"), [
    (["--step", "everything"], "--step everything: expected one of device, operators, collectives, layouts"),
    (["--rehearse", "cupi"], "REFIMPL_GPU_LIBRARY='cupi'"), (["--json", "no/such/folder/a.json"], "no such folder")])
def test_what_it_cannot_do_is_one_line_and_status_2(options, says, capsys):
    assert gpu_check(*options) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and says in shown.err and shown.err.count("\n") == 1


def test_in_a_job_it_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("refimpl.world.launch.under_mpi", lambda: True)
    assert gpu_check() == 2 and "run it without mpirun" in capsys.readouterr().err
