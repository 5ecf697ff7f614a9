"""What a message looks like on the wire under MPI: a header of fixed size, then the payload in pieces.

    header    [dtype, shape, array library, number of the payload, agreement of the collective]    1024 bytes of JSON
    payload   raw memory in C order, at most `max_count()` elements a piece

MPI sends memory in the order in which it lies: a Fortran-ordered matrix would arrive transposed, a strided slice not at
all. So buffers are made C-contiguous first. A count is a signed 32-bit number in most of MPI, hence the pieces.
"""

import importlib
import json
import os

import numpy as np

from refimpl.arrays import is_device, synchronize, to_device, to_host
from refimpl.world.payload import library

HEADER_BYTES = 1024


def encode(x, number, agreement):
    """The header of array `x` as HEADER_BYTES bytes; ValueError when it does not fit."""
    text = json.dumps([x.dtype.str, x.shape, library(x), number, agreement]).encode()
    if len(text) > HEADER_BYTES:
        raise ValueError(f"the header of an array of shape {x.shape} takes {len(text)} bytes, "
                         f"{HEADER_BYTES} is the most: use fewer axes")
    header = np.full(HEADER_BYTES, ord(" "), np.uint8)
    header[:len(text)] = np.frombuffer(text, np.uint8)
    return header


def decode(header):
    """(dtype, shape, array library, number, agreement) of a header."""
    dtype, shape, kind, number, agreement = json.loads(header.tobytes())
    if agreement is not None:
        name, call, agree = agreement
        agreement = (name, call, {k: tuple(v) if isinstance(v, list) else v for k, v in agree.items()})
    return np.dtype(dtype), tuple(shape), kind, number, agreement


def max_count():
    """Elements that one MPI call may carry: REFIMPL_MPI_MAX_COUNT, or what a signed 32-bit count allows."""
    text = os.environ.get("REFIMPL_MPI_MAX_COUNT", str(2**31 - 1))
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"REFIMPL_MPI_MAX_COUNT={text!r}: must be a whole number of elements, 1 or more")
    return int(text)


def pieces(n, limit):
    """[start, stop) of the pieces in which n elements travel: 37, at most 10 at a time, are 10, 10, 10 and 7."""
    return [(k, min(k + limit, n)) for k in range(0, n, limit)] or [(0, 0)]


def outgoing(x, direct):
    """A C-contiguous buffer that MPI can read: `x` itself where that is one, else a copy.

    direct    MPI reads device memory; else device arrays are staged through page-locked host memory
    """
    if is_device(x) and not direct:
        return x.get(out=page_locked(x.shape, x.dtype)) if library(x) == "cupy" else to_host(x)
    x = x if x.flags.c_contiguous else x.copy(order="C")
    synchronize(x)                                    # kernels that write x must have finished
    return x


def incoming(shape, dtype, kind, out, direct):
    """A C-contiguous buffer that MPI can write: `out` itself where that is one, else a new array of library `kind`."""
    if out is not None and out.flags.c_contiguous and (direct or not is_device(out)):
        synchronize(out)                              # kernels that still read it must have finished
        return out
    if kind == "numpy":
        return np.empty(shape, dtype)
    if direct:
        x = importlib.import_module(kind).empty(shape, dtype)
        synchronize(x)                                # kernels may still use the memory that this is made of
        return x
    return page_locked(shape, dtype) if kind == "cupy" else np.empty(shape, dtype)


def deliver(buffer, kind, out):
    """The received `buffer` as the program wants it: in `out` where given, else as an array of library `kind`."""
    if buffer is out:
        return out
    if out is None:
        return buffer if library(buffer) == kind else importlib.import_module(kind).asarray(buffer)
    out[...] = to_device(buffer, out) if is_device(out) and not is_device(buffer) else buffer
    return out


def page_locked(shape, dtype):
    """Host memory that a GPU reads and writes at full speed, without a hidden copy."""
    import cupyx

    return cupyx.empty_pinned(shape, dtype)
