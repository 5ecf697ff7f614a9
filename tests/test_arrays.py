"""Array libraries: telling them apart, moving between them, and scatter-add that accumulates."""

import importlib.machinery
import sys
import types

import fake_cupy
import numpy as np
import pytest
from backends import device_array
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from refimpl import arrays
from refimpl.arrays import (
    add_at_,
    address,
    allocation,
    array_namespace,
    integers,
    is_device,
    synchronize,
    to_device,
    to_host,
    usable_gpu,
)

HOST, DEVICE = np.arange(3.0), fake_cupy.asarray(np.arange(3.0))

# Which library.


def test_arrays_name_their_own_library():
    class Special(np.ndarray):
        pass

    assert array_namespace(HOST) is array_namespace(np.float32(1)) is array_namespace(HOST.view(Special)) is np
    assert array_namespace(DEVICE) is array_namespace(DEVICE, None, DEVICE[0]) is fake_cupy
    assert (is_device(HOST), is_device(DEVICE)) == (False, True)


def test_cupy_is_found_by_its_name_alone(monkeypatch):
    """As CuPy's arrays are: the class says module "cupy", and operators call that module's functions."""
    cupy = types.ModuleType("cupy")
    cupy.ndarray = type("ndarray", (), {"__module__": "cupy"})
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert array_namespace(cupy.ndarray()) is cupy


@pytest.mark.parametrize(("mix", "says"), [
    ((HOST, DEVICE), "arrays of different libraries: fake_cupy and numpy; expected all of one"),
    ((DEVICE, np.float64(2)), "fake_cupy and numpy"),
    ((), "given no array"),
    ((None,), "given no array"),
    (([1.0, 2.0],), r"builtins.list is not an array; .*numpy.asarray"),
    ((HOST, 2.0), "builtins.float is not an array"),
    ((np,), "builtins.module is not an array"),
])
def test_a_mix_is_refused_by_name(mix, says):
    with pytest.raises(TypeError, match=says):
        array_namespace(*mix)


# Host and device.

def test_the_way_to_the_host_copies_only_device_arrays():
    assert to_host(HOST) is HOST
    copy = to_host(DEVICE)
    assert type(copy) is np.ndarray
    copy[:] = 7
    assert_array_equal(to_host(DEVICE), [0, 1, 2])


def test_the_way_to_the_device_follows_the_example():
    assert to_device(HOST, like=np.zeros(1)) is HOST
    there = to_device(HOST, like=DEVICE)
    assert array_namespace(there) is fake_cupy
    assert_array_equal(to_host(there), HOST)
    with pytest.raises(TypeError, match="is on a device already"):
        to_device(DEVICE, like=HOST)


def test_synchronize_waits_for_devices_only():
    before = fake_cupy.cuda.Stream.synchronized
    synchronize(HOST)
    assert fake_cupy.cuda.Stream.synchronized == before
    synchronize(DEVICE)
    assert fake_cupy.cuda.Stream.synchronized == before + 1


def pretend_cupy(monkeypatch, available=True, ones=None):
    """A CuPy for usable_gpu to find: a T4 and an H200, the current one; a 2x2 matrix of ones or what it does."""
    cupy = types.ModuleType("cupy")
    cupy.__spec__, cupy.__version__ = importlib.machinery.ModuleSpec("cupy", None), "14.2.0"
    runtime = types.SimpleNamespace(getDeviceProperties=lambda k: {"name": [b"T4", b"H200"][k]})
    cupy.cuda = types.SimpleNamespace(is_available=lambda: available, runtime=runtime,
                                      Device=lambda: types.SimpleNamespace(id=1))
    cupy.ones = ones or np.ones
    monkeypatch.setitem(sys.modules, "cupy", cupy)


def test_a_gpu_is_usable_when_it_multiplies(monkeypatch):
    pretend_cupy(monkeypatch)
    assert usable_gpu() == (True, "H200")


def test_a_gpu_that_cannot_be_used_says_why(monkeypatch):
    def no_cublas(shape):
        raise RuntimeError("Failure finding libcublasLt.so.13\nmany more lines")

    monkeypatch.setitem(sys.modules, "cupy", None)
    assert usable_gpu() == (False, "CuPy is not installed; pip install -r requirements-gpu.txt "
                                   "(Linux or Windows, NVIDIA GPU)")
    pretend_cupy(monkeypatch, available=False)
    assert usable_gpu() == (False, "CuPy 14.2.0 finds no GPU; install an NVIDIA driver, or use NumPy")
    pretend_cupy(monkeypatch, ones=no_cublas)
    usable, reason = usable_gpu()
    assert not usable
    assert "RuntimeError: Failure finding libcublasLt.so.13; try pip install" in reason
    pretend_cupy(monkeypatch, ones=np.zeros)
    assert usable_gpu()[0] is False


# Scatter-add.

def test_equal_indices_accumulate_A31(xp):
    target = device_array(xp, np.zeros(3))
    result = add_at_(target, device_array(xp, np.array([0, 0, 1])), device_array(xp, np.ones(3)))
    assert result is target
    assert_array_equal(to_host(target), [2, 1, 0])


@pytest.mark.parametrize("inner", [(), (4,), (2, 3)])
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (1, 9), (5, 0), (7, 64), (100, 13), (3, 1000)])
def test_whole_numbers_add_up_exactly(xp, rows, n, inner):
    rng = np.random.default_rng((rows, n))
    target, values = (rng.integers(-9, 9, (length, *inner)).astype(float) for length in (rows, n))
    index = rng.integers(0, rows, n)
    want = target.copy()
    np.add.at(want, index, values)
    got = add_at_(*(device_array(xp, a) for a in (target, index, values)))
    assert_array_equal(to_host(got), want)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 300), st.integers(0, 100))
def test_a_row_gets_the_same_bits_whatever_happens_to_the_others(n, seed):
    """Only a row's own addends and their order count, so a shard of the rows agrees with the whole bit by bit."""
    rng = np.random.default_rng(seed)
    index, values = rng.integers(0, 5, n), rng.standard_normal(n)
    whole = add_at_(np.zeros(5), index, values)
    for row in range(5):
        mine = index == row
        assert add_at_(np.zeros(1), index[mine] * 0, values[mine])[0] == whole[row]


def test_libraries_agree_bitwise():
    rng = np.random.default_rng(0)
    target, index, values = rng.standard_normal((7, 3)), rng.integers(0, 7, 200), rng.standard_normal((200, 3))
    device = add_at_(*(device_array(fake_cupy, a) for a in (target, index, values)))
    assert_array_equal(to_host(device), add_at_(target, index, values))


def test_many_addends_lose_less_than_one_by_one():
    """Pairwise sums: the error grows with log n. 2^20 times 0.1 in float32, one by one, would end 1% off."""
    n = 2**20
    total = add_at_(np.zeros(1, np.float32), np.zeros(n, int), np.full(n, 0.1, np.float32))
    assert total.dtype == np.float32
    assert abs(total[0] / (n * 0.1) - 1) < 1e-6


def test_a_nan_stays_in_its_row(xp):
    index, values = np.array([1, 0, 1, 2]), np.array([np.nan, 1, 2, np.inf])
    got = add_at_(*(device_array(xp, a) for a in (np.zeros(4), index, values)))
    assert_array_equal(to_host(got), [1, np.nan, np.inf, 0])


@pytest.mark.parametrize(("index", "values", "says"), [
    (np.array([0, 3]), np.ones((2, 2)), r"index contains 3; expected 0\.\.2, nearest 2"),
    (np.array([-1, 0]), np.ones((2, 2)), r"index contains -1; expected 0\.\.2, nearest 0"),
    (np.array([0.0, 1.0]), np.ones((2, 2)), "index has dtype float64; expected integers"),
    (np.array([0, 1]), np.ones(2), r"values \(2,\) and index \(2,\) do not fit target \(3, 2\); .*values \(n, 2\)"),
    (np.array([0, 1]), np.ones((3, 2)), r"values \(3, 2\) and index \(2,\)"),
    (np.array([[0, 1]]), np.ones((1, 2, 2)), r"index \(1, 2\)"),
])
def test_what_does_not_fit_is_named_and_changes_nothing(index, values, says):
    target = np.zeros((3, 2))
    with pytest.raises(ValueError, match=says):
        add_at_(target, index, values)
    assert not target.any()


# Memory, and whole numbers.


def test_views_share_their_allocation_and_others_do_not(xp):
    x = xp.zeros((3, 4))
    assert allocation(x) == allocation(x[1]) == allocation(x.T[1:, :1]) == allocation(x.reshape(12)[5:][:2])
    assert allocation(x)[1] == allocation(x[2, 3:])[1] == 96
    others = [x.copy(), x + 0]
    assert len({allocation(y)[0] for y in (x, *others)}) == 3


def test_the_address_of_a_view_says_where_in_the_allocation_it_begins(xp):
    x = xp.zeros((3, 4))
    assert address(x) == allocation(x)[0]
    assert address(x[1, 2:]) - address(x) == 6 * x.itemsize
    assert address(x[::-1]) - address(x) == 8 * x.itemsize


def test_what_is_no_array_has_no_allocation():
    for thing in (1, 2.5, np.float32(1), None, "x", range(3), [1], np.dtype("f4"), np.float16, len):
        assert allocation(thing) is None


@pytest.mark.parametrize("values", [range(2, 9, 3), [2, 5, 8], (2, 5, 8), np.array([2, 5, 8], np.int32), range(0), []])
def test_whole_numbers_arrive_in_the_library_of_the_other_array(xp, values):
    found = integers(values, xp.zeros(1, np.float32))
    assert isinstance(found, xp.ndarray) and found.dtype == np.int64
    assert_array_equal(to_host(found), list(values))


def test_whole_numbers_that_are_there_already_stay(xp):
    there = xp.asarray(np.array([2, 5], np.uint8))
    assert_array_equal(to_host(integers(there, there)), [2, 5])
    with pytest.raises(ValueError, match="whole numbers expected, not float64"):
        integers([0.5], there)


def test_every_public_name_here_is_tested():
    public = {name for name, thing in vars(arrays).items() if isinstance(thing, types.FunctionType) and name[0] != "_"}
    assert public == {"add_at_", "address", "allocation", "array_namespace", "check_indices", "integers", "is_device",
                      "same_device", "synchronize", "to_device", "to_host", "usable_gpu"}
