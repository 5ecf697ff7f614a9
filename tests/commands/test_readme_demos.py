"""The README's table of runs under mpirun: every line runs as it stands, and with --device gpu."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from slow import only_all

from refimpl import __main__
from refimpl.world.mpirun import end_job, start_job

ROOT = Path(__file__).resolve().parents[2]
AXES = ["dp", "zero", "tp", "sp", "cp", "pp", "ep", "all"]
LINE = re.compile(r"^\| (\w+) \|.*\| `mpirun -n (\d+) python -m mpi4py (-m refimpl [^`]*)` \|$", re.MULTILINE)
FOUND = {axis: (int(ranks), words.split()) for axis, ranks, words in LINE.findall((ROOT / "README.md").read_text())}
QUICK = {"--layers": "4", "--hidden": "32", "--seq": "32", "--steps": "2"}       # smaller, not otherwise
pytestmark = pytest.mark.skipif(os.name == "nt", reason="there MPI is not installed with the requirements")


def test_there_is_a_line_for_every_axis_and_one_for_all():
    assert list(FOUND) == AXES
    for axis, (ranks, words) in FOUND.items():
        wanted = ["dp", "tp", "cp", "pp"] if axis == "all" else [axis]
        assert all(f"--{one}" in words for one in wanted) and words[-1] == "--check" and ranks in (2, 4, 8, 16)


def smaller(words):
    """The line's options, with sizes that take a second, and a report to read."""
    given = [word for pair in QUICK.items() if pair[0] not in words for word in pair]
    return [*words, *given, "--json"]


@pytest.mark.parametrize("axis", [axis for axis in AXES if axis != "all"])
def test_the_line_of_an_axis_runs_and_is_the_run_of_one_device(axis):
    ranks, words = FOUND[axis]
    report = run_job(ranks, smaller(words))
    assert report["passed"] and report["ranks"] == ranks
    sent = {dimension for dimension, counts in report["bytes"].items() if sum(counts)}
    assert {"zero": "dp", "sp": "tp"}.get(axis, axis) in sent


def test_all_of_them_at_once_are_the_run_of_one_device_on_ranks_of_this_process(capsys):
    """16 processes on 2 cores mostly wait: they run with --all, below."""
    ranks, words = FOUND["all"]
    assert __main__.main(smaller(words)[2:]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] and report["ranks"] == ranks
    assert {axis for axis, counts in report["bytes"].items() if sum(counts)} >= {"dp", "tp", "cp", "pp"}


@pytest.mark.parametrize("axis", AXES)
def test_every_line_runs_on_the_stand_in_too(axis, monkeypatch, capsys):
    monkeypatch.setenv("REFIMPL_GPU_LIBRARY", "fake_cupy")
    assert __main__.main([*smaller(FOUND[axis][1])[2:], "--device", "gpu"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]


@only_all
@pytest.mark.parametrize("axis", AXES)
def test_every_line_runs_as_it_stands(axis):
    ranks, words = FOUND[axis]
    report = run_job(ranks, [*words, "--json"], 600)
    assert report["passed"] and report["ranks"] == ranks


def run_job(ranks, words, seconds=120):
    """What the job reports as JSON."""
    job = start_job(ranks, words, seconds, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        output, errors = job.communicate(timeout=seconds + 10)
    finally:
        end_job(job)
    assert job.returncode == 0, errors[-3000:]
    return json.loads(output)


