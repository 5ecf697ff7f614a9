"""The collectives as one calls them: any shape, any axis, checked arguments, a result of one's own.

    y = all_reduce(x, comm)                  every rank: the sum of the ranks' x
    y = reduce_scatter(x, comm, axis=0)      rank r: chunk r of the sum
    y = all_gather(x, comm, axis=0)          every rank: the ranks' x one behind the other, all_reduce's second half
    parts = all_to_all(parts, comm)          rank r: part r of every rank
    y = broadcast(x, comm, root=0)           gather(x, comm, root=0)           scatter(x, comm, root=0)

The algorithms themselves are in `ring`, `doubling`, `tree` and `all_to_all`. Every rank of the group must make the same
calls in the same order; a rank that does not gets `CollectiveMismatchError`, before anything is added up wrongly.
"""

import operator
from difflib import get_close_matches

from refimpl.arrays import array_namespace
from refimpl.collectives import doubling, native, ring, tree
from refimpl.collectives.all_to_all import all_to_all as exchange
from refimpl.collectives.reduction import check_op
from refimpl.world.communicator import payload

ALL_REDUCE = {
    "ring": ring.all_reduce_, "doubling": doubling.all_reduce_, "native": native.all_reduce_, "auto": ring.all_reduce_}


def all_reduce(x, comm, op="sum", algorithm="auto", out=None):
    """Reduce x over the ranks; every rank gets the result, with the same bits.

    x             array, the same shape and dtype on every rank; a number counts as an array of shape ()
    op            sum | prod | max | min
    algorithm     ring: 2(P-1) messages, 2n - len(chunk r) - len(chunk r+1) elements sent by rank r
                  doubling: about lg P messages of n elements        native: MPI's own        auto: ring
    out           array to put the result in, may be x itself; on all ranks or on none
    Returns an array of x's shape, or `out`. ValueError for a wrong op, algorithm or out.
    """
    x = payload(x)
    check_op(op, x.dtype)
    choose(algorithm)
    if out is None:
        result = x.copy(order="C")
    else:
        check_out(out, x)
        result = out if out.flags.c_contiguous else x.copy(order="C")
        if result is not x:
            result[...] = x
    with comm.collective("all_reduce", bare=out is not None, op=op, algorithm=algorithm, dtype=x.dtype.str,
                         shape=tuple(x.shape)):
        ALL_REDUCE[algorithm](result.reshape(-1), comm, op)
    if out is not None and result is not out:
        out[...] = result
    return result if out is None else out


def reduce_scatter(x, comm, axis=0, op="sum"):
    """Reduce x over the ranks; rank r gets chunk r of the result along `axis`.

    x    array, the same shape and dtype on every rank; chunk k of n is [n*k//P, n*(k+1)//P): sizes may differ by 1
    Rank r sends n - len(chunk r) rows of the axis, in P-1 messages (ring).
    """
    x = payload(x)
    check_op(op, x.dtype)
    axis = checked_axis(axis, x)
    with comm.collective("reduce_scatter", op=op, axis=axis, dtype=x.dtype.str, shape=tuple(x.shape)):
        rows = front(x, axis).copy(order="C")
        return back(ring.reduce_scatter_(rows, comm, op), axis).copy(order="C")


def all_gather(x, comm, axis=0):
    """The ranks' arrays, one behind the other along `axis`, on every rank.

    x    array; its length along `axis` may differ from rank to rank (0 too), all else must agree
    Rank r sends every block but that of rank r+1, in P-1 messages (ring).
    """
    x = payload(x)
    axis = checked_axis(axis, x)
    with comm.collective("all_gather", axis=axis, dtype=x.dtype.str, others=other_axes(x, axis)):
        blocks = ring.all_gather_blocks(front(x, axis), comm)
        return joined(blocks, axis)


def all_to_all(parts, comm):
    """Send parts[k] to rank k; the list of what the ranks sent here, in rank order.

    parts    one array per rank, of any shapes, all of one dtype on all ranks (empty ones too)
    Sends every part but the rank's own, in P-1 messages (pairwise exchange).
    """
    try:
        parts = [payload(p) for p in parts]
    except TypeError:
        raise ValueError(f"parts={parts!r}: all_to_all takes a list of {comm.size} arrays, one for each rank") from None
    if len(parts) != comm.size:
        raise ValueError(f"all_to_all was given {len(parts)} parts, but {comm.name} has {comm.size} ranks: "
                         "one part for each, empty ones too")
    check_library(*parts)
    dtypes = sorted({p.dtype.str for p in parts})
    if len(dtypes) > 1:
        raise ValueError(f"the parts of an all_to_all have dtypes {', '.join(dtypes)}: make them one, with astype")
    with comm.collective("all_to_all", dtype=dtypes[0]):
        return exchange(parts, comm)


def broadcast(x, comm, root=0):
    """The root's array, on every rank: a copy of one's own on each.

    x    array on the root; elsewhere None, or an array of the same shape and dtype
    P-1 messages of n elements, over all ranks (tree).
    """
    root = checked_root(root, comm)
    own = None if x is None else payload(x)
    check_root_gives(own, root, comm, "broadcast")
    dtype, shape = (None, None) if own is None else (own.dtype.str, tuple(own.shape))
    with comm.collective("broadcast", root=root, dtype=dtype, shape=shape):
        result = tree.broadcast(own, comm, root)
    return result.copy(order="C") if comm.rank == root else result


def gather(x, comm, root=0, axis=0):
    """On the root the ranks' arrays, one behind the other along `axis`; None on the others.

    x    array; its length along `axis` may differ from rank to rank (0 too), all else must agree
    P-1 messages, over all ranks; every rank's block travels once up the tree for each level that it climbs.
    """
    root = checked_root(root, comm)
    x = payload(x)
    axis = checked_axis(axis, x)
    with comm.collective("gather", root=root, axis=axis, dtype=x.dtype.str, others=other_axes(x, axis)):
        result = tree.gather(front(x, axis), comm, root)
    return None if result is None else back(result, axis).copy(order="C")


def scatter(x, comm, root=0, axis=0):
    """Rank r's chunk of the root's x along `axis`: chunk k of n is [n*k//P, n*(k+1)//P).

    x    array on the root, None elsewhere    axis    the same number on every rank: not 1 here and -1 there
    P-1 messages, over all ranks (tree).
    """
    root = checked_root(root, comm)
    own = payload(x) if comm.rank == root and x is not None else None
    check_root_gives(own, root, comm, "scatter")
    axis = checked_axis(axis)
    rows = None if own is None else front(own, checked_axis(axis, own))
    length = None if rows is None else rows.shape[0]
    with comm.collective("scatter", root=root, axis=axis, length=length):
        return back(tree.scatter(rows, comm, root), axis).copy(order="C")


# -- axes and arguments -----------------------------------------------------------------------------------------------

def front(x, axis):
    """View of x with `axis` first."""
    return array_namespace(x).moveaxis(x, axis, 0)


def back(x, axis):
    """View of x with its first axis moved to `axis`."""
    return array_namespace(x).moveaxis(x, 0, axis)


def joined(blocks, axis):
    """Blocks that lie along their first axis, joined along `axis`."""
    return back(array_namespace(*blocks).concatenate(blocks), axis).copy(order="C")


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
        raise ValueError(f"rank {root} is the root of {name}, and gave None: the root gives the array, "
                         "the others may give None")


def check_out(out, x):
    """ValueError unless a result like x can be put into `out`."""
    if not hasattr(out, "dtype"):
        raise ValueError(f"out={out!r} is not an array: give one of shape {tuple(x.shape)} and dtype {x.dtype}")
    check_library(x, out)
    if tuple(out.shape) != tuple(x.shape) or out.dtype != x.dtype:
        raise ValueError(f"out has shape {tuple(out.shape)} and dtype {out.dtype}, "
                         f"x has {tuple(x.shape)} and {x.dtype}: they must agree")
    if not getattr(out.flags, "writeable", True):
        raise ValueError(f"out, of shape {tuple(out.shape)}, is read-only: give an array that may be written, "
                         "such as x.copy()")


def check_library(*arrays):
    """ValueError unless all arrays are of one library: all on the host, or all on the device."""
    try:
        array_namespace(*arrays)
    except TypeError as error:
        raise ValueError(str(error)) from None


def choose(algorithm):
    """ValueError unless `algorithm` is one of all_reduce's."""
    if algorithm not in tuple(ALL_REDUCE):
        near = get_close_matches(algorithm, ALL_REDUCE, n=1, cutoff=0.3) if isinstance(algorithm, str) else []
        raise ValueError(f"algorithm={algorithm!r} is not known: one of {', '.join(ALL_REDUCE)} "
                         f"(perhaps {(near or ['auto'])[0]!r}?)")
