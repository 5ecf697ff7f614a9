"""Adam: the numbers of its definition, element by element, so that a part's update is the part of the update."""

import math

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model.adam import Adam, Moments, decays, moments, update
from refimpl.model.config import Config, shapes
from refimpl.precision import narrow, wide
from refimpl.testing import relative_difference


def by_definition(w, gradients, adam, decay=True):
    """One number's way through these gradients, in plain Python."""
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
        m = adam.beta1 * m + (1 - adam.beta1) * g
        v = adam.beta2 * v + (1 - adam.beta2) * g**2
        w -= adam.rate * adam.decay * w if decay else 0.0
        w -= adam.rate * (m / (1 - adam.beta1**t)) / (math.sqrt(v / (1 - adam.beta2**t)) + adam.epsilon)
    return w, m, v


SETTINGS = [Adam(), Adam(rate=0.1, beta1=0.5, beta2=0.9, epsilon=1e-3, decay=0.2), Adam(beta1=0.0, beta2=0.0)]


@pytest.mark.parametrize("adam", SETTINGS)
@pytest.mark.parametrize("decay", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float32", 1e-5)])
def test_every_number_goes_the_way_of_the_definition(xp, adam, decay, dtype, tolerance):
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal((3, 2)).astype(dtype), rng.standard_normal((7, 3, 2)).astype(dtype)
    w = device_array(xp, start)
    memory = moments(w)
    for step, g in enumerate(gradients, 1):
        update(w, device_array(xp, g), memory, step, adam, decay)
    expected = np.array([by_definition(float(w0), gradients[(slice(None), *place)].astype(float), adam, decay)
                         for place, w0 in np.ndenumerate(start)]).T.reshape(3, 3, 2)
    for found, right in zip((w, *memory), expected):
        assert found.dtype == dtype and relative_difference(to_host(found), right) < tolerance


def test_the_first_step_is_as_long_as_the_rate_whatever_the_gradient():
    w = np.zeros(3)
    update(w, np.array([1e-3, -5.0, 1e6]), moments(w), 1, Adam(rate=0.25))
    np.testing.assert_allclose(w, [-0.25, 0.25, -0.25], rtol=1e-4)


def test_without_a_gradient_only_decay_moves_a_parameter():
    w = np.ones(2)
    update(w, np.zeros(2), moments(w), 1, Adam(rate=0.5, decay=0.5))
    assert_array_equal(w, [0.75, 0.75])
    update(w, np.zeros(2), moments(w), 1, Adam(rate=0.5, decay=0.5), decay=False)
    assert_array_equal(w, [0.75, 0.75])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gradients_in", ["as they are", "float16", "bfloat16"])
@pytest.mark.parametrize("cuts", [[], [0, 1, 40], [7, 7, 20, 91], list(range(92))])
def test_the_update_of_a_part_is_the_part_of_the_update_to_the_last_bit(xp, dtype, gradients_in, cuts):
    """Parts of any length, at any address, flat or not: what ZeRO's shards rest on."""
    rng, adam = np.random.default_rng(1), Adam(rate=0.03, decay=0.1)
    start = rng.standard_normal((13, 7)).astype(dtype)
    whole, parts = device_array(xp, start), [device_array(xp, p.copy()) for p in np.split(start.reshape(-1), cuts)]
    memory, memories = moments(whole), [moments(part) for part in parts]
    for step in range(1, 5):
        g = rng.standard_normal((13, 7)).astype(dtype)
        if gradients_in != "as they are":
            g = narrow(g.astype("float32"), np.dtype({"float16": "float16", "bfloat16": "uint16"}[gradients_in]))
        update(whole, device_array(xp, g), memory, step, adam)
        for part, piece, mine in zip(parts, np.split(g.reshape(-1), cuts), memories):
            update(part, device_array(xp, piece.copy()), mine, step, adam)
    for found, right in ((parts, whole), ([m.m for m in memories], memory.m), ([m.v for m in memories], memory.v)):
        assert_array_equal(np.concatenate([to_host(x) for x in found]), to_host(right).reshape(-1))
    assert not np.array_equal(to_host(whole), start)


@pytest.mark.parametrize(("dtype", "kept"), [("float64", "float64"), ("float32", "float32"), ("float16", "float32"),
                                             ("uint16", "float32")])
def test_moments_are_zeros_in_float32_or_wider(xp, dtype, kept):
    for array in moments(device_array(xp, np.ones((2, 3), dtype))):
        assert array.shape == (2, 3) and array.dtype == kept and not to_host(array).any()


def test_gradients_of_2_bytes_are_numbers_not_bits():
    for dtype in ("float16", "uint16"):
        g, (w, plain) = narrow(np.float32([0.5, -3.0]), np.dtype(dtype)), np.ones((2, 2), np.float32)
        update(w, g, moments(w), 1, Adam())
        update(plain, wide(g), moments(plain), 1, Adam())
        assert_array_equal(w, plain)


def test_weights_decay_and_norms_and_biases_do_not():
    config = Config("gpt2", vocabulary=3, hidden=4, layers=1, heads=2)
    assert {name for name in shapes(config) if decays(name)} == {
        "embedding.tokens", "embedding.positions", "blocks.0.attention.wqkv", "blocks.0.attention.wo",
        "blocks.0.mlp.w1", "blocks.0.mlp.w2"}


@pytest.mark.parametrize(("settings", "says"), [
    ({"rate": -1.0}, "rate=-1.0: expected a finite number, 0 or more"), ({"rate": math.nan}, "rate=nan"),
    ({"decay": math.inf}, "decay=inf"), ({"beta1": 1.0}, "beta1=1.0: expected at least 0 and less than 1; nearest 0.9"),
    ({"beta2": -0.1}, "beta2=-0.1: .* nearest 0$"), ({"epsilon": 0.0}, "epsilon=0.0: .* nearest 1e-8"),
])
def test_settings_out_of_range_are_named(settings, says):
    with pytest.raises(ValueError, match=says):
        Adam(**settings)


@pytest.mark.parametrize(("change", "says"), [
    ({"gradient": np.ones(2)}, r"gradient has shape \(2,\), its parameter \(3,\)"),
    ({"gradient": np.ones((1, 3))}, "gradient has shape"),
    ({"moments": Moments(np.zeros(3), np.zeros(1))}, r"v has shape \(1,\)"),
    ({"step": 0}, "step=0: Adam counts its steps from 1"),
    ({"parameter": np.ones(3, int)}, "the parameter has dtype int64: expected float32 or float64"),
    ({"parameter": np.ones(3, "float16")}, "dtype float16: .* float32 master copy"),
])
def test_what_does_not_fit_is_refused_before_anything_changes(change, says):
    given = {"parameter": np.ones(3), "gradient": np.ones(3), "moments": moments(np.ones(3)), "step": 1} | change
    with pytest.raises(ValueError, match=says):
        update(**given, adam=Adam())
    assert (given["parameter"] == 1).all() and not np.any(given["moments"].m)
