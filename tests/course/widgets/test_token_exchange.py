"""The all-to-all matrix: rows that were counted, four times the same ones, and the formula."""

import numpy as np
import pytest

from refimpl.cost import moe as cost
from refimpl.course.widgets import TokenExchange
from refimpl.course.widgets.token_exchange import EXPERTS, HOMEWARD, PHASES, RANKS, draw_exchange, exchanged
from refimpl.parallel import dispatch

ranks = pytest.mark.parametrize("P", RANKS)
skews = pytest.mark.parametrize("skew", [0.0, 3.0])


@ranks
@skews
@pytest.mark.parametrize("tokens, k", [(16, 2), (1, 1), (7, 3)])
def test_rows_go_there_and_back_and_both_again(P, skew, tokens, k):
    ran = exchanged(P, tokens, k, skew)
    there = np.array(ran.rows[dispatch.DISPATCH])
    assert (there.diagonal() == 0).all()
    assert (there.sum(axis=1) + ran.home == tokens * k).all()                       # every choice is somewhere
    for phase, rows in ran.rows.items():
        assert np.array_equal(np.array(rows), there.T if phase in HOMEWARD else there)
    assert ran.counts == 8 * sum(cost.expert_counts(EXPERTS, P, rank) for rank in range(P))


@ranks
@skews
def test_the_rows_are_the_formula_of_the_counts(P, skew):
    ran = exchanged(P, 16, 2, skew)
    counts = np.array(ran.rows[dispatch.DISPATCH]) + np.diag(ran.home)
    for rank in range(P):
        for phase, elements in cost.all_to_alls(counts.tolist(), rank, 1).items():
            assert sum(ran.rows[phase][rank]) == elements


def test_the_words_compare_with_equal_loads():
    shown = draw_exchange()
    assert "With equal loads each rank would send 16 · 2 · 3/4 = 24 rows" in shown.words
    assert cost.balanced_all_to_all(16, 2, 1, 4) == 24
    sent = np.array(exchanged().rows[dispatch.DISPATCH])
    assert f"the busiest port carries {max(sent.sum(axis=0).max(), sent.sum(axis=1).max())}." in shown.words
    assert shown.title == f"dispatch: {sent.sum()} rows travel, {sum(exchanged().home)} stay at home"


def test_the_work_is_the_same_in_all_four():
    works = {draw_exchange(phase=phase).words.rpartition("experts: ")[2] for phase in PHASES.values()}
    assert works == {"63, 41, 18, 6."}


@pytest.mark.parametrize("P, tokens, k", [(3, 16, 2), (4, 0, 2), (4, 16, 0), (4, 16, 9)])
def test_what_cannot_be_run_is_refused(P, tokens, k):
    with pytest.raises(ValueError, match=f"{tokens} tokens on {P} ranks, {k} choices"):
        draw_exchange(P, tokens, k)


def test_the_widget_moves():
    explorer = TokenExchange()
    explorer.set(P=8, tokens=5, k=1, skew=2.0, phase=dispatch.COMBINE)
    assert explorer.shown == draw_exchange(8, 5, 1, 2.0, dispatch.COMBINE)
    assert "token-exchange" in explorer._dom_classes
