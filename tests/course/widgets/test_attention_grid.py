"""The grid of attention blocks: what it shows is what the ring computes, counted while it ran."""

from xml.etree import ElementTree

import numpy as np
import pytest

from refimpl import Ledger, run
from refimpl.cost import context as cost
from refimpl.course.widgets import AttentionGrid
from refimpl.course.widgets.attention_grid import LEFT, MOST, SIDE, TOP, balance, draw_grid, efficiency, length
from refimpl.parallel.context_layout import LAYOUTS, all_positions
from refimpl.parallel.ring_attention import ring_attention

ranks = pytest.mark.parametrize("P", range(1, MOST + 1))
layouts = pytest.mark.parametrize("layout", LAYOUTS)
causal = pytest.mark.parametrize("causal", [True, False])


@ranks
@layouts
@causal
def test_the_pairs_are_those_of_the_ring_and_of_the_formula(P, layout, causal):
    s, pairs = length(P), balance(P, layout, causal)
    assert s % (2 * P) == 0 and 16 <= s <= 32
    assert pairs == tuple(tuple(cost.step_pairs(s, P, r, t, layout, causal) for r in range(P)) for t in range(P))
    everybody, log = all_positions(s, P, layout), Ledger()

    def program(comm):
        x = np.ones((1, s // P, 1, 2))
        ring_attention(x[:, :, None], x, x, comm, everybody, causal)

    run(program, P, ledger=log)
    assert [log.flops(rank=r) for r in range(P)] == [4 * 2 * sum(row[r] for row in pairs) for r in range(P)]


@ranks
@layouts
def test_the_efficiency_is_the_formula(P, layout):
    assert efficiency(P, layout, True) == pytest.approx(cost.efficiency(length(P), P, layout), rel=1e-15)
    assert efficiency(P, layout, False) == 1


def boxes(shown):
    """(kind, x, y, width) of the boxes of the grid, in pixels."""
    found = [e for e in ElementTree.fromstring(shown.svg).iter() if e.tag.endswith("}rect") and e.get("x")]
    found = [(e.get("class"), *(float(e.get(name)) for name in ("x", "y", "width"))) for e in found]
    return [(k, x, y, w) for k, x, y, w in found if LEFT <= x < LEFT + SIDE and TOP <= y < TOP + SIDE]


@layouts
@causal
@pytest.mark.parametrize("P, step", [(1, 0), (2, 1), (4, 2), (8, 5)])
def test_each_pair_is_drawn_once_and_as_what_it_is(P, layout, causal, step):
    s, everybody, pairs = length(P), all_positions(length(P), P, layout), balance(P, layout, causal)
    owner = {p: r for r, mine in enumerate(everybody) for p in mine}
    size, drawn = SIDE / s, {}
    for kind, x, y, width in boxes(draw_grid(P, layout, causal, step)):
        row, first = round((y - TOP) / size), round((x - LEFT) / size)
        for column in range(first, first + round((width + 1) / size)):
            assert (row, column) not in drawn
            drawn[row, column] = kind
    assert set(drawn) == {(q, k) for q in range(s) for k in range(s) if k <= q or not causal}
    for (q, k), kind in drawn.items():
        when = (owner[q] - owner[k]) % P
        assert kind == ("forward" if when == step else "idle" if when < step else "plain")
    assert list(drawn.values()).count("forward") == sum(pairs[step])


def test_sorted_by_rank_there_are_as_many_pairs_of_each_kind():
    plain, by_rank = (boxes(draw_grid(4, "zigzag", True, 1, sort)) for sort in (False, True))
    area = lambda found: {kind: round(sum((w + 1) / (SIDE / 16) for k, _, _, w in found if k == kind))
                          for kind in ("forward", "idle", "plain")}
    assert area(plain) == area(by_rank) == {"forward": 32, "idle": 40, "plain": 64}


def test_the_words_say_who_does_what_and_who_waits():
    shown = draw_grid(4, "contiguous", True, 1)
    assert shown.title == "Step 1 of a ring of 4, contiguous, causal: 16 pairs on the busiest rank"
    assert "rank 0 0 with the keys of rank 3, rank 1 16 with the keys of rank 0" in shown.words
    assert "Ranks lose 16 pairs' time" in shown.words and "59%" in shown.words and "0: waits" in shown.svg
    assert "All ranks have the same to do" in draw_grid(4, "zigzag", True, 3).words


@pytest.mark.parametrize("P, step", [(4, 4), (4, -1), (0, 0), (9, 0)])
def test_a_step_that_there_is_not_is_refused(P, step):
    with pytest.raises(ValueError, match=f"step={step} of a ring of {P}"):
        draw_grid(P, step=step)


def test_a_layout_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="nearest 'zigzag'"):
        draw_grid(layout="zigzack")


def test_the_widget_steps_and_its_end_moves_with_the_ranks():
    grid = AttentionGrid()
    grid.controls["step"].value = 3
    assert grid.shown == draw_grid(step=3)
    grid.controls["P"].value = 2
    assert grid.shown == draw_grid(2, step=1) and grid.controls["step"].max == 1
    grid.set(layout="striped", causal=False, sort=True)
    assert grid.shown == draw_grid(2, "striped", False, 1, True) and "attention-grid" in grid._dom_classes
