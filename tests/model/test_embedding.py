"""Embedding and its opposite: values, equal ids, and backward against finite differences."""

import numpy as np
import pytest
from backends import device_array
from drawing import draw, draw_integers
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model import embedding as E
from refimpl.model.finite_differences import check_gradients

LEADING = [(), (1,), (5,), (2, 3), (0,), (2, 0)]


def test_a_row_for_each_id(xp):
    ids = device_array(xp, np.array([[2, 0], [2, 1]], np.uint8))
    y, _ = E.embedding(ids, device_array(xp, np.arange(6.0).reshape(3, 2)))
    assert_array_equal(to_host(y), [[[4, 5], [0, 1]], [[4, 5], [2, 3]]])


def test_A31_gradients_of_equal_ids_accumulate(xp):
    ids = device_array(xp, np.array([0, 0, 1]))
    _, saved = E.embedding(ids, xp.zeros((3, 1)))
    assert_array_equal(to_host(E.embedding_backward(xp.ones((3, 1)), saved)), [[2], [1], [0]])


@pytest.mark.parametrize("leading", LEADING)
def test_embedding_backward_agrees_with_finite_differences(xp, leading):
    w, ids, dy = draw(xp, 4, 3), draw_integers(xp, *leading, below=4), draw(xp, *leading, 3, seed=1)
    dw = E.embedding_backward(dy, E.embedding(ids, w)[1])
    check_gradients(lambda w: (E.embedding(ids, w)[0] * dy).sum(), {"w": w}, {"w": dw})


@pytest.mark.parametrize("leading", LEADING)
def test_unembedding_backward_agrees_with_finite_differences_and_splits_bitwise(xp, leading):
    inputs, dy = {"x": draw(xp, *leading, 3), "w": draw(xp, 4, 3)}, draw(xp, *leading, 4, seed=1)
    y, saved = E.unembedding(**inputs)
    assert y.shape == (*leading, 4)
    dx, dw = E.unembedding_backward(dy, saved)
    check_gradients(lambda x, w: (E.unembedding(x, w)[0] * dy).sum(), inputs, {"x": dx, "w": dw})
    half, pending = E.unembedding_backward_input(dy, saved)
    assert_array_equal(to_host(half), to_host(dx))
    assert_array_equal(to_host(E.unembedding_backward_weight(pending)), to_host(dw))


def test_a_thousand_float16_gradients_of_one_id_do_not_stall():
    """In float16 a sum stops growing at 2048 ones: 2048 + 1 rounds to 2048."""
    ids = np.zeros(5000, np.int64)
    _, saved = E.embedding(ids, np.zeros((1, 1), np.float16))
    dw = E.embedding_backward(np.ones((5000, 1), np.float16), saved)
    assert dw.dtype == np.float16 and dw[0, 0] == 5000


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"ids contains 4; expected 0\.\.3, nearest 3"):
        E.embedding(np.array([[0, 4]]), np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"x \(2, 3\) does not fit w \(5, 4\); expected x \(..., h\) and w \(V, h\)"):
        E.unembedding(np.zeros((2, 3)), np.zeros((5, 4)))
