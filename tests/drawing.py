"""Random inputs for tests of the model, and how far a result is from what it should be."""

import numpy as np
from backends import device_array

from refimpl.arrays import to_host


def draw(xp, *shape, seed=0, dtype="float64", scale=1.0):
    """A normal array of this shape in the library xp; the same for the same shape and seed."""
    host = np.random.default_rng((seed, *shape)).standard_normal(shape)
    return device_array(xp, (scale * host).astype(dtype))


def draw_integers(xp, *shape, below, seed=0):
    """Whole numbers 0 .. below-1."""
    return device_array(xp, np.random.default_rng((seed, *shape)).integers(0, below, shape))


def relative(got, want):
    """||got - want|| / ||want||; 0 where both are empty."""
    got, want = to_host(got).astype(np.float64), to_host(want).astype(np.float64)
    assert got.shape == want.shape
    return np.linalg.norm(got - want) / max(np.linalg.norm(want), np.finfo(np.float64).tiny)
