"""LayerNorm and RMSNorm: values, and each backward against finite differences."""

import numpy as np
import pytest
from drawing import draw, relative
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model import norms
from refimpl.model.finite_differences import check_gradients

LEADING = [(), (1,), (5,), (2, 3), (0,), (2, 0, 3)]


def weights(xp, h, bias):
    return {"w": draw(xp, h, seed=1), "b": draw(xp, h, seed=2) if bias else None}


def test_layer_norm_leaves_mean_0_and_variance_1_before_its_weights(xp):
    x = 5 + 3 * draw(xp, 4, 50)
    y, _ = norms.layer_norm(x, xp.ones(50), xp.zeros(50), eps=0.0)
    y = to_host(y)
    assert abs(y.mean(axis=1)).max() < 1e-14
    assert abs((y * y).mean(axis=1) - 1).max() < 1e-14
    again, _ = norms.layer_norm(x, xp.full(50, 2.0), xp.full(50, 7.0), eps=0.0)
    assert relative(again, 2 * y + 7) < 1e-15


def test_rms_norm_leaves_mean_square_1_and_the_direction(xp):
    x = 5 + 3 * draw(xp, 4, 50)
    y = to_host(norms.rms_norm(x, xp.ones(50), eps=0.0)[0])
    assert abs((y * y).mean(axis=1) - 1).max() < 1e-14
    assert relative(y / np.linalg.norm(y, axis=1)[:, None],
                    to_host(x) / np.linalg.norm(to_host(x), axis=1)[:, None]) < 1e-15


def test_epsilon_is_added_to_the_variance(xp):
    x, one, zero = xp.asarray(np.array([[1.0, -1.0]])), xp.ones(2), xp.zeros(2)           # mean 0, variance 1
    for y in (norms.layer_norm(x, one, zero, eps=3.0)[0], norms.rms_norm(x, one, eps=3.0)[0]):
        assert_array_equal(to_host(y), [[0.5, -0.5]])


def test_a_constant_row_gives_the_bias_and_no_nan(xp):
    y, saved = norms.layer_norm(xp.full((2, 3), 4.0), xp.ones(3), xp.asarray(np.arange(3.0)))
    assert_array_equal(to_host(y), [[0, 1, 2]] * 2)
    assert np.isfinite(to_host(norms.layer_norm_backward(xp.ones((2, 3)), saved)[0])).all()


@pytest.mark.parametrize("bias", [True, False], ids=["layer", "rms"])
@pytest.mark.parametrize("leading", LEADING)
def test_backward_agrees_with_finite_differences(xp, leading, bias):
    inputs = {"x": 2 + draw(xp, *leading, 5)} | {n: w for n, w in weights(xp, 5, bias).items() if w is not None}
    dy = draw(xp, *leading, 5, seed=3)
    whole = norms.layer_norm_backward if bias else norms.rms_norm_backward
    forward = norms.layer_norm if bias else norms.rms_norm
    found = dict(zip(inputs, whole(dy, forward(**inputs)[1]), strict=True))
    check_gradients(lambda **inputs: (forward(**inputs)[0] * dy).sum(), inputs, found)


@pytest.mark.parametrize("bias", [True, False], ids=["layer", "rms"])
def test_the_halves_make_the_whole_bitwise_by_either_name(xp, bias):
    x, dy = draw(xp, 2, 3, 5), draw(xp, 2, 3, 5, seed=3)
    _, saved = norms.norm(x, **weights(xp, 5, bias))
    dx, pending = norms.norm_backward_input(dy, saved)
    dw, db = norms.norm_backward_weight(pending)
    assert (db is not None) == bias
    whole = (norms.layer_norm_backward if bias else norms.rms_norm_backward)(dy, saved)
    for half, other in zip([g for g in (dx, dw, db) if g is not None], whole, strict=True):
        assert_array_equal(to_host(half), to_host(other))


def test_positions_do_not_see_each_other_so_weight_gradients_of_shards_add_up(xp):
    """Sequence parallelism: A11's sum, not its mean."""
    x, dy = draw(xp, 4, 6), draw(xp, 4, 6, seed=1)
    w, b = draw(xp, 6, seed=2), draw(xp, 6, seed=3)
    dx, dw, db = norms.layer_norm_backward(dy, norms.layer_norm(x, w, b)[1])
    parts = slice(3), slice(3, 4)
    shards = [norms.layer_norm_backward(dy[part], norms.layer_norm(x[part], w, b)[1]) for part in parts]
    assert relative(np.concatenate([to_host(s[0]) for s in shards]), dx) < 1e-15
    assert relative(shards[0][1] + shards[1][1], dw) < 1e-15
    assert relative(shards[0][2] + shards[1][2], db) < 1e-15


def test_shapes_that_do_not_fit_are_named(xp):
    for call in (lambda: norms.layer_norm(draw(xp, 2, 3), draw(xp, 4), draw(xp, 3)),
                 lambda: norms.rms_norm(draw(xp, 2, 3), draw(xp, 4))):
        with pytest.raises(ValueError, match=r"norm weights \(4,\) do not fit x \(2, 3\); expected \(3,\)"):
            call()
