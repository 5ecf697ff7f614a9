"""The check itself must be checked: it passes right gradients and catches wrong ones."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model.finite_differences import check_gradients, numerical_gradients


def cubes(x, y):
    return (x * x * x).sum() + (y * y).sum()


def example(xp):
    rng = np.random.default_rng(0)
    return {"x": device_array(xp, rng.standard_normal((2, 3))), "y": device_array(xp, rng.standard_normal(4))}


def test_central_differences_find_ten_digits_and_leave_the_inputs_alone(xp):
    inputs = example(xp)
    before = {name: to_host(x).copy() for name, x in inputs.items()}
    gradients = numerical_gradients(cubes, {"x": inputs["x"], "y": inputs["y"] * 0})
    want = 3 * before["x"] ** 2
    assert np.linalg.norm(gradients["x"] - want) < 1e-9 * np.linalg.norm(want)
    numerical_gradients(cubes, inputs)
    for name, x in inputs.items():
        assert_array_equal(to_host(x), before[name])


def test_right_gradients_pass(xp):
    inputs = example(xp)
    check_gradients(cubes, inputs, {"x": 3 * inputs["x"] ** 2, "y": 2 * inputs["y"]})
    check_gradients(cubes, inputs, {"y": 2 * inputs["y"]})


def test_a_wrong_element_is_found_and_shown(xp):
    x = example(xp)["x"]
    wrong = 3 * x**2
    wrong[1, 2] += 0.25
    with pytest.raises(AssertionError, match=r"gradient of x is off by .*worst at \(1, 2\)"):
        check_gradients(lambda x: (x**3).sum(), {"x": x}, {"x": wrong})


@pytest.mark.parametrize("spoil", [lambda g: 2 * g, lambda g: g * 0, lambda g: g * np.nan, lambda g: -g])
def test_wrong_gradients_fail(xp, spoil):
    x = example(xp)["x"]
    with pytest.raises(AssertionError, match="gradient of x is off"):
        check_gradients(lambda x: (x**3).sum(), {"x": x}, {"x": spoil(3 * x**2)})


def test_a_wrong_shape_is_named(xp):
    x = example(xp)["x"]
    with pytest.raises(AssertionError, match=r"gradient of x has shape \(3,\); x has \(2, 3\)"):
        check_gradients(lambda x: (x**3).sum(), {"x": x}, {"x": x[0]})


def test_a_gradient_that_is_truly_zero_may_be_rounding_only(xp):
    """Adding c to all logits changes no softmax, so the gradient for c is 0 up to rounding."""
    def loss(x, c):
        z = x + c
        return ((z - z.mean()) ** 2).sum()

    x, c = example(xp)["x"], device_array(xp, np.zeros(1))
    dx = 2 * (x - x.mean())
    check_gradients(loss, {"x": x, "c": c}, {"x": dx, "c": 1e-16 + c})
    with pytest.raises(AssertionError, match="gradient of c"):
        check_gradients(loss, {"x": x, "c": c}, {"x": dx, "c": 1e-3 + c})


def test_single_precision_is_refused():
    with pytest.raises(ValueError, match=r"x is float32; finite differences need float64: x.astype\('float64'\)"):
        numerical_gradients(lambda x: x.sum(), {"x": np.zeros(2, np.float32)})
