"""The MLP: its backward, whole and split, and its parameters."""

import itertools

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model import mlp
from refimpl.model.finite_differences import check_gradients


def example(xp, leading=(5,), bias=True, dtype="float64", activation="gelu"):
    """x (..., 3), dy (..., 2) and the parameters of an MLP 3 -> 7 -> 2, biases not zero."""
    rng = np.random.default_rng(7)
    parameters = mlp.init(rng, 3, 7, 2, bias=bias, activation=activation)
    x, dy = rng.standard_normal((*leading, 3)), rng.standard_normal((*leading, 2))
    parameters = {name: device_array(xp, (p + 0.1 * (name[0] == "b")).astype(dtype)) for name, p in parameters.items()}
    return device_array(xp, x.astype(dtype)), device_array(xp, dy.astype(dtype)), parameters


def test_forward_is_the_formula(xp):
    x, _, parameters = example(xp)
    y, _ = mlp.forward(x, parameters, "relu")
    w1, b1, w2, b2 = (to_host(parameters[name]) for name in ("w1", "b1", "w2", "b2"))
    want = np.maximum(to_host(x) @ w1 + b1, 0) @ w2 + b2
    assert np.linalg.norm(to_host(y) - want) <= 1e-13 * np.linalg.norm(want)


@pytest.mark.parametrize(("activation", "leading", "bias"),
                         [*itertools.product(mlp.ACTIVATIONS, [(), (5,), (2, 3), (0,)], [True, False])])
def test_backward_agrees_with_finite_differences(xp, activation, leading, bias):
    x, dy, parameters = example(xp, leading, bias, activation=activation)

    def loss(x, **parameters):
        return (mlp.forward(x, parameters, activation)[0] * dy).sum()

    dx, gradients = mlp.backward(dy, mlp.forward(x, parameters, activation)[1])
    assert gradients.keys() == parameters.keys()
    check_gradients(loss, {"x": x, **parameters}, {"x": dx, **gradients})


def test_a_gated_mlp_multiplies_ups_by_gates(xp):
    """Llama's: silu(x gates) * (x ups), then w2; gates and ups are the two halves of w1's middle axis."""
    x, _, parameters = example(xp, bias=False, activation="swiglu")
    y, _ = mlp.forward(x, parameters, "swiglu")
    w1, w2 = (to_host(parameters[name]) for name in ("w1", "w2"))
    gate, up = to_host(x) @ w1[:, 0], to_host(x) @ w1[:, 1]
    want = gate / (1 + np.exp(-gate)) * up @ w2
    assert w1.shape == (3, 2, 7)
    assert np.linalg.norm(to_host(y) - want) <= 1e-14 * np.linalg.norm(want)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 9])
def test_A14_a_cut_along_the_last_axis_of_w1_keeps_gates_with_their_ups(xp, size):
    """Fused [g0 .. | u0 ..] in two halves would be all gates and all ups. The parts' outputs add up to the whole's."""
    x, _, parameters = example(xp, bias=False, activation="swiglu")
    whole, total = to_host(mlp.forward(x, parameters, "swiglu")[0]), 0
    for rank in range(size):
        mine = slice(7 * rank // size, 7 * (rank + 1) // size)
        part = {"w1": parameters["w1"][:, :, mine], "w2": parameters["w2"][mine]}
        total = total + to_host(mlp.forward(x, part, "swiglu")[0])
    assert np.linalg.norm(total - whole) <= 1e-14 * np.linalg.norm(whole)


@pytest.mark.parametrize("activation", mlp.ACTIVATIONS)
def test_the_halves_of_backward_make_the_whole_bitwise(xp, activation):
    x, dy, parameters = example(xp, activation=activation)
    _, saved = mlp.forward(x, parameters, activation)
    dx, pending = mlp.backward_input(dy, saved)
    whole_dx, whole = mlp.backward(dy, saved)
    assert_array_equal(to_host(dx), to_host(whole_dx))
    halves = mlp.backward_weight(pending)
    assert halves.keys() == whole.keys()
    for name in whole:
        assert_array_equal(to_host(halves[name]), to_host(whole[name]))


def test_float32_stays_float32_and_near_float64(xp):
    y, saved = mlp.forward(*example(np)[::2])
    dx, gradients = mlp.backward(example(np)[1], saved)
    x, dy, parameters = example(xp, dtype="float32")
    y32, saved32 = mlp.forward(x, parameters)
    dx32, gradients32 = mlp.backward(dy, saved32)
    bounds = {"y": 1e-5, "x": 1e-4, **dict.fromkeys(gradients, 1e-4)}
    want = {"y": y, "x": dx, **gradients}
    for name, got in {"y": y32, "x": dx32, **gradients32}.items():
        assert got.dtype == np.float32
        assert np.linalg.norm(to_host(got) - want[name]) <= bounds[name] * np.linalg.norm(want[name])


def test_init_is_repeatable_and_keeps_the_size_of_what_flows():
    first, second = (mlp.init(np.random.default_rng(3), 200, 300, 100, dtype="float32") for _ in range(2))
    shapes = {"w1": (200, 300), "b1": (300,), "w2": (300, 100), "b2": (100,)}
    assert {name: p.shape for name, p in first.items()} == shapes
    for name, p in first.items():
        assert p.dtype == np.float32
        assert_array_equal(p, second[name])
    x = np.random.default_rng(4).standard_normal((1000, 200))
    assert abs((x @ first["w1"]).std() - 1) < 0.05
    assert not first["b1"].any() and not first["b2"].any()
    assert mlp.init(np.random.default_rng(3), 5, 6).keys() == {"w1", "b1", "w2", "b2"}
    assert mlp.init(np.random.default_rng(3), 5, 6)["w2"].shape == (6, 5)


def test_bad_input_is_named(xp):
    x, _, parameters = example(xp)
    with pytest.raises(ValueError, match="activation='Relu': expected one of 'gelu', 'relu', 'swiglu'; nearest 'relu'"):
        mlp.forward(x, parameters, "Relu")
    with pytest.raises(ValueError, match="hidden=0: expected 1 or more"):
        mlp.init(np.random.default_rng(0), 3, 0)
    with pytest.raises(ValueError, match="activation='swigl': .*nearest 'swiglu'"):
        mlp.init(np.random.default_rng(0), 3, 4, activation="swigl")
    with pytest.raises(ValueError, match=r"x \(5, 7\): swiglu takes gate and up side by side, an even number"):
        mlp.forward(x, parameters, "swiglu")
