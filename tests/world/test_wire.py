"""What goes over the wire: headers, pieces, buffers as MPI wants them."""

import numpy as np
import pytest
from backends import BACKENDS
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.world import wire
from refimpl.world.agreement import common, describe
from refimpl.world.payload import library, misfit, payload

AGREEMENTS = [None, ("barrier", 0, {}), ("all_reduce", 3, {"op": "sum", "dtype": "<f8", "shape": (4, 5), "out": True}),
              ("scatter", 2**40, {"root": 1, "length": None}), ("all_gather", 1, {"others": ()})]


@pytest.mark.parametrize("agreement", AGREEMENTS)
@pytest.mark.parametrize("shape, dtype", [((), "bool"), ((0,), "f2"), ((2, 3, 4), "complex128"), ((1,) * 32, "int8")])
def test_a_header_says_what_was_put_in(xp, agreement, shape, dtype):
    header = wire.encode(xp.zeros(shape, dtype), 12345, agreement)
    assert header.shape == (wire.HEADER_BYTES,) and header.dtype == np.uint8
    assert wire.decode(header) == (np.dtype(dtype), shape, xp.__name__, 12345, agreement)


def test_a_header_that_does_not_fit_is_refused():
    agreement = ("all_reduce", 0, {"note": "x" * wire.HEADER_BYTES})
    with pytest.raises(ValueError, match=r"the header of an array of shape \(3,\) takes .* bytes, 1024 is the most"):
        wire.encode(np.zeros(3), 0, agreement)


@pytest.mark.parametrize("n, limit, expected", [
    (37, 10, [10, 10, 10, 7]), (40, 10, [10] * 4), (10, 10, [10]), (9, 10, [9]), (0, 10, [0]), (3, 1, [1, 1, 1]),
    (5, 2**31 - 1, [5])])
def test_A04_elements_travel_in_pieces_of_at_most_the_limit(n, limit, expected):
    """mpi4py #575, #650: a count of more than 2**31 - 1 elements overflows."""
    cut = wire.pieces(n, limit)
    assert [b - a for a, b in cut] == expected
    assert cut[0][0] == 0 and cut[-1][1] == n and all(b == a for (_, b), (a, _) in zip(cut, cut[1:]))


@pytest.mark.parametrize("text", ["0", "-1", "ten", "1e9", "", "²"])
def test_a_limit_is_a_whole_number_of_elements(monkeypatch, text):
    monkeypatch.setenv("REFIMPL_MPI_MAX_COUNT", text)
    with pytest.raises(ValueError, match=f"REFIMPL_MPI_MAX_COUNT='{text}': must be a whole number of elements, 1"):
        wire.max_count()


def test_the_limit_is_a_signed_32_bit_number_unless_said_otherwise(monkeypatch):
    monkeypatch.delenv("REFIMPL_MPI_MAX_COUNT", raising=False)
    assert wire.max_count() == 2**31 - 1
    monkeypatch.setenv("REFIMPL_MPI_MAX_COUNT", "10")
    assert wire.max_count() == 10


VIEWS = {"plain": lambda x: x, "Fortran": lambda x: x.T, "strided": lambda x: x[:, ::2], "backwards": lambda x: x[::-1],
         "none": lambda x: x[:0]}


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_buffers_that_leave_are_contiguous_and_on_the_host_unless_mpi_reads_devices(xp, view, direct):
    x = VIEWS[view](xp.asarray(np.arange(24.0).reshape(4, 6)))
    buffer = wire.outgoing(x, direct)
    assert buffer.flags.c_contiguous and library(buffer) == (xp.__name__ if direct else "numpy")
    assert_array_equal(to_host(buffer), to_host(x))
    assert buffer is x or xp is not np or view in ("Fortran", "strided", "backwards")


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("view", [None, *VIEWS])
def test_what_comes_in_ends_up_where_it_was_wanted(xp, view, direct):
    """The buffer is `out` itself where MPI can write that; then nothing is copied."""
    data = np.arange(100.0)
    out = None if view is None else VIEWS[view](xp.zeros((4, 6)))
    shape = (2, 3) if out is None else out.shape
    buffer = wire.incoming(shape, np.dtype("float64"), xp.__name__, out, direct)
    assert buffer.flags.c_contiguous and buffer.shape == shape
    assert library(buffer) == (xp.__name__ if direct else "numpy")
    assert (buffer is out) == (view in ("plain", "none") and (direct or xp is np))
    expected = data[:buffer.size].reshape(shape)
    buffer[...] = expected if library(buffer) == "numpy" else xp.asarray(expected)              # MPI does
    got = wire.deliver(buffer, xp.__name__, out)
    assert library(got) == xp.__name__ and (out is None or got is out)
    assert_array_equal(to_host(got), expected)


def test_the_device_has_finished_before_mpi_reads_or_writes_its_memory():
    """Kernels are only queued; a copy that makes an array contiguous is one more of them."""
    fake = BACKENDS["cupy stand-in"]
    x = fake.zeros((4, 6))
    into = lambda out: lambda: wire.incoming((4, 6), x.dtype, "fake_cupy", out, True)
    for touch in (lambda: wire.outgoing(x, True), lambda: wire.outgoing(x.T, True), into(x), into(None)):
        before = fake.cuda.Stream.synchronized
        touch()
        assert fake.cuda.Stream.synchronized > before


# -- payloads and agreements ------------------------------------------------------------------------------------------

def test_a_payload_is_a_plain_array():
    x = np.zeros(3)
    assert payload(x) is x
    y = BACKENDS["cupy stand-in"].zeros(3)
    assert payload(y) is y
    for given in (x.view(np.recarray), np.ma.array(x), [0.0, 0, 0], (0, 0, 0.0)):
        assert type(payload(given)) is np.ndarray and library(payload(given)) == "numpy"
    assert library(np.float64(3) * np.zeros(2)) == library(np.ma.array([1])) == "numpy"


def test_a_message_fits_an_array_of_its_shape_dtype_and_library():
    fake = BACKENDS["cupy stand-in"]
    out = np.zeros((2, 3), "float32")
    f4, f8, sender = np.dtype("float32"), np.dtype("float64"), (4, "tp")
    assert misfit(out, (2, 3), f4, "numpy", *sender) is None
    assert misfit(out.view(np.recarray), (2, 3), f4, "numpy", *sender) is None
    assert misfit(out, (3, 2), f4, "numpy", *sender).startswith("the message of rank 4 of tp has shape (3, 2)")
    assert "dtype float64, but out has shape (2, 3) and dtype float32" in misfit(out, (2, 3), f8, "numpy", *sender)
    assert "array of numpy, but out is one of fake_cupy" in misfit(fake.zeros(2), (2,), f8, "numpy", *sender)


def test_agreements_agree_where_both_know():
    mine = ("broadcast", 1, {"root": 0, "shape": None, "dtype": None})
    theirs = ("broadcast", 1, {"root": 0, "shape": (2,), "dtype": None})
    assert common(theirs, mine) is theirs                            # nothing new: the same object, quick to compare
    assert common(mine, theirs) == theirs
    for other in (("scatter", 1, theirs[2]), ("broadcast", 2, theirs[2]), ("broadcast", 1, {"root": 0}),
                  ("broadcast", 1, theirs[2] | {"root": 1}), ("broadcast", 1, theirs[2] | {"shape": (3,)})):
        assert common(theirs, other) is None and common(other, theirs) is None
    assert describe(theirs) == "broadcast call 1 (root=0, shape=(2,))"
    assert describe(("barrier", 0, {})) == "barrier call 0"
