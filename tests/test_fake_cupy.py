"""The CuPy stand-in catches what CuPy would refuse or quietly do, and lets everything else through."""

import copy
import inspect
import math
import pickle

import fake_cupy as cp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

HOST = np.arange(6.0).reshape(2, 3)


@pytest.fixture
def x():
    return cp.asarray(HOST)


def increment_in_place(x, other):
    x += other


def fill(x, index, value):
    x[index] = value


def multiply_in_place(x):
    x @= x.T


MISTAKES = {
    # Host arrays where device arrays belong.
    "host array added": (lambda x: x + HOST, TypeError, "host array"),
    "added to host array": (lambda x: HOST + x, TypeError, "host array"),
    "host array multiplied": (lambda x: x @ HOST.T, TypeError, "host array"),
    "host array added in place": (lambda x: increment_in_place(x, HOST), TypeError, "host array"),
    "device added to host array in place": (lambda x: increment_in_place(HOST, x), TypeError, "host array"),
    "host array in a function": (lambda x: cp.where(x > 0, x, HOST), TypeError, "host array"),
    "host array in a list": (lambda x: cp.concatenate([x, HOST]), TypeError, "host array"),
    "host array in einsum": (lambda x: cp.einsum("ij,ij->", x, HOST), TypeError, "host array"),
    "host array alone": (lambda x: cp.exp(HOST), TypeError, "host array"),
    "host array as out": (lambda x: cp.add(x, x, out=HOST.copy()), TypeError, "host array"),
    "host array as index": (lambda x: x[np.array([0, 1])], TypeError, "host array"),
    "host array as mask": (lambda x: x[HOST > 2], TypeError, "host array"),
    "host array assigned": (lambda x: fill(x, 0, HOST[0]), ValueError, "host ndarray"),
    "list assigned": (lambda x: fill(x, 0, [1.0, 2.0, 3.0]), ValueError, "host list"),
    "host random numbers": (lambda x: x + np.random.default_rng(0).standard_normal((2, 3)), TypeError, "host array"),
    "host random shuffling": (lambda x: np.random.default_rng(0).permutation(x), TypeError, "implicit conversion"),
    # Device arrays in NumPy's hands.
    "np function": (lambda x: np.sum(x), TypeError, "np.sum called on a device array; use xp.sum"),
    "np ufunc": (lambda x: np.exp(x), TypeError, "np.exp called on a device array; use xp.exp"),
    "np einsum": (lambda x: np.einsum("ij->i", x), TypeError, "np.einsum"),
    "np.asarray": (lambda x: np.asarray(x), TypeError, "implicit conversion"),
    "np.array of a list": (lambda x: np.array([x, x]), TypeError, "implicit conversion"),
    "assigned to host array": (lambda x: fill(HOST.copy(), 0, x[0]), TypeError, "implicit conversion"),
    "compared by numpy.testing": (lambda x: assert_allclose(x, HOST), TypeError, "device array"),
    "buffer for MPI": (lambda x: memoryview(x), TypeError, "bytes-like"),
    "pickled into MPI": (lambda x: pickle.dumps(x), TypeError, "pickling"),
    "pickled in a dict": (lambda x: pickle.dumps({"w": x}), TypeError, "pickling"),
    # Waiting unseen.
    "float": (lambda x: float(x[0, 0]), RuntimeError, "float"),
    "int": (lambda x: int(x[0, 0]), RuntimeError, "int"),
    "item": (lambda x: x.sum().item(), RuntimeError, "item"),
    "tolist": (lambda x: x.tolist(), RuntimeError, "tolist"),
    "tobytes": (lambda x: x.tobytes(), RuntimeError, "tobytes"),
    "if": (lambda x: 1 if (x > 0).any() else 0, RuntimeError, "bool"),
    "in": (lambda x: 3.0 in x, RuntimeError, "bool"),
    "max of Python": (lambda x: max(x[0]), RuntimeError, "bool"),
    "math": (lambda x: math.sqrt(x.sum()), RuntimeError, "float"),
    "formatting": (lambda x: f"{x.sum():.3f}", TypeError, "unsupported format"),
    "allclose": (lambda x: 1 if cp.allclose(x, x) else 0, RuntimeError, "bool"),
    "mask": (lambda x: x[x > 2], RuntimeError, "mask"),
    "nonzero": (lambda x: cp.nonzero(x), RuntimeError, "nonzero"),
    "nonzero method": (lambda x: x.nonzero(), RuntimeError, "nonzero"),
    "where of one": (lambda x: cp.where(x > 0), RuntimeError, "where"),
    "unique": (lambda x: cp.unique(x), RuntimeError, "unique"),
    "bincount": (lambda x: cp.bincount(x[0].astype(int)), RuntimeError, "bincount"),
    "delete": (lambda x: cp.delete(x, 0), RuntimeError, "delete"),
    "arange": (lambda x: cp.arange(x.max()), RuntimeError, "arange.., given a device array as start, waits"),
    "end of arange": (lambda x: cp.arange(0, x.max()), RuntimeError, "as stop, waits"),
    "linspace": (lambda x: cp.linspace(0, x.max(), 3), RuntimeError, "linspace.., given a device array as stop, waits"),
    "repeat": (lambda x: cp.repeat(x, cp.argmax(x[0])), RuntimeError, "repeat.., given a device array as repeats"),
    "repeat method": (lambda x: x.repeat(cp.asarray([1, 2]), axis=0), RuntimeError, "as repeats, waits"),
    "tile": (lambda x: cp.tile(x, (1, x[0, 2])), RuntimeError, "as reps, waits"),
    "axis of concatenate": (lambda x: cp.concatenate([x, x], axis=cp.argmin(x)), RuntimeError, "as axis, waits"),
    # A device number where Python needs one.
    "range": (lambda x: range(cp.argmax(x)), TypeError, "integer"),
    "list index": (lambda x: [1, 2, 3][cp.argmax(x)], TypeError, "ndarray"),
    "slice bound": (lambda x: x[:cp.argmax(x[0])], TypeError, "slice"),
    "zeros": (lambda x: cp.zeros(x[1]), TypeError, "zeros.. takes no device array as shape"),
    "empty": (lambda x: cp.empty((x[0, 1], 3)), TypeError, "empty.. takes no device array as shape"),
    "full": (lambda x: cp.full(shape=cp.argmax(x), fill_value=1.0), TypeError, "full.. takes no device array as shape"),
    "reshape": (lambda x: x.reshape(cp.argmax(x[0]), 3), TypeError, "reshape.. takes no device array as shape"),
    "reshape function": (lambda x: cp.reshape(x, (3, cp.argmax(x[0]))), TypeError, "as shape"),
    "transpose": (lambda x: x.transpose(cp.asarray([1, 0])), TypeError, "transpose.. takes no device array as axes"),
    "split": (lambda x: cp.split(x, cp.argmax(x[0])), TypeError, "split.. takes no device array as indices_or_sect"),
    "array_split": (lambda x: cp.array_split(x, cp.asarray([1])), TypeError, "as indices_or_sections"),
    "broadcast_to": (lambda x: cp.broadcast_to(x, (cp.argmax(x[0]), 2, 3)), TypeError, "as shape"),
    "axis": (lambda x: x.sum(cp.argmin(x)), TypeError, "sum.. takes no device array as axis"),
    "axis by keyword": (lambda x: cp.max(x, axis=cp.argmin(x)), TypeError, "max.. takes no device array as axis"),
    "round": (lambda x: round(x.sum()), TypeError, "__round__"),
    "dict key": (lambda x: {x: 1}, TypeError, "unhashable"),
    # What CuPy has not.
    "matmul in place": (multiply_in_place, TypeError, "write x = x @ y"),
    "absent function": (lambda x: cp.vecdot(x, x), AttributeError, "vecdot"),
    "absent context": (lambda x: cp.errstate(all="ignore"), AttributeError, "errstate"),
    "device random numbers": (lambda x: cp.random.default_rng(0), AttributeError, "random"),
    "scatter by ufunc": (lambda x: cp.add.at(x, 0, 1.0), AttributeError, "at"),
    "absent method": (lambda x: x.setflags(write=False), AttributeError, "setflags"),
    "absent attribute": (lambda x: x.ctypes, AttributeError, "ctypes"),
    "shape assigned": (lambda x: setattr(x, "shape", (6,)), AttributeError, "shape"),
    "where= of a ufunc": (lambda x: cp.exp(x, where=x > 0), TypeError, "exp.. has no keyword argument 'where'"),
    "where= of a function": (lambda x: cp.sum(x, where=x > 0), TypeError, "'where'"),
    "initial= of a method": (lambda x: x.max(initial=0.0), TypeError, "'initial'"),
    "stable=": (lambda x: cp.argsort(x, stable=True), TypeError, "'stable'"),
    "device=": (lambda x: cp.zeros(3, device="gpu"), TypeError, "'device'"),
    "correction=": (lambda x: x.var(correction=1), TypeError, "'correction'"),
    "list for an array": (lambda x: cp.sum([1.0, 2.0]), TypeError, "not lists"),
    # What is undefined.
    "assignment to equal indices": (lambda x: fill(x, (0, cp.asarray([1, 1])), x[0, :2]), ValueError, "equal indices"),
    "increment at equal indices": (lambda x: increment_in_place_at(x[0], cp.asarray([0, 0, 1])), ValueError, "add_at_"),
}


def increment_in_place_at(x, index):
    x[index] += 1.0


@pytest.mark.parametrize("mistake", MISTAKES)
def test_is_caught(mistake, x):
    action, error, says = MISTAKES[mistake]
    with pytest.raises(error, match=says):
        action(x)
    assert_array_equal(cp.asnumpy(x), HOST)


CORRECT = {
    "arithmetic": lambda xp, x: (2.0 * x - 1) / (x + 1) ** 2 + -x // 3 % 2,
    "numpy scalars": lambda xp, x: np.float64(2) * x + x * np.float32(3),
    "comparison": lambda xp, x: (x > 2) & ~(x == 4) | (x < 1),
    "products": lambda xp, x: x @ x.T + xp.einsum("ij,kj->ik", x, x) + xp.matmul(x, x.mT),
    "softmax": lambda xp, x: xp.exp(x - x.max(axis=-1, keepdims=True)) / xp.sum(xp.exp(x), axis=-1, keepdims=True),
    "causal mask": lambda xp, x: xp.where(xp.tril(xp.ones((2, 3), dtype=bool)), x, -xp.inf),
    "shapes": lambda xp, x: xp.permute_dims(x.reshape(3, 2, 1), (2, 0, 1)).transpose(1, 0, 2).swapaxes(0, 1),
    "joining": lambda xp, x: xp.concat([x, xp.stack([x[0], x[1]])], axis=1),
    "indexing": lambda xp, x: x[xp.asarray([1, 0]), 1:] + x[..., None, -1] + x[[0, 1], :2],
    "gathering": lambda xp, x: xp.take_along_axis(x, xp.argsort(-x, axis=-1, kind="stable"), -1),
    "casting": lambda xp, x: x.astype(xp.float32).view(xp.uint32) >> 16,
    "reductions": lambda xp, x: x.sum() + x.mean() + xp.max(x) - xp.prod(x[1]) + x[1, 2],
    "splitting": lambda xp, x: xp.split(x, [1, 2], axis=1)[1],
    "rolling": lambda xp, x: xp.roll(x, x.astype(int)[0, 2], axis=1) + xp.repeat(x[:1], 2, axis=0).reshape(2, 3),
    "padding": lambda xp, x: xp.pad(x, ((0, 1), (2, 0))),
    "searching": lambda xp, x: xp.searchsorted(x[0], xp.arange(3)) + xp.cumsum(x[1]).astype(int),
    "output given": lambda xp, x: xp.add(x, x, out=xp.empty_like(x)),
}


@pytest.mark.parametrize("expression", CORRECT)
def test_ordinary_code_gives_what_numpy_gives(expression, x):
    f = CORRECT[expression]
    got = f(cp, x)
    assert isinstance(got, cp.ndarray)
    assert got.dtype == f(np, HOST).dtype
    assert_array_equal(cp.asnumpy(got), f(np, HOST))


def test_assignment_and_in_place_operations_write_through_views(x):
    view = x[:, 1:]
    view += 1.0
    x[0] = x[1] * 2
    x[:, 0] = 7
    x[1, cp.asarray([0, 2])] = cp.asarray([8.0, 9.0])
    x[x >= 10] = -1.0
    assert_array_equal(cp.asnumpy(x), [[7, -1, -1], [8, 5, 9]])


def test_in_place_operations_keep_the_array_they_were_given(x):
    same = x
    x *= 2
    assert x is same
    assert cp.subtract(x, x, out=x) is x


# Where CuPy and NumPy differ, without an error.

def test_a_reduction_is_an_array_that_changes_in_place(x):
    total = before = x.sum()
    total += 1.0
    assert total is before and total.shape == ()
    assert cp.asnumpy(before) == 16


def test_a_single_item_is_a_view(x):
    item = x[0, 0]
    x[0, 0] = 5.0
    assert cp.asnumpy(item) == 5


def test_elementwise_results_are_in_c_order(x):
    assert (HOST.T + HOST.T).flags.f_contiguous and not (HOST.T + HOST.T).flags.c_contiguous
    assert (x.T + x.T).flags.c_contiguous
    assert x.T.flags.f_contiguous
    assert cp.exp(x.T).flags.c_contiguous
    assert x[:, cp.asarray([2, 1])].flags.c_contiguous and not HOST[:, [2, 1]].flags.c_contiguous


# In and out.

def test_the_ways_in_and_out_copy(x):
    host = HOST.copy()
    there = cp.asarray(host)
    host[:] = 0
    back = there.get()
    back[:] = 1
    assert_array_equal(cp.asnumpy(there), HOST)
    assert cp.asarray(x) is x and cp.array(x) is not x
    assert cp.asarray(x, dtype=cp.float32).dtype == np.float32
    there.set(back)
    assert_array_equal(there.get(out=host), np.ones((2, 3)))
    with pytest.raises(ValueError, match="set.. needs a host array"):
        there.set(back[0])
    for same in (copy.copy(x), copy.deepcopy({"w": x})["w"]):
        same += 1.0
    assert_array_equal(cp.asnumpy(x), HOST)


@pytest.mark.parametrize("name", cp.NUMBERS)
def test_wherever_cupy_wants_a_number_a_device_array_is_refused(name, x):
    assert name in cp.NAMES
    names = [parameter.rstrip("?") for parameter in cp.NUMBERS[name]]
    for k, parameter in enumerate(names):
        if parameter != "_":
            for args, keywords in (([1] * k + [x], {}), ([], {parameter: x})):
                with pytest.raises((TypeError, RuntimeError), match=f"{name}.*device array as {parameter}"):
                    getattr(cp, name)(*args, **keywords)
    try:
        numpys = list(inspect.signature(getattr(np, name)).parameters)
    except ValueError:                                                   # in C, before NumPy 2.4
        return
    assert all(mine == "_" or theirs.startswith(mine) for mine, theirs in zip(names, numpys, strict=False))


def test_waiting_can_be_allowed(x):
    with cp.allow_synchronize():
        assert float(x[1, 2]) == 5.0 and x.sum().item() == 15.0
        assert_array_equal(cp.asnumpy(x[x > 3]), [4, 5])
        assert_array_equal(cp.asnumpy(cp.arange(x[0, 2])), [0, 1])
        with cp.allow_synchronize(False), pytest.raises(RuntimeError):
            bool(x[0, 0])
    with pytest.raises(RuntimeError):
        float(x[1, 2])


def test_showing_an_array_shows_no_values(x):
    assert repr(x) == str(x) == f"{x}" == "<device array (2, 3) float64>"


def test_streams_count_how_often_code_waited():
    before = cp.cuda.Stream.synchronized
    cp.cuda.get_current_stream().synchronize()
    assert cp.cuda.is_available() and cp.cuda.Stream.synchronized == before + 1
