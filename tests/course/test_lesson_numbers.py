"""What the lessons say of their pictures, and the numbers in their prose that no cell computes."""

import json
import re

import pytest

from refimpl.cost import context
from refimpl.cost import moe as cost
from refimpl.course.widgets import stills
from refimpl.course.widgets.all_reduce_stepper import draw_all_reduce
from refimpl.course.widgets.attention_grid import draw_grid
from refimpl.course.widgets.partition_map import draw_partition
from refimpl.course.widgets.partition_run import run_step
from refimpl.course.widgets.router_heat_map import routed
from refimpl.layout import Layout
from refimpl.pipeline import build, simulate


def prose_of(number):
    """The text of all cells of prose of the lesson of this number."""
    path, = (path for path in stills.FOLDER.parent.glob(f"{number}_*.ipynb") if "first_run" not in path.stem)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("number", sorted({name[:2] for name in stills.STILLS}))
def test_every_picture_of_a_lesson_is_in_it(number):
    mine = {name for name in stills.STILLS if name.startswith(number)}
    assert mine == set(re.findall(r"pictures/(\w+\.svg)", prose_of(number)))


def test_the_sum_that_the_text_takes_apart_is_in_the_picture():
    prose = prose_of("01")
    assert "13 = 1 + 4 + 8 is from ranks 0, 2 and 3" in prose and "pictures/01_ring_step.svg" in prose
    assert "1+12=13" in draw_all_reduce(4, 2).svg and 13 == 2**0 + 2**2 + 2**3


def test_what_lesson_04_says_of_its_map_is_so():
    """The first picture; and where a rank holds most, which the text asks for."""
    prose = prose_of("04")
    assert "a model of three layers" in prose and "in the forward of layer 1" in prose
    assert stills.STILLS["04_partition.svg"]().svg == draw_partition(3, 4, 2).svg
    weights = {moment.words: sum(moment.ranks[0].nbytes.values()) for moment in run_step(3, 4).moments}
    assert max(weights, key=weights.get).startswith("backward")
    sent = [sum(run_step(stage, 4).sent.values()) for stage in range(4)]
    assert sent[3] == max(sent) > sent[2] == sent[1] == sent[0]
    for stage, more in ((0, False), (1, False), (2, True), (3, True)):               # with 3 micro-batches
        assert (sum(run_step(stage, 4, 3).sent.values()) > sent[stage]) == more


def test_the_numbers_below_the_first_picture_of_lesson_08_are_those_of_the_timeline():
    prose = prose_of("08")
    t, gpipe = simulate(build("1f1b", 4, 8)), simulate(build("gpipe", 4, 8))
    assert (t.makespan, gpipe.makespan, set(t.idle_seconds + gpipe.idle_seconds)) == (33, 33, {9})
    assert (max(t.peak_activations), max(gpipe.peak_activations)) == (4, 8)
    assert "Both take 33 and idle 9 on every rank" in prose and "keeps 8 activations, 1F1B keeps 4 at most" in prose


def test_what_the_stepper_is_asked_in_lesson_08_is_so():
    """The first backward of rank 0 comes after its forwards; `ends` are in the order of the rank's list."""
    for name, when, kept in (("1f1b", 12, 4), ("gpipe", 17, 6)):
        t = simulate(build(name, 4, 6))
        first = next(k for k, action in enumerate(t.schedule.ranks[0]) if str(action) == "0B0")
        assert (t.ends[0][first], first) == (when, kept)
    assert "At 12, when `0B0` is over; with GPipe at 17, and until then rank 0 keeps all six" in prose_of("08")


def test_what_the_text_of_lesson_09_says_of_its_picture_is_in_the_picture():
    prose = prose_of("09")
    ran = routed()
    assert "a line at the capacity of 8" in prose and ran.room == 8
    assert "Two experts are chosen more often than they have room for" in prose and (ran.load > 8).sum() == 2
    assert len(ran.choice) == 24 and len(ran.load) == 8


def test_the_numbers_of_lesson_09():
    prose = prose_of("09")
    assert "With even loads a rank sends 24 rows: 8 of its 32" in prose and cost.balanced_all_to_all(16, 2, 1, 4) == 24
    assert "46.7 and 12.9" in prose                                       # computed in a cell, and asserted there
    layout = Layout(dp=16, tp=8, pp=8, ep=8)
    assert "1024 or 8192" in prose and layout.world == 1024
    assert "reaches over 8 nodes" in prose and len({layout.node(rank) for rank in layout.group("ep", 0)}) == 8
    assert "room for 18 tokens" in prose and cost.capacity(2, 24, 8, 3.0) == 18


def test_the_numbers_of_lesson_07():
    prose = prose_of("07")
    assert "53% on 8 ranks" in prose and round(context.efficiency(2**20, 8, "contiguous"), 2) == 0.53
    assert "52% forward for contiguous pieces" in prose                   # measured elsewhere: facts of the source
    assert "Rank 0 has nothing to do and waits, the others have 16 pairs each" in prose
    assert "rank 0 0 with the keys of rank 3, rank 1 16" in draw_grid(step=1).words
    half_a_block_and_whole_ones = [context.step_pairs(64, 8, 7, step, "contiguous") for step in range(8)]
    assert half_a_block_and_whole_ones == [36] + 7 * [64]                 # P - 1/2 blocks, about
