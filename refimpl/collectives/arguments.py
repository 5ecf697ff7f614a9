"""What the collectives' arguments may be, and how arrays are turned so that the axis in question comes first.

Everything here is checked before a message is sent: ValueError that names the value and the nearest thing that works.
"""

import operator
from difflib import get_close_matches

from refimpl.arrays import array_namespace
from refimpl.collectives.chunks import chunk_sizes


def front(x, axis):
    """View of x with `axis` first."""
    return array_namespace(x).moveaxis(x, axis, 0)


def back(x, axis):
    """View of x with its first axis moved to `axis`."""
    return array_namespace(x).moveaxis(x, 0, axis)


def contiguous(x):
    """x in C order: itself, or a copy."""
    return x if x.flags.c_contiguous else x.copy(order="C")


def apart(x, out):
    """x, or a copy of it where writing `out` could change it."""
    return x.copy() if array_namespace(x).may_share_memory(x, out) else x


def rows_of(out, axis, shape, like):
    """An array to compute into, `axis` first: `out` turned so, where that is in C order, else a new one of `shape`."""
    if out is not None and front(out, axis).flags.c_contiguous:
        return front(out, axis)
    return array_namespace(like).empty((shape[axis], *shape[:axis], *shape[axis + 1:]), like.dtype)


def finished(rows, axis, out):
    """What was computed with `axis` first, as the caller wants it: in `out`, or as an array in C order."""
    if out is None:
        return contiguous(back(rows, axis))
    if not front(out, axis).flags.c_contiguous:
        out[...] = back(rows, axis)
    return out


def other_axes(x, axis):
    """Lengths of all axes but `axis`: what must agree where pieces are joined."""
    return tuple(x.shape[:axis]) + tuple(x.shape[axis + 1:])


def checked_axis(axis, x=None):
    """`axis` counted from the front of x; ValueError when x has no such axis. Without x: any whole number, as it is."""
    try:
        number = operator.index(axis)
    except TypeError:
        raise ValueError(f"axis={axis!r} is not an axis: give a whole number, such as 0") from None
    if x is None:
        return number
    if not -x.ndim <= number < x.ndim:
        hint = f"it has axes 0 to {x.ndim - 1}" if x.ndim else "it has none: reshape it to (1,)"
        raise ValueError(f"axis={axis!r} is not an axis of an array of shape {tuple(x.shape)}: {hint}")
    return number % x.ndim


def checked_root(root, comm):
    """`root` as a plain number; ValueError when it is no rank of the group."""
    try:
        number = operator.index(root)
    except TypeError:
        number = -1
    if not 0 <= number < comm.size:
        raise ValueError(f"root={root!r} is not a rank of {comm.name}: it has ranks 0 to {comm.size - 1}")
    return number


def check_root_gives(x, root, comm, name):
    """ValueError when the root has nothing to send."""
    if comm.rank == root and x is None:
        raise ValueError(f"rank {root} is the root of {name}, and gave None: "
                         "the root gives the array, the others may give None")


def check_out(out, x, shape):
    """ValueError unless a result of `shape`, and otherwise like x, can be put into `out`."""
    if not hasattr(out, "dtype"):
        raise ValueError(f"out={out!r} is not an array: give one of shape {tuple(shape)} and dtype {x.dtype}")
    check_library(x, out)
    if tuple(out.shape) != tuple(shape) or out.dtype != x.dtype:
        raise ValueError(f"out has shape {tuple(out.shape)} and dtype {out.dtype}, "
                         f"the result {tuple(shape)} and {x.dtype}: they must agree")
    if not getattr(out.flags, "writeable", True):
        raise ValueError(f"out, of shape {tuple(out.shape)}, is read-only: "
                         "give an array that may be written, such as x.copy()")


def check_library(*arrays):
    """ValueError unless all arrays are of one library: all on the host, or all on the device."""
    try:
        array_namespace(*arrays)
    except TypeError as error:
        raise ValueError(str(error)) from None


def check_chunk(x, out, axis, comm):
    """ValueError unless x is what this rank brings to an all-gather into `out`: chunk r along `axis`."""
    wanted = f"an array of {out.ndim} axes"
    if x.ndim == out.ndim:
        mine = chunk_sizes(out.shape[axis], comm.size)[comm.rank]
        wanted = (*out.shape[:axis], mine, *out.shape[axis + 1:])
    if tuple(x.shape) != wanted:
        raise ValueError(f"x has shape {tuple(x.shape)}, but to fill an out of shape {tuple(out.shape)} "
                         f"rank {comm.rank} of {comm.size} must bring {wanted}; leave out away for other sizes")


def choose(algorithm, known):
    """ValueError unless `algorithm` is one of the `known` ones."""
    if algorithm not in known:
        near = get_close_matches(algorithm, known, n=1, cutoff=0.3) if isinstance(algorithm, str) else []
        raise ValueError(f"algorithm={algorithm!r} is not known: one of {', '.join(known)} "
                         f"(perhaps {(near or ['auto'])[0]!r}?)")
