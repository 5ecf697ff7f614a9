"""gpu-check: without a GPU it says "not run"; a rehearsal is no pass; what is wrong on a device fails, and is named."""

import json
import pkgutil
import subprocess
import sys
import time
import types

import fake_cupy
import numpy as np
import pytest

import refimpl.collectives
import refimpl.model
import refimpl.parallel
from refimpl import __main__, device, run
from refimpl.collectives.calls import ALL_GATHER, ALL_REDUCE
from refimpl.collectives.reduction import OPS
from refimpl.gpu import check, collectives, operators, steps, transport
from refimpl.gpu.check import FAILED, NOT_RUN, PASSED, REHEARSED, Outcome
from refimpl.measure.ledger import Ledger
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


CONTEXT = "ring_attention", "gather_attention", "ulysses", "context_work"


def test_no_backward_of_a_model_or_of_a_parallel_layer_is_left_out():
    """The operators, and the layouts that come first, call every function with backward in its name, or of CONTEXT."""
    wanted, called = set(), set()
    for package in (refimpl.model, refimpl.parallel):
        for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            module = __import__(found.name, fromlist=["_"])
            wanted |= {thing.__code__ for name, thing in vars(module).items()
                       if isinstance(thing, types.FunctionType) and name[0] != "_" and thing.__module__ == found.name
                       and ("backward" in name or found.name.rpartition(".")[2] in CONTEXT)}

    def look(frame, event, _):
        if event == "call":
            called.add(frame.f_code)

    data, (cases, first) = text.load(None), steps.in_order(steps.LAYOUT_RANKS)
    sys.setprofile(look)
    try:
        operators.compare(np.empty(0))
        for case in cases[:first]:
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
    assert status == FAILED and "reduce-scatter, sum, float64, 3 ranks" in words
    wrong = {row["collective"].partition(", in the")[0] for row in rows if not row["equal"]}
    assert wrong == {"reduce-scatter, sum"} | {f"all-reduce, {name}, sum" for name in collectives.ALGORITHMS}
    assert all(row["equal"] for row in rows if row["ranks"] == 1)


def test_every_collective_runs_at_once_and_in_the_background_with_every_op_and_algorithm():
    called, given = set(), set()

    def program(comm):
        for _, now, start, arguments in collectives.calls(np.arange(5.0), comm):
            called.update({now.__name__, start.__name__})
            given.add((now.__name__, arguments.get("op"), arguments.get("algorithm")))

    run(program, 2)
    assert called == set(refimpl.collectives.__all__) - {"bounds", "chunk_sizes"}
    assert given >= {("all_reduce", op, name) for op in OPS for name in ALL_REDUCE if name != "native"}
    assert given >= {("all_gather", None, name) for name in ALL_GATHER} | {("reduce_scatter", op, None) for op in OPS}


@pytest.mark.parametrize(("P", "inside", "across"), [(2, 0, 2), (3, 0, 4), (4, 2, 2), (8, 2, 6)])
def test_the_hierarchical_all_reduce_crosses_nodes(P, inside, across):
    """Messages of a rank: reduce-scatter and all-gather among N of a node, a ring among M nodes: 2 (N-1), 2 (M-1)."""
    ledger, calls = Ledger(), 2 * len(OPS)                               # at once and in the background
    run(collectives.all_of_them, P, "float64", 101, np.empty(0), ledger=ledger)
    groups = "dp.node", "dp.nodes"
    assert [ledger.messages(0, group=name) for name in groups] == [calls * inside, calls * across]


def test_what_a_rank_holds_is_compared_bit_by_bit_where_it_is_a_list_or_nothing_too():
    same, x = collectives.same, np.arange(3.0)
    assert same(x, x.copy()) and same([x, x], [x, x]) and same(None, None) and same(x * np.nan, x * np.nan)
    assert not same(x, x + 1e-15) and not same([x], [x, x]) and not same(None, x) and not same(x, None)
    assert not same(np.array([0.0]), np.array([-0.0])) and not same([x, x], [x, -x])


def test_layouts_are_tried_while_there_is_time_the_first_ones_at_least_and_the_number_is_told(monkeypatch):
    there = device.Device("rehearsal", DEVICE, "")
    status, words, figures = steps.all_layouts(there, ranks=1)
    assert status == PASSED and figures["tried"] == figures["sample"] and figures["on_device"]
    now, found = [0.0], {"passed": True, "first": {"gradients": 2e-16}, "worst": "head.w"}

    def a_second(*_):
        now[0] += 1.0
        return found

    monkeypatch.setattr(verify, "verify", a_second)
    monkeypatch.setattr(steps, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    first = steps.in_order(2)[1]
    status, words, figures = steps.all_layouts(there, limit=first + 2, ranks=2)
    assert status == PASSED and figures["tried"] == first + 2 < figures["sample"]
    assert words == f"{first + 2} of a sample of {figures['sample']} layouts on 2 ranks, gradients to 2.0e-16"
    status, words, figures = steps.all_layouts(there, limit=first - 1, ranks=2)
    assert (status, figures["tried"]) == (NOT_RUN, first - 1)
    assert words.startswith(f"time for {first - 1} of the {first} layouts")
    found["passed"] = False
    assert steps.all_layouts(there, ranks=1)[0] == FAILED


def test_the_layouts_that_come_first_have_every_value_of_every_axis_and_none_comes_twice():
    cases, first = steps.in_order(4)
    sample = verify.sample(verify.valid(4)[0])
    assert sorted(map(str, cases)) == sorted(map(str, sample)) and len(set(cases)) == len(cases)
    for k, axis in enumerate(verify.AXES):
        assert {case.values[k] for case in cases[:first]} == {case.values[k] for case in sample}, axis
    assert first < 20 < len(cases)


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
    monkeypatch.setattr(check, "mpi_is_aware", lambda: (NOT_RUN, "it is not"))
    assert check.transport(aware) == (NOT_RUN, "it is not", None)


@pytest.mark.parametrize(("chosen", "status", "says"), [("1", PASSED, "REFIMPL_CUDA_AWARE"), ("2", FAILED, "must be 0"),
                                                       ("0", NOT_RUN, "not CUDA-aware (REFIMPL_CUDA_AWARE); where")])
def test_mpi_is_asked_once_whether_it_is_aware(chosen, status, says, monkeypatch):
    check.mpi_is_aware.cache_clear()
    monkeypatch.setenv("REFIMPL_CUDA_AWARE", chosen)
    asked, ask = [], check.ask
    monkeypatch.setattr(check, "ask", lambda question: asked.append(question) or ask(question))
    found = [check.mpi_is_aware(), check.mpi_is_aware()]
    check.mpi_is_aware.cache_clear()
    assert found[0] == found[1] and found[0][0] == status and says in found[0][1] and asked == ["aware"]


def test_a_trainer_that_is_not_the_run_of_one_device_fails(monkeypatch):
    report = {"max_difference": {"first": {"gradients": 0.5}}, "passed": False}
    monkeypatch.setattr(check, "job", lambda *_: (report, ""))
    status, words, _ = check.trainer(check.STEPS[-1])
    assert status == FAILED and "--dp 2 --tp 2" in words and "gradients off by 5.0e-01" in words


def test_all_of_it_takes_less_than_6_minutes():
    layouts = next(step for step in check.STEPS if step.name == "layouts")
    assert check.most_seconds() + 10 < 6 * 60 and steps.LAYOUT_SECONDS + 10 < layouts.seconds


def test_if_everything_hangs_and_nothing_ends_that_is_asked_to_every_step_failed_in_no_more_than_that(
        monkeypatch, tmp_path):
    deaf = tmp_path / "deaf"
    deaf.write_text("#!/bin/sh\ntrap '' TERM\nfor once in 1 2 3; do sleep 20; done\n")
    deaf.chmod(0o755)
    processes = []

    def start(*_, **options):
        processes.append(subprocess.Popen([deaf], start_new_session=True, **options))
        return processes[-1]

    check.mpi_is_aware.cache_clear()
    monkeypatch.setattr(check, "start_job", start)
    monkeypatch.setattr(check.sys, "executable", str(deaf))
    monkeypatch.setattr(check, "QUESTIONS", dict.fromkeys(check.QUESTIONS, 0.2))
    monkeypatch.setattr(check, "STEPS", [step._replace(seconds=0.2) for step in check.STEPS])
    for name in ("GRACE", "PATIENCE"):
        monkeypatch.setattr(check, name, 0.2)
    began = time.perf_counter()
    outcomes = check.check()
    seconds = time.perf_counter() - began
    check.mpi_is_aware.cache_clear()
    assert {outcome.status for outcome in outcomes} == {FAILED} and len(outcomes) == len(check.STEPS)
    assert all("no answer within" in outcome.words for outcome in outcomes)
    assert len(processes) == 4 and all(process.poll() is not None for process in processes)
    spared = 2 * 0.6 + 2 * 0.5           # no job of the CUDA-aware steps, nor of the second layout of the trainer's
    assert -0.2 < seconds - (check.most_seconds() - spared) < 3


@pytest.mark.parametrize(("options", "says"), [
    (["--step", "everything"], "--step everything: expected one of device, operators, collectives, layouts"),
    (["--rehearse", "cupi"], "REFIMPL_GPU_LIBRARY='cupi'"),
    (["--rehearse", "json"], "REFIMPL_GPU_LIBRARY='json': module 'json' has no attribute 'empty'; expected numpy, or"),
    (["--json", "no/such/folder/a.json"], "--json no/such/folder/a.json: there is no folder no/such/folder"),
    (["--json", "tests"], "--json tests: the name must end in .json; tests.json works")])
def test_what_it_cannot_do_is_one_line_and_status_2(options, says, capsys):
    assert gpu_check(*options) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and says in shown.err and shown.err.count("\n") == 1


def test_a_folder_for_the_report_is_refused_before_any_step_and_a_report_comes_whole(monkeypatch, capsys, tmp_path):
    (tmp_path / "folder.json").mkdir()
    monkeypatch.setattr(check, "check", lambda report: pytest.fail("a step has run"))
    assert gpu_check("--json", str(tmp_path / "folder.json")) == 2
    assert "cannot be written there" in capsys.readouterr().err
    file = tmp_path / "report.json"
    file.write_text("the last one")
    monkeypatch.setattr(check, "check", lambda report: [Outcome("step", PASSED, "words", object())])
    with pytest.raises(TypeError, match="not JSON"):
        gpu_check("--json", str(file))
    assert file.read_text() == "the last one" and len(list(tmp_path.iterdir())) == 2


def test_in_a_job_it_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("refimpl.world.launch.under_mpi", lambda: True)
    assert gpu_check() == 2 and "run it without mpirun" in capsys.readouterr().err
