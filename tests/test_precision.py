"""Storage dtypes: what is stored is the nearest that there is, and what is computed in can hold it."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.precision import LossScale, Precision, add_, narrow, overflow, store_, wide

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


# -- sums -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("total", ["float64", "float32", "float16", "uint16"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16"])
def test_sums_are_of_numbers_whatever_they_are_stored_in(xp, total, dtype):
    """1.5 and 0.25 as bfloat16 bits, added as integers, would be 1.7e38."""
    stored = lambda values, name: narrow(np.array(values, np.float32), np.dtype(name))
    a = device_array(xp, stored([1.5, -3.0], total))
    add_(a, device_array(xp, stored([0.25, 1.0], dtype)))
    assert a.dtype == total
    assert_array_equal(to_host(wide(a)), [1.75, -2.0])


def test_a_sum_in_place_reaches_the_array_that_it_is_a_view_of():
    for dtype in ("float32", "float16", "uint16"):
        room = np.zeros(4, dtype)
        add_(room[1:3].reshape(2, 1), narrow(np.ones((2, 1), np.float32), np.dtype(dtype)))
        assert_array_equal(wide(room), [0, 1, 1, 0])


# -- the master copy --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("precision", "arrays", "nbytes"), [        # Rajbhandari et al. 2020, section 3.1: 16
    (Precision("float16"), ("float16", "float16", "float32"), (2, 2, 4, 8)),
    (Precision("bfloat16"), ("uint16", "uint16", "float32"), (2, 2, 4, 8)),
    (Precision("bfloat16", "float32"), ("uint16", "float32", "float32"), (2, 4, 4, 8)),
    (Precision(), ("float32", "float32", "float32"), (4, 4, 0, 8)),
    (Precision("float64"), ("float64", "float64", "float64"), (8, 8, 0, 16)),
])
def test_a_precision_says_what_arrays_there_are_and_how_large(precision, arrays, nbytes):
    assert (precision.stored, precision.stored_gradients, precision.master) == arrays
    assert tuple(precision.bytes_per_parameter.values()) == nbytes
    assert sum(np.dtype(d).itemsize for d in arrays[:2]) == sum(nbytes[:2])


def test_a_precision_that_is_none_is_named():
    with pytest.raises(ValueError, match="parameters='fp16': expected one of float64, .*; nearest 'float16'"):
        Precision("fp16")
    with pytest.raises(ValueError, match="grad_dtype='bf16': .* nearest 'bfloat16'"):
        Precision("float16", "bf16")


def test_a_parameter_is_stored_as_its_master_rounds(xp):
    master = device_array(xp, np.array([1 + 2.0**-12, 0.1], np.float32))
    for dtype in ("float16", "uint16"):
        p = device_array(xp, np.zeros(2, dtype))
        store_(p, master)
        assert_array_equal(to_host(p), to_host(narrow(master, np.dtype(dtype))))
    store_(master, master)
    assert_array_equal(to_host(master), np.array([1 + 2.0**-12, 0.1], np.float32))


# -- the loss scale ---------------------------------------------------------------------------------------------------

def test_a_scale_halves_at_an_overflow_and_doubles_after_enough_steps_without():
    scale, seen = LossScale(8.0, interval=3), []
    for bad in (False, True, False, False, True, False, False, False, False, True, True):
        scale = scale.after(bad)
        seen.append((scale.value, scale.clean))
    assert seen == [(8, 1), (4, 0), (4, 1), (4, 2), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (2, 0), (1, 0)]


def test_a_scale_stays_where_the_next_one_would_be_inf_or_0():
    """A run whose gradients are all 0, or never finite, ends for another reason."""
    largest, least = LossScale(2.0**1023, interval=1), LossScale(5e-324)
    assert largest.after(False).value == 2.0**1023 and largest.after(True).value == 2.0**1022
    assert least.after(True) == LossScale(5e-324) and least.after(False).clean == 1


def test_a_bfloat16_is_made_of_float32_only(xp):
    with pytest.raises(ValueError, match=r"y has dtype float64: .*; expected y.astype\('float32'\)"):
        narrow(device_array(xp, np.ones(3)), np.dtype("uint16"))


def test_growth_and_backoff_are_the_given_ones():
    scale = LossScale(16.0, growth=4.0, interval=1, backoff=0.25)
    assert (scale.after(False).value, scale.after(True).value) == (64.0, 4.0)
    assert scale == LossScale(16.0, growth=4.0, interval=1, backoff=0.25)             # not changed in place


@pytest.mark.parametrize(("settings", "says"), [
    ({"value": 0.0}, "value=0.0"), ({"value": float("inf")}, "value=inf"), ({"growth": 0.5}, "growth=0.5"),
    ({"interval": 0}, "interval=0: expected a number of steps, 1 or more"), ({"backoff": 1.0}, "backoff=1.0"),
    ({"backoff": float("nan")}, "backoff=nan"),
])
def test_a_scale_that_cannot_be_is_named(settings, says):
    with pytest.raises(ValueError, match=says):
        LossScale(**settings)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint16"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_an_overflow_is_found_wherever_it_is(xp, dtype, bad):
    stored = lambda values: device_array(xp, narrow(np.array(values, np.float32), np.dtype(dtype)))
    fine, empty = stored([6e4, -1e-7, 0.0]), stored([])
    for arrays in ([stored([0.0, bad]), fine], [empty, fine, stored([bad])]):
        assert_array_equal(to_host(overflow(arrays)), np.ones(1, np.float32))
    assert_array_equal(to_host(overflow(x for x in [fine, empty])), np.zeros(1, np.float32))
    assert_array_equal(to_host(overflow([empty])), np.zeros(1, np.float32))
