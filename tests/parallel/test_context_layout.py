"""Who has which positions, and that what belongs to them is cut alike."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.cost import context as cost
from refimpl.parallel.context_layout import (
    LAYOUTS,
    all_positions,
    check_length,
    next_tokens,
    positions,
    shard,
    together,
    unshard,
)
from refimpl.parallel.context_work import sees_any, visible_pairs

every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def test_A18_who_has_what():
    listed = lambda layout: [list(mine) for mine in all_positions(8, 4, layout)]
    assert listed("contiguous") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert listed("striped") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert listed("zigzag") == [[0, 7], [1, 6], [2, 5], [3, 4]]
    assert list(positions(24, 1, 3)) == [4, 5, 6, 7, 16, 17, 18, 19]             # zigzag unless told otherwise


@every_layout
@pytest.mark.parametrize("P", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("each", [0, 2, 4, 10])
def test_every_position_is_had_once_in_ascending_order_and_by_all_ranks_as_many(layout, P, each):
    everybody = all_positions(each * P, P, layout)
    assert [len(mine) for mine in everybody] == [each] * P
    assert all(list(mine) == sorted(mine) for mine in everybody)
    assert together(everybody) == list(range(each * P))


# -- the work of causality --------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("layout", "work"), [
    ("contiguous", [3, 7, 11, 15]), ("striped", [6, 8, 10, 12]), ("zigzag", [9, 9, 9, 9])])
def test_A18_the_pairs_of_each_rank(layout, work):
    everybody = all_positions(8, 4, layout)
    assert [visible_pairs(mine, together(everybody)) for mine in everybody] == work
    assert [cost.pairs(8, 4, rank, layout) for rank in range(4)] == work


@every_layout
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("s", "P"), [(6, 1), (8, 2), (12, 3), (8, 4), (40, 5), (96, 8)])
def test_the_pairs_of_each_step_are_the_formulas(layout, causal, s, P):
    everybody = all_positions(s, P, layout)
    for rank, mine in enumerate(everybody):
        for step in range(P):
            theirs = everybody[(rank - step) % P]
            counted = sum(q >= k or not causal for q in mine for k in theirs)
            assert visible_pairs(mine, theirs, causal) == counted == cost.step_pairs(s, P, rank, step, layout, causal)
            assert sees_any(mine, theirs, causal) == (counted > 0)


@pytest.mark.parametrize(("q", "kv"), [([], [1]), ([1], []), ([], [])])
def test_nobody_sees_nothing(q, kv):
    assert visible_pairs(q, kv) == visible_pairs(q, kv, causal=False) == 0
    assert not sees_any(q, kv) and not sees_any(q, kv, causal=False)


# -- what belongs to positions ----------------------------------------------------------------------------------------

@every_layout
@pytest.mark.parametrize("P", [1, 2, 3, 4])
def test_A18_undoing_the_cut_restores_order(xp, layout, P):
    x = np.arange(2 * 24 * 3).reshape(2, 24, 3)
    everybody = all_positions(24, P, layout)
    shards = [shard(device_array(xp, x), everybody, rank) for rank in range(P)]
    for mine, here in zip(everybody, shards, strict=True):
        assert_array_equal(to_host(here), x[:, list(mine)])
    assert_array_equal(to_host(unshard(shards, everybody)), x)


def test_positions_need_not_begin_at_0_nor_be_as_many_on_each_rank(xp):
    """Of a group of ranks that has a part of the sequence: what a hybrid's Ulysses joins."""
    everybody = [[9, 11, 30], [], [4, 10]]
    x = np.array([[4, 9, 10, 11, 30]])
    shards = [shard(device_array(xp, x), everybody, rank) for rank in range(3)]
    assert [to_host(mine).tolist() for mine in shards] == [[[9, 11, 30]], [[]], [[4, 10]]]
    assert_array_equal(to_host(unshard(shards, everybody)), x)


def test_a_shard_is_a_copy():
    x = np.zeros((1, 4))
    shard(x, all_positions(4, 2, "contiguous"), 0)[...] = 1
    assert not x.any()


def test_targets_are_shifted_before_they_are_cut(xp):
    """Cut first, each rank's last token would be asked for nothing, or for a token that it has not seen."""
    tokens = np.array([[10, 11, 12, 13, 14, 15, 16, 17]])
    targets = next_tokens(device_array(xp, tokens))
    assert_array_equal(to_host(targets), [[11, 12, 13, 14, 15, 16, 17, -1]])
    everybody = all_positions(8, 2, "zigzag")
    assert_array_equal(to_host(shard(targets, everybody, 0)), [[11, 12, 17, -1]])
    assert_array_equal(to_host(shard(targets, everybody, 1)), [[13, 14, 15, 16]])


def test_a_loss_mask_says_which_tokens_are_asked_for(xp):
    tokens, mask = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.uint8), np.array([[1, 0, 1, 1], [1, 1, 0, 0]], bool)
    targets = next_tokens(device_array(xp, tokens), device_array(xp, mask), ignore_index=-7)
    assert_array_equal(to_host(targets), [[-7, 3, 4, -7], [6, -7, -7, -7]])


# -- what cannot be cut -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("length", "P", "layout", "says"), [
    (2999, 4, "zigzag", "sequence=2999 is not divisible by 2 cp = 8, as a zigzag layout needs; pad it to 3000, or cut "
                        "it to 2992"),
    (2999, 4, "striped", "sequence=2999 is not divisible by cp=4; pad it to 3000, or cut it to 2996"),
    (3, 4, "contiguous", "sequence=3 is not divisible by cp=4; pad it to 4$"),
    (-4, 2, "striped", "sequence=-4: expected 0 or more"), (4, 0, "striped", "cp=0: expected 1 or more; nearest 1"),
    (8, 4, "stripped", "layout='stripped': expected one of contiguous, striped, zigzag; nearest 'striped'"),
])
def test_A18_a_length_that_does_not_fit_is_named_with_what_does(length, P, layout, says):
    with pytest.raises(ValueError, match=says):
        check_length(length, P, layout)
    with pytest.raises(ValueError, match=says):
        positions(length, 0, P, layout)


def test_a_rank_that_is_none_and_arrays_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"rank=4 is not one of 4 ranks; expected 0\.\.3"):
        positions(8, 4, 4)
    everybody = all_positions(8, 2)
    with pytest.raises(ValueError, match="x has 7 positions along axis 1; expected 8"):
        shard(np.zeros((1, 7)), everybody, 0)
    with pytest.raises(ValueError, match="the shard of rank 1 has 3 positions along axis 1; expected 4"):
        unshard([np.zeros((1, 4)), np.zeros((1, 3))], everybody)
    with pytest.raises(ValueError, match=r"rank 1 has shape \(2, 4\), that of rank 0 \(1, 4\); expected all axes"):
        unshard([np.zeros((1, 4)), np.zeros((2, 4))], everybody)


@pytest.mark.parametrize(("tokens", "mask", "says"), [
    ((3,), None, r"tokens \(3,\): expected \(b, s\)$"),
    ((2, 4), (2, 3), r"tokens \(2, 4\) with a mask \(2, 3\): expected \(b, s\), both of them"),
    ((2, 4), (4,), r"with a mask \(4,\)")])
def test_tokens_and_mask_have_rows(tokens, mask, says):
    with pytest.raises(ValueError, match=says):
        next_tokens(np.zeros(tokens, int), None if mask is None else np.zeros(mask, bool))


def test_a_sequence_of_nothing_or_of_one_token_asks_for_nothing():
    assert next_tokens(np.zeros((2, 0), int)).shape == (2, 0)
    assert next_tokens(np.zeros((2, 1), int)).tolist() == [[-1], [-1]]
