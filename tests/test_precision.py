"""Storage dtypes: what is stored is the nearest that there is, and what is computed in can hold it."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.precision import narrow, wide

EVERY_BFLOAT16 = np.arange(2**16, dtype=np.uint16)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_computed_in_as_it_is_stored_is_not_even_copied(xp, dtype):
    x = device_array(xp, np.arange(3, dtype=dtype))
    assert wide(x) is x and narrow(x, x.dtype) is x
    assert wide(None) is None


def test_float16_comes_back_from_float32(xp):
    every = EVERY_BFLOAT16.view(np.float16)
    x = wide(device_array(xp, every))
    assert x.dtype == np.float32
    assert_array_equal(to_host(narrow(x, every.dtype)), every)


def test_bfloat16_is_the_upper_half_of_a_float32(xp):
    x = wide(device_array(xp, np.array([0x3F80, 0xC000, 0x3E20, 0x7F80, 0x0001, 0x8000], np.uint16)))
    assert x.dtype == np.float32
    assert_array_equal(to_host(x), [1, -2, 0.15625, np.inf, 2.0**-133, -0.0])


def test_every_bfloat16_comes_back(xp):
    back = to_host(narrow(wide(device_array(xp, EVERY_BFLOAT16)), EVERY_BFLOAT16.dtype))
    nan = (EVERY_BFLOAT16 & 0x7FFF) > 0x7F80
    assert_array_equal(back[~nan], EVERY_BFLOAT16[~nan])
    assert np.isnan(to_host(wide(device_array(xp, back[nan])))).all()


@pytest.mark.parametrize(("x", "bits"), [
    (1 + 2**-9, 0x3F80),                                  # nearer to 1 than to 1 + 2^-7
    (1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82),         # halfway: to the even one
    (1 + 2**-8 + 2**-20, 0x3F81), (2 - 2**-10, 0x4000),   # just above halfway; up into the next power of two
    (3.4e38, 0x7F80), (-1 - 2**-8, 0xBF80), (1e-45, 0x0000)])
def test_bfloat16_rounds_to_nearest_even(xp, x, bits):
    assert to_host(narrow(device_array(xp, np.array([x], np.float32)), np.dtype(np.uint16)))[0] == bits


def test_nan_stays_nan_whatever_its_bits(xp):
    """Rounding could carry a NaN's bits over into -0 or infinity."""
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    x = device_array(xp, bits.view(np.float32))
    assert np.isnan(to_host(wide(narrow(x, np.dtype(np.uint16))))).all()
