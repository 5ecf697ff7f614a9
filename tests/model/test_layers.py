"""Layers: values, and each backward against finite differences."""

import itertools

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model import activations, layers
from refimpl.model.finite_differences import check_gradients

LEADING = [(), (1,), (5,), (2, 3), (0,), (2, 0, 3)]                    # no axes, odd, several, empty
ACTIVATIONS = [(layers.relu, layers.relu_backward), (layers.gelu, layers.gelu_backward),
               (activations.swiglu, activations.swiglu_backward)]


def draw(xp, *shape, seed=0, dtype=np.float64):
    return device_array(xp, np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype))


def relative(got, want):
    return np.linalg.norm(to_host(got) - want) / np.linalg.norm(want)


# Linear.

def test_linear_is_a_product_and_one_bias(xp):
    """The matrix of A09, whole."""
    x, w, b = (device_array(xp, np.array(a, float)) for a in
               ([[1, 2, 3, 4], [2, 0, 1, 1]], np.arange(12).reshape(4, 3), [100, 200, 300]))
    y, _ = layers.linear(x, w, b)
    assert_array_equal(to_host(y), [[160, 270, 380], [115, 219, 323]])
    assert_array_equal(to_host(layers.linear(x, w)[0]), [[60, 70, 80], [15, 19, 23]])


@pytest.mark.parametrize(("leading", "bias"), [*itertools.product(LEADING, [True, False])])
def test_linear_backward_agrees_with_finite_differences(xp, leading, bias):
    inputs = {"x": draw(xp, *leading, 3), "w": draw(xp, 3, 4), **({"b": draw(xp, 4)} if bias else {})}
    dy = draw(xp, *leading, 4, seed=1)

    def loss(x, w, b=None):
        return (layers.linear(x, w, b)[0] * dy).sum()

    dx, dw, db = layers.linear_backward(dy, layers.linear(**inputs)[1])
    assert (db is not None) == bias
    check_gradients(loss, inputs, {"x": dx, "w": dw, **({"b": db} if bias else {})})


@pytest.mark.parametrize("leading", LEADING)
def test_the_halves_of_linear_backward_make_the_whole_bitwise(xp, leading):
    dy = draw(xp, *leading, 4, seed=1)
    _, saved = layers.linear(draw(xp, *leading, 3), draw(xp, 3, 4), draw(xp, 4))
    dx, pending = layers.linear_backward_input(dy, saved)
    halves = dx, *layers.linear_backward_weight(pending)
    for half, whole in zip(halves, layers.linear_backward(dy, saved), strict=True):
        assert_array_equal(to_host(half), to_host(whole))


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (3, 0), (0, 0)])
def test_linear_works_on_an_empty_shard(xp, rows, columns):
    """More ranks than features leave some with none."""
    x, w, b = draw(xp, 5, rows), draw(xp, rows, columns), draw(xp, columns)
    y, saved = layers.linear(x, w, b)
    assert_array_equal(to_host(y), np.broadcast_to(to_host(b), (5, columns)))
    assert [g.shape for g in layers.linear_backward(y, saved)] == [x.shape, w.shape, b.shape]


def test_linear_in_float32_stays_float32_and_near_float64(xp):
    x, w, b, dy = (draw(np, *shape) for shape in [(64, 50), (50, 70), (70,), (64, 70)])
    y, saved = layers.linear(x, w, b)
    single = [device_array(xp, a.astype(np.float32)) for a in (x, w, b, dy)]
    y32, saved32 = layers.linear(*single[:3])
    gradients32, gradients = layers.linear_backward(single[3], saved32), layers.linear_backward(dy, saved)
    for got, want in [(y32, y), *zip(gradients32, gradients, strict=True)]:
        assert got.dtype == np.float32
        assert relative(got, want) < 1e-5


@pytest.mark.parametrize(("shapes", "says"), [
    ([(2, 3), (4, 5)], r"x \(2, 3\) does not fit w \(4, 5\); expected x \(..., I\) and w \(I, O\)"),
    ([(), (4, 5)], r"x \(\) does not fit"),
    ([(2, 4), (4,)], r"w \(4,\)"),
    ([(2, 4), (4, 5), (4,)], r"b \(4,\) does not fit w \(4, 5\); expected b \(5,\), or None"),
])
def test_linear_names_shapes_that_do_not_fit(xp, shapes, says):
    with pytest.raises(ValueError, match=says):
        layers.linear(*(draw(xp, *shape) for shape in shapes))


@pytest.mark.parametrize("leading", LEADING)
def test_a_fused_matrix_keeps_its_shape_in_its_gradient(xp, leading):
    """w (I, 2, H): the same product as with (I, 2 H), and dw, db come back as w and b are."""
    x, w, b, dy = draw(xp, *leading, 3), draw(xp, 3, 2, 4), draw(xp, 2, 4), draw(xp, *leading, 8, seed=1)
    y, saved = layers.linear(x, w, b)
    flat, saved_flat = layers.linear(x, w.reshape(3, 8), b.reshape(8))
    assert_array_equal(to_host(y), to_host(flat))
    for fused, plain in zip(layers.linear_backward(dy, saved), layers.linear_backward(dy, saved_flat), strict=True):
        assert_array_equal(to_host(fused).reshape(plain.shape), to_host(plain))
    assert [g.shape for g in layers.linear_backward(dy, saved)[1:]] == [(3, 2, 4), (2, 4)]


def test_add_is_a_sum_in_the_first_ones_dtype(xp):
    x, y = draw(xp, 2, 3, dtype=np.float32), draw(xp, 2, 3, seed=1, dtype=np.float32)
    assert_array_equal(to_host(layers.add(x, y)), to_host(x) + to_host(y))


# Activations.

def test_relu_keeps_the_positive_and_stops_the_gradient_elsewhere(xp):
    x = device_array(xp, np.array([-2.0, -0.0, 0.0, 3.0]))
    y, saved = layers.relu(x)
    assert_array_equal(to_host(y), [0, 0, 0, 3])
    dy = device_array(xp, np.array([np.inf, 5.0, 6.0, 7.0]))
    assert_array_equal(to_host(layers.relu_backward(dy, saved)), [0, 0, 0, 7])


def test_gelu_is_nearly_x_times_the_normal_distribution(xp):
    x = np.array([-10.0, -1.0, 0.0, 1.0, 10.0])
    y = to_host(layers.gelu(device_array(xp, x))[0])
    assert np.allclose(y, [0, -0.158655, 0, 0.841345, 10], atol=3e-4)            # x * Phi(x)


@pytest.mark.parametrize("scale", [100.0, 1e4])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_swiglu_of_large_gates_is_the_up_side_times_the_gate_or_0_and_overflows_nowhere(xp, scale, dtype):
    """exp(-gate) would: sigmoid is a tanh here."""
    x = device_array(xp, np.array([[scale, -scale, 2, 3]], dtype))
    with np.errstate(all="raise", under="ignore"):
        y, saved = activations.swiglu(x)
        dx = activations.swiglu_backward(device_array(xp, np.ones((1, 2), dtype)), saved)
    assert_array_equal(to_host(y), [[2 * scale, 0]])
    assert_array_equal(to_host(dx), [[2, 0, scale, 0]])


def test_swiglu_needs_pairs():
    with pytest.raises(ValueError, match=r"x \(2, 3\): swiglu takes gate and up side by side.*nearest 4"):
        activations.swiglu(np.zeros((2, 3)))


def test_gelu_keeps_its_input_and_nothing_else():
    """What tanh gave would be as large again: Korthikanti et al. count 8 s b h bytes, not 16."""
    x = draw(np, 4, 5)
    assert layers.gelu(x)[1] is x and activations.swiglu(x[:, :4])[1].base is x


@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize(("forward", "backward"), ACTIVATIONS)
def test_activation_backward_agrees_with_finite_differences(xp, forward, backward, leading):
    x = draw(xp, *leading, 4)                                                    # none within a step of ReLU's kink
    y, saved = forward(x)
    dy = draw(xp, *y.shape, seed=1)
    check_gradients(lambda x: (forward(x)[0] * dy).sum(), {"x": x}, {"x": backward(dy, saved)})


@pytest.mark.parametrize(("forward", "backward"), ACTIVATIONS)
def test_activations_in_float32_stay_float32_and_near_float64(xp, forward, backward):
    x = draw(np, 50, 20)
    y, saved = forward(x)
    dy = draw(np, *y.shape, seed=1)
    y32, saved32 = forward(device_array(xp, x.astype(np.float32)))
    dx32 = backward(device_array(xp, dy.astype(np.float32)), saved32)
    assert y32.dtype == dx32.dtype == np.float32
    assert relative(y32, y) < 1e-5
    assert relative(dx32, backward(dy, saved)) < 1e-5


# One-hot.

def test_one_hot_has_a_one_at_each_id(xp):
    ids = np.array([[2, 0], [1, 2]], np.uint8)
    y = layers.one_hot(device_array(xp, ids), 3, np.float32)
    assert y.dtype == np.float32
    assert_array_equal(to_host(y), np.eye(3)[ids])


def test_one_hot_refuses_an_id_beyond_the_classes():
    with pytest.raises(ValueError, match=r"ids contains 3; expected 0\.\.2, nearest 2"):
        layers.one_hot(np.array([0, 3]), 3, np.float64)
