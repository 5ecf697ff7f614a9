"""Every schedule's lists, against those of PyTorch and of the Zero Bubble paper; and which sizes there are."""

import csv
import importlib
import re

import pytest
from pipelines import DATA, every_schedule, names_and_chunks

from refimpl.course.plots import gantt
from refimpl.pipeline import ABOUT, FAMILIES, NAMES, build, check, simulate

PYTORCH = {"GPipe": "gpipe", "1F1B": "1f1b", "Interleaved1F1B": "interleaved", "LoopedBFS": "looped_bfs",
           "InterleavedZeroBubble": "interleaved_zb", "ZBVZeroBubble": "zbv", "DualPipeV": "dualpipev",
           "ZB-H1": "zb_h1", "ZB-H2": "zb_h2"}
FILES = sorted((DATA / "schedules").glob("*.txt"))
with open(DATA / "pipelining_figures.csv", encoding="utf-8") as file:
    FIGURES = list(csv.DictReader(line for line in file if not line.startswith("#")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_lists_equal_the_published_ones_action_by_action(path):
    name, *sizes = re.fullmatch(r"(.+)_p(\d+)_m(\d+)_v(\d+)", path.stem).groups()
    published = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    assert str(build(PYTORCH[name], *map(int, sizes))) == published


def test_there_is_a_published_list_of_every_schedule():
    assert {PYTORCH[path.name.split("_")[0]] for path in FILES} == set(FAMILIES)


@pytest.mark.parametrize("row", FIGURES, ids=lambda row: f"{row['name']}-{row['p']}-{row['m']}-{row['v']}")
def test_time_bubble_and_memory_are_those_of_pytorchs_lists(row):
    p, m, v = (int(row[key]) for key in "pmv")
    t = simulate(build(row["name"], p, m, v))
    assert t.makespan == pytest.approx(float(row["makespan"]), rel=1e-12)
    assert t.makespan - t.ideal == pytest.approx(float(row["beyond_ideal"]), abs=1e-9)
    assert t.ideal == pytest.approx(3 * m)
    assert t.max_rank_span - t.ideal == pytest.approx(float(row["span_beyond_ideal"]), abs=1e-9)
    assert f"{t.bubble_of_ideal:.4f}" == row["bubble_of_ideal"] and f"{t.bubble_of_total:.4f}" == row["bubble_of_total"]
    assert t.peak_activations == pytest.approx([float(peak) for peak in row["peak"].split()], abs=5e-4)


def test_the_table_has_every_schedule_that_pytorch_has():
    assert {row["name"] for row in FIGURES} == set(FAMILIES) - {"zb_h1", "zb_h2"} and len(FIGURES) == 63


# -- sizes ------------------------------------------------------------------------------------------------------------

def test_every_size_is_a_schedule_that_can_run_or_a_refusal_that_says_what_works():
    built = {(s.name, s.chunks): set() for s in every_schedule()}
    for schedule in every_schedule():
        check(schedule)
        assert all(len(row) > 0 for row in schedule.ranks)
        built[schedule.name, schedule.chunks].add((schedule.stages, schedule.microbatches))
    sizes = {(p, m) for p in range(1, 6) for m in range(1, 10)}
    for name, chunks in names_and_chunks():
        refused = sizes - built[name, chunks]
        expected = {(p, m) for p, m in sizes if name.startswith("interleaved") and m % max(1, m // max(1, m // p))
                    or name == "dualpipev" and m < 2 * p}
        assert refused == expected
        for p, m in refused:
            with pytest.raises(ValueError, match=f"microbatches={m} with stages={p}: .* work$") as caught:
                build(name, p, m, chunks)
            for works in re.findall(r"(\d+) (?=or \d+ micro|micro-batches)", str(caught.value).split("; ")[-1]):
                check(build(name, p, int(works), chunks))


def test_A21_interleaved_sizes_that_do_not_divide():
    """p=4, m=3, 5, 6, 10 run; 9 and 11 would wait for ever and are refused, with the sizes next to them that run."""
    for m in (3, 5, 6, 7, 10):
        check(build("interleaved", 4, m, chunks=2))
    for m, near in ((9, "8 or 10"), (11, "10 or 12")):
        with pytest.raises(ValueError, match=f"microbatches={m} with stages=4.*{near} micro-batches work"):
            build("interleaved", 4, m, chunks=2)


def test_A21_interleaved_warm_up_and_live_chunks():
    schedule = build("interleaved", stages=4, microbatches=8, chunks=2)
    first_backward = [next(i for i, action in enumerate(row) if action.kind == "B") for row in schedule.ranks]
    assert [position - 1 for position in first_backward] == [10, 8, 6, 4]       # and then one forward, one backward
    assert [peak * 2 for peak in check(schedule).peak_activations] == [11, 9, 7, 5]
    t = simulate(schedule, forward=1, input=1, weight=1)
    assert t.makespan == 28.5 and simulate(build("1f1b", 4, 8)).makespan == 33


@pytest.mark.parametrize("m", [1, 2, 3])
def test_A19_fewer_micro_batches_than_stages(m):
    schedule = build("1f1b", stages=4, microbatches=m)
    for rank, row in enumerate(schedule.ranks):
        warm_up = min(m, 3 - rank)
        assert "".join(action.kind for action in row) == "F" * warm_up + "FB" * (m - warm_up) + "B" * warm_up
    assert simulate(schedule, forward=1, input=1, weight=1).makespan == {1: 12, 2: 15, 3: 18}[m]


def test_A19_activations_do_not_grow_with_micro_batches_in_1f1b_and_do_in_gpipe():
    assert check(build("1f1b", 4, 2)).peak_activations == (2, 2, 2, 1)
    for m in (4, 8, 64, 500):
        assert check(build("1f1b", 4, m)).peak_activations == (4, 3, 2, 1)
        assert check(build("gpipe", 4, m)).peak_activations == (m, m, m, m)


def test_one_stage_is_one_device_doing_one_micro_batch_after_the_other():
    assert str(build("1f1b", 1, 3)) == "rank0: 0F0 0B0 0F1 0B1 0F2 0B2"
    for schedule in every_schedule(stages=[1]):
        t = simulate(schedule)
        assert t.makespan == pytest.approx(t.ideal) and t.messages == {"forward": 0, "backward": 0}


@pytest.mark.parametrize("p", [2, 3, 5])
def test_zbv_with_fewer_than_2p_minus_1_micro_batches_leaves_some_of_those_out(p):
    full = build("zbv", p, 2 * p - 1)
    for m in range(1, 2 * p - 1):
        assert build("zbv", p, m).ranks == tuple(
            tuple(action for action in row if action.microbatch < m) for row in full.ranks)


# -- asking for one ---------------------------------------------------------------------------------------------------

def test_chunks_are_the_schedules_own_unless_given():
    assert [build(name, 2, 4).chunks for name in FAMILIES] == [1, 1, 2, 2, 2, 1, 1, 2, 2]
    assert build("interleaved", 2, 4, 3).chunks == 3


@pytest.mark.parametrize("arguments, says", [
    (("1f1", 4, 8), "there is no schedule '1f1': perhaps '1f1b'?"),
    (("ZB-H1", 4, 8), "perhaps 'zb_h1'?"),
    (("qwertz", 4, 8), "there are gpipe, 1f1b, "),
    ((None, 4, 8), "there is no schedule None"),
    (("1f1b", 0, 8), "stages=0: must be a whole number, 1 or more"),
    (("1f1b", 4, -1), "microbatches=-1"), (("1f1b", 4, "8"), "microbatches='8'"),
    (("1f1b", 4, 8, 2), "chunks=2: 1f1b has 1 on every rank; interleaved"),
    (("zbv", 4, 8, 1), "chunks=1: zbv has 2 on every rank"), (("interleaved", 4, 8, 0), "chunks=0"),
    (("dualpipev", 4, 7), "microbatches=7 with stages=4.*8 micro-batches or more work"),
    (("custom", 4, 8), "custom needs ranks="),
])
def test_what_there_is_not_is_refused_with_what_there_is(arguments, says):
    with pytest.raises(ValueError, match=re.escape(says).replace(r"\.\*", ".*")):
        build(*arguments)


def test_every_schedule_is_registered_once_with_a_line_about_it():
    assert set(NAMES) == set(ABOUT) == {*FAMILIES, "custom"} and len(NAMES) == 10
    assert all(name == family.name and family.about for name, family in FAMILIES.items())
    with pytest.raises(ValueError, match="ranks= is for 'custom'"):
        build("1f1b", 2, 2, ranks=["0F0"])


# -- your own ---------------------------------------------------------------------------------------------------------

OWN = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]


def test_a_list_of_your_own_is_read_from_strings_actions_or_text():
    schedule = build("custom", 2, 2, ranks=OWN)
    assert str(schedule) == str(build("1f1b", 2, 2))
    for rows in ([row.split() for row in OWN], schedule.ranks):
        assert build("custom", 2, 2, ranks=rows).ranks == schedule.ranks
    v = build("dualpipev", 2, 4)
    own = build("custom", 2, 4, chunks=2, ranks=[" ".join(map(str, row)) for row in v.ranks])
    assert own.ranks == v.ranks and own.placement == (0, 1, 1, 0)
    loop = build("interleaved", 2, 4)
    assert build("custom", 2, 4, chunks=2, ranks=loop.ranks).placement == (0, 1, 0, 1)
    backwards = build("custom", 2, 1, ranks=["1F0 1B0", "0F0 0B0"], placement=[1, 0])
    assert simulate(backwards).makespan == 6


@pytest.mark.parametrize("ranks, says", [
    (["0F0 0B0", "1F0 1Z0"], "rank 1: '1Z0' is no action"),
    ("0F0 0B0", "give a list with one string"),
    ([OWN[0]], "1 lists of actions for stages=2"),
    ([OWN[0], "1B0 1F0 1F1 1B1"], "rank 1 cannot start 1B0 before 1F0 of rank 1, which comes after 1B0 there"),
    ([OWN[0], "1F0 1B0 1F1"], "the backward of stage 1, micro-batch 1, on rank 1 needs one B, or one I and one W"),
    ([OWN[0], [None]], "rank 1: 'None' is no action"),
])
def test_a_list_of_your_own_that_cannot_run_is_refused_with_the_reason(ranks, says):
    with pytest.raises(ValueError, match=says):
        build("custom", 2, 2, ranks=ranks)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_chart_in_each_files_docstring_is_what_it_makes(name):
    text = importlib.import_module(FAMILIES[name].row.__module__).__doc__
    sizes = {key: int(number) for key, number in re.findall(r"\b([pmv])=(\d)", text)}
    chart = gantt.terminal(simulate(build(name, sizes["p"], sizes["m"], sizes.get("v"))))
    drawn = re.findall(r"^    (rank \d \|.+\|)", text, re.MULTILINE)
    assert drawn == chart.splitlines()[:-1]
