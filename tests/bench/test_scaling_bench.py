"""bench scaling, pipeline and all: what they compare, what they report, what they draw. Sizes are tiny here."""

import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import fake_cupy
import pytest
from numpy.testing import assert_equal

from refimpl import Layout, __main__, run
from refimpl.bench import pipeline, report, scaling
from refimpl.bench.report import Found
from refimpl.commands import bench as command
from refimpl.commands import launch
from refimpl.model import text
from refimpl.pipeline import build, simulate

ROOT = Path(__file__).resolve().parents[2]
AXES = ["dp", "tp", "cp", "pp"]


@pytest.mark.mpi(2)
def test_every_axis_is_compared_with_runs_of_one_rank():
    rows = run(scaling.bench, 2, [16], 1, None, 8)[0]["rows"]
    assert [row["axis"] for row in rows] == AXES and {row["hidden"] for row in rows} == {16}
    for row in rows:
        assert row["share_of_ceiling"] == pytest.approx(row["ceiling_s"] / row["median_s"]) and row["median_s"] > 0


def test_the_ceiling_is_as_much_work_for_each_rank_with_nothing_sent(monkeypatch):
    made = []

    def measured(comm, variants, rounds, settle):
        settle()
        return {name: [2.0 if name.startswith("ceiling") else 4.0] * rounds for name in variants}

    def noted(comm, layout, hidden, batch, piece, *rest, **more):
        if comm.me.rank == 0:
            made.append((comm.size, layout, batch, piece))
        return REAL(comm, layout, hidden, batch, piece, *rest, **more)

    REAL = scaling.trainer
    monkeypatch.setattr(scaling, "measure", measured)
    monkeypatch.setattr(scaling, "trainer", noted)
    rows = run(scaling.bench, 2, [16], 3, fake_cupy.empty(0), 8)[0]["rows"]
    assert [row["share_of_ceiling"] for row in rows] == [0.5] * 4
    whole, small, *cut = made
    assert [(size, layout.world, batch, piece) for size, layout, batch, piece in (whole, small)] == [
        (1, 1, 8, 16), (1, 1, 8, 1)]                         # half of the batch each: all of it at once, or one by one
    assert [(size, getattr(layout, axis), batch, piece) for axis, (size, layout, batch, piece) in zip(AXES, cut)] == [
        (2, 2, 16, 16)] * 3 + [(2, 2, 16, 1)]
    shown = scaling.describe({"rows": rows})
    assert "50%" in shown and "92%" in shown and "do nothing else" in shown


def test_the_busy_share_stands_beside_what_the_timeline_says(monkeypatch):
    monkeypatch.setattr(pipeline, "measure", lambda comm, variants, rounds, settle: {
        name: [1.0 if name == "busy" else 2.0] * rounds for name in variants})
    rows = run(pipeline.bench, 2, [4], 2, None, 16, 8)[0]["rows"]
    assert [row["schedule"] for row in rows] == list(pipeline.SCHEDULES)
    assert all(row["busy_share"] == 0.5 and row["microbatches"] == 4 for row in rows)
    shares = {row["schedule"]: row["predicted_share"] for row in rows}
    assert shares["1f1b"] == pytest.approx(1 - (2 - 1) / (4 + 2 - 1)) == pytest.approx(shares["gpipe"])
    assert shares["zb_h1"] > shares["1f1b"]
    timeline = simulate(build("interleaved", 2, 4, 2), forward=1.0, input=1.0, weight=1.0)
    assert shares["interleaved"] == 1 - timeline.bubble_of_total
    assert "predicted" in pipeline.describe({"rows": rows})


@pytest.mark.parametrize("axis", AXES)
def test_what_is_measured_is_gradients_and_the_parameters_stay(axis):
    """Else a rank of tp or pp, which updates 1/P of the model, would look faster than a ceiling that updates all."""
    def program(comm):
        layout = Layout(**{axis: comm.size})
        one = scaling.trainer(comm, layout, 16, 4, 1 if axis == "pp" else 4, 8, text.load(None), None)
        copies = lambda pieces: {name: flat.copy() for name, (_, flat) in pieces.items()}
        before, sums, real = copies(one.pieces()), [], one.gradients

        def noted():
            real()
            sums.append(copies(one.held("gradients")))

        one.gradients = noted
        for _ in range(2):
            scaling.gradients(one)
        assert_equal(copies(one.pieces()), before)
        first, second = sums
        assert_equal(second, first)                                   # the first turn's are forgotten
        return all(flat.any() for flat in first.values()) and len(first)

    assert run(program, 2)[0] >= 10


REFUSED = [("scaling --ranks 3", "ranks=3: a step is cut along every dimension; expected 1, 2 or 4; nearest 2"),
           ("scaling --ranks 0", "ranks=0: a step is cut along every dimension; expected 1, 2 or 4; nearest 1"),
           ("scaling --sizes 100", "hidden=100: 8 heads have an even number of features each; expected a multiple of "
                                   "16; nearest 96"),
           ("scaling --sizes 384,8", "hidden=8: .*; nearest 16"),
           ("pipeline --ranks 4", "ranks=4: with two stages a rank 4 layers are for 1 or 2 ranks; expected 1 or 2; "
                                  "nearest 2"),
           ("pipeline --sizes 5", "micro-batches=5: expected a number divisible by 2 ranks; nearest 4"),
           ("pipeline --sizes 1", "micro-batches=1: .*; nearest 2"),
           ("attention --ranks 3", "ranks=3: each has as many of 4 heads, and two pieces of 4096 positions; expected "
                                   "1, 2 or 4; nearest 2"),
           ("tensor-parallel --ranks 12", "ranks=12: each has as many of 16 heads, and of 1024 positions; expected 1, "
                                          "2, 4, 8 or 16; nearest 8")]


@pytest.mark.parametrize("started", ["", "launch -n {ranks} "])
@pytest.mark.parametrize(("words", "says"), REFUSED)
def test_what_does_not_divide_is_one_line_before_a_job_starts(words, says, started, monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "Popen", None)
    ranks = words.split()[-1] if "--ranks" in words else 2
    if started and ranks == "0":
        pytest.skip("launch refuses 0 ranks itself")
    assert __main__.main([*started.format(ranks=ranks).split(), "bench", *words.split()]) == 2
    shown = capsys.readouterr()
    assert re.fullmatch(f"error: {says}\n", shown.err) and shown.out == ""


@pytest.mark.parametrize("name", ["scaling", "pipeline", "attention", "tensor_parallel"])
def test_what_a_bench_does_usually_it_does_not_refuse(name):
    bench = importlib.import_module(f"refimpl.bench.{name}")
    for sizes in (bench.SIZES, getattr(bench, "FULL", None)):
        bench.check(bench.RANKS, [int(size) for size in sizes.split(",")] if sizes else None)
    with pytest.raises(ValueError, match="ranks=3: .*; nearest 2"):
        run(bench.bench, 3)


@pytest.mark.parametrize(("name", "ranks", "rounds", "full", "device"), [
    ("scaling", 2, 3, False, "gpu"), ("pipeline", 2, 3, True, "gpu"), ("all-reduce", 4, 7, False, "gpu"),
    ("attention", 2, 7, False, "cpu"), ("tensor-parallel", 2, 7, False, "cpu")])
def test_each_bench_has_its_own_usual_ranks_and_rounds_and_passes_the_rest_on(
        name, ranks, rounds, full, device, monkeypatch):
    started, parsed = [], {}
    monkeypatch.setattr(launch, "main", lambda args: started.append(args) or 0)
    monkeypatch.setenv("REFIMPL_GPU_LIBRARY", "numpy")
    assert __main__.main(["bench", name, *["--full"] * full, "--device", device]) == 0
    monkeypatch.setattr(command, "main", lambda args: parsed.update(vars(args)))
    __main__.main(started[0].verb)
    assert (started[0].ranks, parsed["rounds"], parsed["full"], parsed["device"]) == (ranks, rounds, full, device)


def test_a_bench_of_the_host_is_refused_on_a_gpu_and_a_gpu_that_is_not_there_is_told_before_a_job_starts(
        monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "Popen", None)
    assert __main__.main(["bench", "overlap", "--device", "gpu"]) == 2
    assert "overlap measures the host; on a GPU there are all-reduce, pipeline, scaling" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    assert __main__.main(["bench", "scaling", "--device", "gpu"]) == 2
    assert capsys.readouterr().err.startswith("error: --device gpu: CuPy is not installed")


# -- bench all --------------------------------------------------------------------------------------------------------

ROW = {"size_bytes": 1024, "algorithm": "ring", "median_s": 1e-3, "ratio_to_native": 0.5, "share_of_limit": 0.9}
FOUND = [Found("all-reduce", {"ranks": 4, "rows": [ROW, ROW | {"size_bytes": 2048}]}, "", 3.0),
         Found("scaling", {"ranks": 2, "rows": [{"hidden": 384, "axis": axis, "median_s": 1.0, "ceiling_s": 0.9,
                                                 "share_of_ceiling": 0.9} for axis in AXES]}, "", 20.0),
         Found("pipeline", {"ranks": 2, "rows": [{"microbatches": 16, "schedule": "1f1b", "median_s": 1.0,
                                                  "busy_share": 0.9, "predicted_share": 0.94}]}, "", 20.0),
         Found("widgets", None, "no Chromium found", 0.5)]


def test_all_writes_a_page_with_pictures_and_says_what_did_not_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "collect", lambda names, options, tell: [tell(one) for one in FOUND] and FOUND)
    assert __main__.main(["bench", "all", "--into", str(tmp_path / "out")]) == 1          # one bench could not run
    page = (tmp_path / "out" / "report.md").read_text()
    assert f"{os.cpu_count()} cores" in page and "Did not run: no Chromium found" in page
    for found in FOUND[:3]:
        assert f"## {found.name}\n" in page and f"]({found.name}.svg)" in page
        assert (tmp_path / "out" / f"{found.name}.svg").stat().st_size > 1000
    assert json.loads((tmp_path / "out" / "report.json").read_text())["scaling"]["rows"][0]["axis"] == "dp"
    assert "report.md" in capsys.readouterr().out


def test_every_bench_of_the_command_is_in_all():
    assert sorted(command.ALL) == sorted([*command.IN_A_JOB, *command.HERE])


def test_a_bench_that_fails_is_kept_with_its_words_and_the_others_run(monkeypatch):
    answers = iter([(2, "", "error: no mpirun found: install one\n"), (0, 'device\n{"rows": []}\n', "")])
    asked = []
    monkeypatch.setattr(report, "output_of", lambda command: asked.append(command[3:]) or next(answers))
    first, second = report.collect(["overlap", "import"], ["--full"])
    assert (first.result, first.why, second.result) == (None, "no mpirun found: install one", {"rows": []})
    assert asked == [["bench", "overlap", "--json", "--full"], ["bench", "import", "--json", "--full"]]


HANGS = """
import pathlib, sys, time
from refimpl.world.mpirun import end_job, start_job
job = start_job(2, ["-c", "import os, pathlib, time; pathlib.Path(str(os.getpid())).touch(); time.sleep(600)"])
try:
    job.wait()
finally:
    end_job(job)
"""
DEAF = "import os, pathlib, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); " \
       "pathlib.Path(str(os.getpid())).touch(); time.sleep(600)"


@pytest.mark.skipif(os.name == "nt", reason="sends signals")
@pytest.mark.parametrize(("code", "processes"), [(HANGS, 2), (DEAF, 1)])
def test_a_bench_that_hangs_is_ended_with_all_that_it_started_and_says_so(code, processes, tmp_path, monkeypatch):
    started = []

    class Started(subprocess.Popen):
        def communicate(self, *args, timeout):
            if not started:                                  # the first call: the limit comes when all are up
                while len(list(tmp_path.iterdir())) < processes:
                    assert self.poll() is None
                    time.sleep(0.05)
                started.extend(int(path.name) for path in tmp_path.iterdir())
                timeout = 0.1
            return super().communicate(*args, timeout=timeout)

    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(report.interrupt, "__defaults__", (0.5 if code is DEAF else 15.0,))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert report.output_of([sys.executable, "-c", code]) == (None, "", "it took longer than 20 minutes and was ended")
    assert len(started) == processes
    end = time.monotonic() + 5
    while any(map(alive, started)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, started))


def alive(pid):
    """Whether the process runs still: not gone, and not waiting for its parent to take note."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return state.strip() not in ("", "Z") and not state.startswith("Z")


def test_the_page_says_after_how_long_a_bench_is_ended():
    page = report.page([Found("overlap", None, "it took longer than 20 minutes and was ended", 1200.0)],
                       {"overlap": "overlap"}, {})
    assert "A bench that takes longer than 20 minutes is ended." in page
    assert "Did not run: it took longer than 20 minutes and was ended" in page


def test_the_folder_must_be_one(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert __main__.main(["bench", "all", "--into", str(tmp_path / "file")]) == 2
    assert "expected a folder" in capsys.readouterr().err


def test_the_readme_cites_the_report_if_there_is_one():
    if (ROOT / "docs/bench/report.md").exists():
        assert "docs/bench/report.md" in (ROOT / "README.md").read_text()
