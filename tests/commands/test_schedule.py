"""`schedule`: what it prints, as text and as JSON, what it writes, what it refuses."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from refimpl import __main__
from refimpl.pipeline import FAMILIES, NAMES, build, simulate

ROOT = Path(__file__).resolve().parents[2]


def say(capsys, *options, status=0):
    """What the command prints: on stdout, or on stderr when it is refused."""
    assert __main__.main(["schedule", *options]) == status
    shown = capsys.readouterr()
    assert (shown.err if status == 0 else shown.out) == ""
    return shown.out if status == 0 else shown.err


def report(capsys, *options):
    """The object that --json prints: one line of standard JSON."""
    out = say(capsys, *options, "--json")
    assert out.count("\n") == 1
    return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no standard JSON"))


@pytest.mark.parametrize("name", FAMILIES)
def test_json_has_the_lists_and_the_timelines_figures_under_their_names(capsys, name):
    found = report(capsys, name, "--stages", "4", "--microbatches", "8", "--hop", "0.25")
    t = simulate(build(name, 4, 8), hop=0.25)
    assert found["ranks"] == [[str(action) for action in row] for row in t.schedule.ranks]
    for figure in ("makespan", "max_rank_span", "bubble_of_ideal", "bubble_of_total", "bubble_of_span",
                   "peak_activations"):
        assert found[figure] == getattr(t, figure)
    assert found["messages"] == t.messages and found["messages"].keys() == {"forward", "backward"}
    assert (found["name"], found["stages"], found["microbatches"], found["chunks"]) == (name, 4, 8, t.schedule.chunks)
    assert [[gap["end"] - gap["start"] for gap in gaps] for gaps in found["idle"]] == [
        [gap.end - gap.start for gap in gaps] for gaps in t.idle]
    assert found["idle"][0][0].keys() == {"start", "end", "before", "waits_for", "of_rank"} and found["compare"] == {}


def test_the_usual_call_shows_chart_figures_and_the_longest_waits(capsys):
    out = say(capsys, "1f1b", "--stages", "4", "--microbatches", "8", "--compare", "gpipe,interleaved")
    assert "rank 0 |F0F1F2F3............B0--F4B1--" in out and "\x1b" not in out
    table = {line[:28].strip(): line[28:].split() for line in out.splitlines()}
    assert table["makespan"] == ["33", "33", "28.5"] and table["most activations kept"] == ["4", "8", "5.5"]
    assert table["bubble, of the ideal time"] == ["37.50%", "37.50%", "18.75%"]
    assert table["bubble, of the total time"] == ["27.27%", "27.27%", "15.79%"]
    assert table["messages forward"] == table["messages backward"] == ["24", "24", "56"]
    assert re.search(r"^ +0 +24 +9 +4  4 to 10: 0B0 waits for 1B0 of rank 1$", out, re.MULTILINE)


def test_stages_and_micro_batches_have_defaults_and_chunks_are_the_schedules_own(capsys):
    found = report(capsys, "interleaved", "--compare", "zb_h1")
    assert (found["stages"], found["microbatches"], found["chunks"]) == (4, 8, 2)
    assert found["compare"]["zb_h1"]["chunks"] == 1 and found["compare"]["zb_h1"]["makespan"] == 27


def test_chunks_apply_to_what_is_compared_where_it_takes_any(capsys):
    found = report(capsys, "interleaved", "--chunks", "3", "--compare", "looped_bfs,1f1b, zbv")
    assert {name: other["chunks"] for name, other in found["compare"].items()} == {"looped_bfs": 3, "1f1b": 1, "zbv": 2}


def test_times_may_be_one_or_several(capsys):
    found = report(capsys, "1f1b", "--forward", "1,2,1,1", "--input", "0.5", "--weight", "0", "--hop", "0.1")
    assert found["makespan"] == simulate(build("1f1b", 4, 8), [1, 2, 1, 1], 0.5, 0, 0.1).makespan


def test_a_chart_of_a_step_that_lasts_for_ages_is_as_wide_as_any(capsys):
    out = say(capsys, "1f1b", "--hop", "1e99")
    assert "rank 0 |F" in out and "~" in out and max(len(line) for line in out.splitlines()[:4]) <= 100


def test_a_chart_is_written_and_named(capsys, tmp_path):
    path = tmp_path / "chart.svg"
    assert f"chart: {path}" in say(capsys, "zbv", "--svg", str(path))
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    path.unlink()
    report(capsys, "zbv", "--svg", str(path))
    assert path.exists()


def test_a_schedule_of_your_own_is_read_from_a_file(capsys, tmp_path):
    file = tmp_path / "own.txt"
    file.write_text("# mine\nrank0: 0F0 0F1 0B0 0B1\n\n1F0 1B0 1F1 1B1\n")
    found = report(capsys, "custom", "--actions", str(file), "--compare", "gpipe")
    assert (found["stages"], found["microbatches"], found["makespan"]) == (2, 2, 9)
    v = build("dualpipev", 3, 6)
    file.write_text(str(v))
    assert report(capsys, "custom", "--actions", str(file))["makespan"] == simulate(v).makespan


@pytest.mark.parametrize("lines, says", [
    ("0F0 0F1 0B0 0B1\n1B0 1F0 1F1 1B1", "rank 1 cannot start 1B0 before 1F0 of rank 1, which comes after 1B0 there"),
    ("0F0 0B0\n1F0", "the backward of stage 1, micro-batch 0, on rank 1 needs one B"),
    ("0F0 0B0\n1F0 B0", "rank 1: 'B0' is no action"), ("# nothing\n", "there is no action in it"),
    ("rank0:\n", "there is no action in it"),
])
def test_a_schedule_of_your_own_that_cannot_run_is_one_line_of_reason(capsys, tmp_path, lines, says):
    (tmp_path / "own.txt").write_text(lines)
    error = say(capsys, "custom", "--actions", str(tmp_path / "own.txt"), status=2)
    assert error.count("\n") == 1 and error.startswith("error: ") and says in error


@pytest.mark.parametrize("options, says", [
    (["1f1b", "--stages", "9" * 20], f"{'9' * 20} stages x 8 micro-batches: expected at most 100000 together"),
    (["1f1b", "--hop", "1e308"], "--hop 1e308: expected times of at most 1e+100"),
    ([], f"which schedule? One of {', '.join(NAMES)}"),
    (["1f1"], "there is no schedule '1f1': perhaps '1f1b'?"),
    (["1f1b", "--compare", "gpipe,zbw"], "there is no schedule 'zbw': perhaps 'zbv'?"),
    (["1f1b", "--stages", "0"], "stages=0: must be a whole number, 1 or more"),
    (["1f1b", "--microbatches", "0"], "microbatches=0"), (["interleaved", "--chunks", "0"], "chunks=0"),
    (["1f1b", "--chunks", "2"], "chunks=2: 1f1b has 1 on every rank"),
    (["interleaved", "--microbatches", "9"], "8 or 10 micro-batches work"),
    (["dualpipev", "--microbatches", "7"], "8 micro-batches or more work"),
    (["1f1b", "--forward", "fast"], "--forward fast: must be a number"),
    (["1f1b", "--hop", "-1"], "hop=-1.0: must be a time in seconds"), (["1f1b", "--weight", "nan"], "weight=nan"),
    (["1f1b", "--input", "1,2"], "input has 2 times: give one number, or 4, one per stage"),
    (["1f1b", "--hop", "1,2"], "hop=[1.0, 2.0]: must be a time"),
    (["custom"], "custom: give --actions FILE"),
    (["custom", "--actions", "nowhere.txt"], "nowhere.txt: cannot be read"),
    (["1f1b", "--actions", "own.txt"], "1f1b makes its own lists"),
    (["1f1b", "--svg", "chart.png"], "chart.svg works"), (["custom", "--svg", "chart.png"], "chart.svg works"),
    (["1f1b", "--svg", "nowhere/chart.svg"], "there is no folder nowhere"),
])
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_written(capsys, tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    error = say(capsys, *options, status=2)
    assert error.count("\n") == 1 and error.startswith("error: ") and says in error
    assert list(tmp_path.iterdir()) == []


def test_as_a_process_it_prints_plain_text_within_a_narrow_terminal():
    environment = os.environ | {"COLUMNS": "40", "LINES": "10"}
    words = ["-m", "refimpl", "schedule", "1f1b", "--stages", "8", "--microbatches", "64"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True,
                          timeout=60)
    chart = re.findall(r"^rank \d \|.*\|$", done.stdout, re.MULTILINE)
    assert done.returncode == 0 and len(chart) == 8
    assert max(map(len, chart)) <= 40 and all("~" in line for line in chart)
