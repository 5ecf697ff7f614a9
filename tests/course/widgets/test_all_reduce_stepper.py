"""The stepper: its trace is the ring that ran, and its pictures say what the trace says."""

import time
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from refimpl import Ledger, run
from refimpl.collectives import all_reduce, ring
from refimpl.course.widgets import AllReduceStepper
from refimpl.course.widgets.all_reduce_stepper import MOST, draw_all_reduce, trace

ranks = pytest.mark.parametrize("P", range(2, MOST + 1))


def words_of(shown):
    """All the text in a picture, in order."""
    return [element.text for element in ElementTree.fromstring(shown.svg).iter() if element.tag.endswith("}text")]


@ranks
def test_the_trace_follows_the_definition_of_the_ring(P):
    """The trace against the ring's docstring, computed here without a communicator."""
    held = [[2**r] * P for r in range(P)]
    ran = trace(P)
    assert len(ran.sent) == 2 * (P - 1) and len(ran.before) == len(ran.sent) + 1
    for s in range(2 * (P - 1)):
        assert [list(row) for row in ran.before[s]] == held
        lap, step = divmod(s, P - 1)
        chunks = [(r - step - 1 + lap) % P for r in range(P)]
        assert list(ran.sent[s]) == chunks
        values = [held[r][k] for r, k in enumerate(chunks)]
        for r, k in enumerate(chunks):
            right = (r + 1) % P
            held[right][k] = values[r] + (0 if lap else held[right][k])
    assert [list(row) for row in ran.before[-1]] == held == [[2**P - 1] * P] * P


@ranks
def test_what_is_traced_is_what_the_course_calls_an_all_reduce(P):
    log = Ledger()
    results = run(lambda comm: all_reduce(np.full(P, 2**comm.rank), comm, algorithm="ring"), P, ledger=log)
    assert_array_equal(results, trace(P).before[-1])
    assert log.messages() == sum(map(len, trace(P).sent))


def test_a_ring_that_goes_wrong_is_drawn_wrong(monkeypatch):
    """The trace is of the real code: a ring that forgets to add shows at once."""
    trace.cache_clear()
    monkeypatch.setattr(ring, "combine_", lambda op, target, incoming: None)
    try:
        assert trace(3).before[-1] != ((7,) * 3,) * 3
    finally:
        trace.cache_clear()


@ranks
def test_the_picture_shows_every_number_and_every_move(P):
    ran = trace(P)
    for step in range(2 * (P - 1) + 1):
        words = words_of(draw_all_reduce(P, step))
        held = [str(n) for row in ran.before[step] for n in row]
        cells = [word.split("=")[-1] for word in words if word.replace("+", "").replace("=", "").isdigit()]
        assert cells[:P * P] == held
        sums = [word for word in words if "=" in word]
        if 0 < step < P:                                                 # each rank: its own, what came, the sum
            was, now = ran.before[step - 1], ran.before[step]
            came = [ran.sent[step - 1][r - 1] for r in range(P)]
            assert sums == [f"{was[r][k]}+{was[r - 1][k]}={now[r][k]}" for r, k in enumerate(came)]
        else:
            assert sums == []
        moves = [word for word in words if word[0] == "c" and word[1:].isdigit()]
        assert moves == ([f"c{k}" for k in ran.sent[step - 1]] if step else [])


def test_the_words_say_what_moves_and_what_is_complete():
    shown = draw_all_reduce(4, 3)
    assert shown.title == "Step 3 of 6: reduce-scatter"
    assert "rank 0 chunk 1, rank 1 chunk 2, rank 2 chunk 3, rank 3 chunk 0" in shown.words
    assert "Complete sums on rank 0: 1 of 4" in shown.words
    assert "Now rank r has the whole sum of chunk r." in shown.svg
    assert draw_all_reduce(4, 4).title == "Step 4 of 6: all-gather"
    assert "Complete sums on rank 0: 4 of 4" in draw_all_reduce(4, 6).words
    assert "Nothing has been sent" in draw_all_reduce(4, 0).words


@pytest.mark.parametrize("P, complete", [(4, [0, 0, 0, 4, 8, 12, 16]), (2, [0, 2, 4])])
def test_finished_sums_are_green_and_arrivals_are_framed(P, complete):
    for step, green in enumerate(complete):
        whole = ElementTree.fromstring(draw_all_reduce(P, step).svg)
        boxes = [e.get("class") for e in whole.iter() if e.tag.endswith("}rect")]
        frames = [e for e in whole.iter() if e.tag.endswith("}polyline") and e.get("stroke-width") == "3"]
        assert boxes.count("weight") == green + 1 and len(frames) == (P if step else 0) + 1          # 1: the legend's


@pytest.mark.parametrize("P, step", [(4, 7), (4, -1), (2, 3)])
def test_a_step_that_there_is_not_is_refused(P, step):
    with pytest.raises(ValueError, match=f"step={step}: a ring all-reduce on {P} ranks has steps 1 to {2 * P - 2}"):
        draw_all_reduce(P, step)


def test_the_widget_steps_and_its_end_moves_with_the_ranks():
    stepper = AllReduceStepper()
    stepper.controls["step"].value = 6
    assert stepper.shown == draw_all_reduce(4, 6)
    stepper.controls["P"].value = 3
    assert stepper.shown == draw_all_reduce(3, 4) and stepper.controls["step"].max == 4
    stepper.controls["P"].value = 8
    assert stepper.shown == draw_all_reduce(8, 4) and stepper.controls["step"].max == 14
    assert "all-reduce-stepper" in stepper._dom_classes


def test_a_picture_takes_a_few_milliseconds():
    draw_all_reduce(8, 0)
    times = []
    for step in range(15):
        began = time.perf_counter()
        draw_all_reduce(8, step)
        times.append(time.perf_counter() - began)
    assert min(times) < 10e-3
