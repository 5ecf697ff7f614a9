"""Rotary positions: they turn, they keep lengths, and only distances matter."""

import math

import numpy as np
import pytest
from backends import device_array
from drawing import draw, relative
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model.finite_differences import check_gradients
from refimpl.model.rope import rope, rope_backward


def test_a_pair_turns_by_its_position_and_the_next_pair_more_slowly(xp):
    x = device_array(xp, np.array([1.0, 1, 0, 0]).reshape(1, 1, 1, 4))               # pairs (x0, x2) and (x1, x3)
    y = to_host(rope(x, [3], base=100.0)[0])[0, 0, 0]
    want = [math.cos(3), math.cos(0.3), math.sin(3), math.sin(0.3)]                 # 100^(-2/4) = 1/10
    assert np.allclose(y, want, rtol=0, atol=1e-15)


def test_position_0_changes_nothing(xp):
    x = draw(xp, 2, 1, 3, 4)
    assert_array_equal(to_host(rope(x, range(1))[0]), to_host(x))


def test_lengths_stay_and_products_depend_on_the_distance_only(xp):
    q, k = (xp.concatenate([draw(xp, 1, 1, 1, 8, seed=seed)] * 40, 1) for seed in (0, 1))   # the same at 40 positions
    positions = [7 * i + i * i for i in range(40)]
    turned_q, turned_k = to_host(rope(q, positions)[0])[0, :, 0], to_host(rope(k, positions)[0])[0, :, 0]
    lengths = np.linalg.norm(turned_q, axis=-1)
    assert np.allclose(lengths, lengths[0], rtol=1e-14)
    moved_q, moved_k = (to_host(rope(x, [p + 1000 for p in positions])[0])[0, :, 0] for x in (q, k))
    assert relative(moved_q @ moved_k.T, turned_q @ turned_k.T) < 1e-12


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 2, 4), (2, 3, 2, 3, 4), (0, 3, 2, 4), (2, 0, 2, 4), (1, 1, 1, 2)])
def test_backward_agrees_with_finite_differences(xp, shape):
    x, dy = draw(xp, *shape), draw(xp, *shape, seed=1)
    positions = [5, 1, 9][:shape[1]]
    dx = rope_backward(dy, rope(x, positions)[1])
    check_gradients(lambda x: (rope(x, positions)[0] * dy).sum(), {"x": x}, {"x": dx})


def test_positions_may_differ_between_sequences(xp):
    x = draw(xp, 2, 3, 1, 4)
    both, _ = rope(x, [[0, 1, 2], [4, 4, 0]])
    for i, positions in enumerate([[0, 1, 2], [4, 4, 0]]):
        assert_array_equal(to_host(both)[i:i + 1], to_host(rope(x[i:i + 1], positions)[0]))


def test_far_positions_keep_their_digits_in_float32():
    """An angle of 10^6 has no digits after the point left in float32: it is found in float64."""
    x = draw(np, 1, 2, 1, 8)
    far = [999_999, 1_000_000]
    assert relative(rope(x.astype(np.float32), far)[0], rope(x, far)[0]) < 1e-6


@pytest.mark.parametrize(("shape", "positions", "says"), [
    ((1, 2, 3), [0, 1], "a head needs an even number, not 3; nearest 4"),
    ((1, 2, 1, 4), [0, 1, 2], r"positions \(3,\) do not fit x \(1, 2, 1, 4\); expected \(2,\) or \(1, 2\)"),
    ((1, 2, 1, 4), [0.5, 1.0], "whole numbers expected, not float64"),
])
def test_what_does_not_fit_is_named(shape, positions, says):
    with pytest.raises(ValueError, match=says):
        rope(np.zeros(shape), positions)
