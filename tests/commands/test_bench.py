"""`bench`: what it reports, as JSON and as text; that it starts its own ranks; what it refuses. Sizes are tiny here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refimpl import __main__, run
from refimpl.bench import all_reduce, collectives, local, overlap
from refimpl.commands import launch

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(os.name == "nt", reason="there MPI is not installed with the requirements")


def bench(*options):
    """The exit status of `bench` with these options."""
    return __main__.main(["bench", *options])


# -- the command ------------------------------------------------------------------------------------------------------

@posix
def test_it_starts_its_own_ranks_and_reports_rows_and_draws(tmp_path):
    command = [sys.executable, "-m", "refimpl", "bench", "all-reduce", "--ranks", "2", "--sizes", "1KiB,2KiB",
               "--rounds", "2", "--json", "--plot", str(tmp_path / "speed.png")]
    environment = os.environ | {"REFIMPL_CHECK": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.count("\n") == 1                                              # one rank speaks, in one line
    report = json.loads(done.stdout)
    assert report["ranks"] == 2
    names = ["native", "ring", "rabenseifner", "doubling", "tree", "auto"]
    assert [(row["size_bytes"], row["algorithm"]) for row in report["rows"]] == [
        (size, name) for size in (1024, 2048) for name in names]
    for row in report["rows"]:
        assert row.keys() == {"size_bytes", "algorithm", "median_s", "ratio_to_native", "share_of_limit",
                              "bus_bytes_per_s"}
        assert all(row[key] > 0 for key in ("median_s", "ratio_to_native", "share_of_limit"))
        assert row["algorithm"] != "native" or row["ratio_to_native"] == 1
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


@posix
def test_outside_a_job_the_same_command_goes_to_launch_whole(monkeypatch):
    started = []
    monkeypatch.setattr(launch, "main", lambda args: started.append(args) or 5)
    assert bench("overlap", "--ranks=3", "--sizes=1MiB", "--json") == 5              # the job's status is the status
    [args] = started
    assert args.ranks == 3 and args.timeout is None and not args.show
    parsed = {}
    monkeypatch.setattr("refimpl.commands.bench.main", lambda args: parsed.update(vars(args)))
    __main__.main(args.verb)
    assert {key: parsed[key] for key in ("name", "ranks", "sizes", "rounds", "json", "plot")} == {
        "name": "overlap", "ranks": 3, "sizes": "1MiB", "rounds": 7, "json": True, "plot": None}


def test_import_is_measured_here(capsys):
    assert bench("import", "--rounds", "1", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["statement"] for row in report["rows"]] == ["import numpy", "import refimpl"]
    medians = [row["median_s"] for row in report["rows"]]
    assert report["above_numpy_ms"] == pytest.approx(1e3 * (medians[1] - medians[0]))
    assert bench("import", "--rounds", "1") == 0
    assert "ms, at most 60 are allowed" in capsys.readouterr().out


def test_local_is_measured_here_beside_mpi(capsys, monkeypatch):
    monkeypatch.setattr(local, "mpi_seconds", lambda size: 0.5)
    monkeypatch.setattr(local, "MESSAGES", 10)
    assert bench("local", "--rounds", "1", "--sizes", "4KiB", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    [row] = report["rows"]
    assert row["size_bytes"] == 4096 and row["mpi_s"] == 0.5 and report["message_us"] > 0
    assert row["ratio_to_mpi"] == pytest.approx(row["local_s"] / 0.5)
    assert bench("local", "--rounds", "1", "--sizes", "4KiB") == 0
    assert "a small message of the local world:" in capsys.readouterr().out


def test_a_job_that_fails_is_told_in_its_own_words(capsys, monkeypatch):
    answer = subprocess.CompletedProcess([], 2, "", "error: no mpirun found: install one\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(local, "MESSAGES", 10)
    assert bench("local", "--rounds", "1", "--sizes", "4KiB") == 2
    assert capsys.readouterr().err == "error: no mpirun found: install one\n"


@pytest.mark.parametrize("options, says", [
    (["all-reduce", "--rounds", "0"], "--rounds 0: measure 1 round or more"),
    (["all-reduce", "--ranks", "0"], "0 ranks cannot be started"),
    (["all-reduce", "--sizes", "64MB"], "size '64MB': write a whole number of bytes with a unit, as in 4KiB"),
    (["all-reduce", "--sizes", "4KiB,"], "size '': write a whole number"),
    (["overlap", "--plot", "a.png"],
     "--plot: overlap has no curve to draw; all-reduce, collectives, scaling and pipeline have"),
    (["import", "--plot", "a.png"], "--plot: import has no curve"),
    (["all-reduce", "--plot", "a.gif"], "--plot a.gif: the name must end in .png, .svg, .pdf"),
    (["local", "--ranks", "2"], "--ranks 2: bench local would ignore it; it takes --sizes, --rounds, --full, --json"),
    (["import", "--sizes", "4KiB"], "--sizes 4KiB: bench import would ignore it; it takes --rounds, --full, --json"),
    (["attention", "--sizes", ""], "--sizes : bench attention would ignore it; it takes --ranks, --rounds"),
    (["train", "--ranks", "2"], "--ranks 2: bench train would ignore it"),
    (["overlap", "--into", "d"], "--into d: bench overlap would ignore it; it takes --ranks, --sizes, --rounds"),
    (["all", "--rounds", "2"], "--rounds 2: bench all would ignore it; it takes --full, --into"),
    (["all", "--ranks", "2"], "--ranks 2: bench all"), (["all", "--sizes", "4KiB"], "--sizes 4KiB: bench all"),
    (["all", "--json"], "--json: bench all would ignore it"),
    (["local", "--sizes", ""], "size '': write a whole number"), (["scaling", "--plot", ""], "--plot .: the name must"),
    (["scaling", "--full", "--sizes", "256"], "--full --sizes 256: give one of the two"),
    (["all_reduce"], "argument name: invalid choice: 'all_reduce'"),
])
def test_what_it_cannot_do_is_one_line_and_status_2_before_anything_starts(capsys, monkeypatch, options, says):
    monkeypatch.setattr(subprocess, "Popen", None)
    try:
        status = bench(*options)
    except SystemExit as left:                                                       # argparse's own way
        status = left.code
    shown = capsys.readouterr()
    assert status == 2 and shown.out == ""
    assert shown.err.startswith("error: ") and says in shown.err and shown.err.count("\n") == 1


@pytest.mark.parametrize("name", ["import", "local"])
def test_in_a_job_what_starts_processes_is_refused(capsys, monkeypatch, name):
    monkeypatch.setattr("refimpl.commands.bench.under_mpi", lambda: True)
    assert bench(name) == 2
    assert f"bench {name} starts processes of its own: run it without mpirun" in capsys.readouterr().err


# -- the benches, on ranks --------------------------------------------------------------------------------------------

@pytest.mark.mpi(2)
def test_collectives_are_compared_each_with_mpis_own():
    report = run(collectives.bench, 2, [1024], 2)[0]
    assert [row["algorithm"] for row in report["rows"]] == [
        "reduce_scatter ring", "reduce_scatter native", "all_gather ring", "all_gather direct", "all_gather native"]
    for row in report["rows"]:
        assert row["size_bytes"] == 1024 and row["median_s"] > 0 and row["share_of_limit"] > 0
        assert "native" not in row["algorithm"] or row["ratio_to_native"] == 1
    assert "reduce_scatter native" in collectives.describe(report) and "1 KiB" in collectives.describe(report)


@pytest.mark.mpi(2)
def test_overlap_says_which_share_is_hidden_and_what_the_virtual_clock_says():
    report = run(overlap.bench, 2, [64 * 1024], 2)[0]
    [row] = report["rows"]
    assert row.keys() == {"size_bytes", "compute_s", "communicate_s", "both_s", "hidden_share"}
    assert report["hidden_share"] == row["hidden_share"]
    assert all(row[key] > 0 for key in row if key != "hidden_share")                 # which noise may make anything
    report["virtual_hidden_share"] = overlap.virtual_hidden_share()                  # the local world, inside a rank
    assert report["virtual_hidden_share"] == pytest.approx(1, rel=1e-12)
    assert "communication is work for a core" in overlap.describe(report)
    assert "On the virtual clock: 100% hidden." in overlap.describe(report)


def test_what_is_hidden_is_counted_round_by_round_from_the_shorter_of_the_two(monkeypatch):
    times = {"compute": [4.0, 2.0, 2.0], "communicate": [1.0, 1.0, 2.0], "both": [4.5, 2.0, 3.0]}     # 1/2, 1, 1/2
    asked = []

    def measure(comm, variants, rounds):
        asked.append(rounds)
        return {name: times[name] for name in variants}

    monkeypatch.setattr(overlap, "measure", measure)
    row = overlap.bench_size(None, 4096, rounds=3)
    assert row == {"size_bytes": 4096, "hidden_share": 0.5, "compute_s": 2.0, "communicate_s": 1.0, "both_s": 3.0}
    assert asked == [3, 3] and overlap.products_as_long_as(None, None) == 50         # 100 took twice as long


@pytest.mark.mpi(2)
def test_large_arrays_are_not_sent_whole_every_round():
    report = run(all_reduce.bench, 2, [2 * all_reduce.WHOLE_UP_TO], 1)[0]
    assert [row["algorithm"] for row in report["rows"]] == ["native", "ring", "rabenseifner", "auto"]


@pytest.mark.parametrize("P, copies, additions", [(1, 0, 0), (2, 1, 1 / 2), (4, 3 / 2, 3 / 4)])
def test_the_limit_is_what_every_byte_costs_that_must_be_copied_and_added(P, copies, additions):
    limit = all_reduce.memory_limit({"copy": [1.0, 2.0], "add": [10.0, 30.0]}, P)
    assert limit == [copies + 10 * additions, 2 * copies + 30 * additions]


def test_a_table_has_a_line_for_each_row():
    row = {"algorithm": "ring", "median_s": 1.5e-3, "ratio_to_native": 0.5, "share_of_limit": 0.9}
    rows = [row | {"size_bytes": size} for size in (2**20, 4096)]
    assert [line.split() for line in all_reduce.describe({"rows": rows}).splitlines()[1:]] == [
        [*size.split(), "ring", "1.500", "ms", "0.50x", "90%"] for size in ("1 MiB", "4 KiB")]


def test_hidden_share_on_the_virtual_clock_is_all_of_it_also_with_another_network():
    assert overlap.virtual_hidden_share(P=3, n=3000) == pytest.approx(1, rel=1e-12)
