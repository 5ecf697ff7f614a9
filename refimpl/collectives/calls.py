"""The collectives as one calls them: any shape, any axis, checked arguments, a result of one's own.

    y = all_reduce(x, comm)                  every rank: the sum of the ranks' x
    y = reduce_scatter(x, comm, axis=0)      rank r: chunk r of the sum
    y = all_gather(x, comm, axis=0)          every rank: the ranks' x one behind the other, all_reduce's second half
    parts = all_to_all(parts, comm)          rank r: part r of every rank
    y = broadcast(x, comm, root=0)           gather(x, comm, root=0)           scatter(x, comm, root=0)

The algorithms themselves are in files of their own, one each. Every rank of the group must make the same calls in the
same order; a rank that does not gets `CollectiveMismatchError`, before anything is added up wrongly.
"""

from refimpl.arrays import array_namespace
from refimpl.collectives import direct, doubling, hierarchical, native, rabenseifner, ring, streamed_ring, tree
from refimpl.collectives.all_to_all import all_to_all as exchange
from refimpl.collectives.arguments import (
    apart,
    back,
    check_chunk,
    check_library,
    check_out,
    check_root_gives,
    checked_axis,
    checked_root,
    choose,
    contiguous,
    finished,
    front,
    other_axes,
    rows_of,
)
from refimpl.collectives.choice import pick_all_gather, pick_all_reduce
from refimpl.collectives.chunks import chunk_sizes
from refimpl.collectives.reduction import check_op
from refimpl.world.payload import payload

ALL_REDUCE = {
    "ring": streamed_ring.all_reduce_,
    "doubling": doubling.all_reduce_,
    "rabenseifner": rabenseifner.all_reduce_,
    "tree": tree.all_reduce_,
    "hierarchical": hierarchical.all_reduce_,
    "native": native.all_reduce_,
}
ALL_GATHER = {"ring": streamed_ring.all_gather, "direct": direct.all_gather}


def all_reduce(x, comm, op="sum", algorithm="auto", out=None):
    """Reduce x over the ranks; every rank gets the result, with the same bits.

    x             array, the same shape and dtype on every rank; a number counts as an array of shape ()
    op            sum | prod | max | min
    algorithm     ring: 2(P-1) messages, 2n - len(chunk r) - len(chunk r+1) elements sent by rank r
                  doubling, rabenseifner, tree, hierarchical: see their files        native: MPI's own
                  auto: what is fast for this size and world, see `choice.py`
    out           array to put the result in, may be x itself; on all ranks or on none
    Returns an array of x's shape, or `out`. ValueError for a wrong op, algorithm or out.
    """
    x = payload(x)
    check_op(op, x.dtype)
    choose(algorithm, (*ALL_REDUCE, "auto"))
    if out is not None:
        check_out(out, x, x.shape)
    if out is None or not out.flags.c_contiguous:
        result = x.copy(order="C")
    else:
        result = out
        if out is not x:
            out[...] = x
    with comm.collective("all_reduce", bare=out is not None, op=op, algorithm=algorithm,
                         dtype=x.dtype.str, shape=tuple(x.shape)):
        ALL_REDUCE[pick_all_reduce(x, comm) if algorithm == "auto" else algorithm](result.reshape(-1), comm, op)
    if out is not None and result is not out:
        out[...] = result
    return result if out is None else out


def reduce_scatter(x, comm, axis=0, op="sum", out=None):
    """Reduce x over the ranks; rank r gets chunk r of the result along `axis`.

    x      array, the same shape and dtype on every rank; chunk k of n is [n*k//P, n*(k+1)//P): sizes may differ by 1
    out    array to put the chunk in, may be a part of x; on all ranks or on none
    Rank r sends n - len(chunk r) rows of the axis, in P-1 messages (ring). x stays as it is.
    """
    x = payload(x)
    check_op(op, x.dtype)
    axis = checked_axis(axis, x)
    mine = chunk_sizes(x.shape[axis], comm.size)[comm.rank]
    shape = (*x.shape[:axis], mine, *x.shape[axis + 1:])
    if out is not None:
        check_out(out, x, shape)
        x = apart(x, out)
    with comm.collective("reduce_scatter", bare=out is not None, op=op, axis=axis,
                         dtype=x.dtype.str, shape=tuple(x.shape)):
        result = rows_of(out, axis, shape, x)
        streamed_ring.reduce_scatter(contiguous(front(x, axis)), comm, op, result)
    return finished(result, axis, out)


def all_gather(x, comm, axis=0, out=None, algorithm="auto"):
    """The ranks' arrays, one behind the other along `axis`, on every rank.

    x      array; its length along `axis` may differ from rank to rank (0 too), all else must agree
    out    array to put the result in, x may be a part of it; on all ranks or on none; then rank r must bring chunk r
    algorithm    ring: rank r sends every block but that of rank r+1, in P-1 messages
                 direct (with out): rank r sends its own block P-1 times        auto: see `choice.py`
    """
    x = payload(x)
    axis = checked_axis(axis, x)
    choose(algorithm, (*ALL_GATHER, "auto"))
    if algorithm == "direct" and out is None:
        raise ValueError("algorithm='direct' without out: it receives every block in place; give out, or use 'ring'")
    if out is not None:
        check_out(out, x, getattr(out, "shape", None))
        check_chunk(x, out, axis, comm)
    with comm.collective("all_gather", bare=out is not None, axis=axis, algorithm=algorithm,
                         dtype=x.dtype.str, others=other_axes(x, axis)):
        if out is None:
            result = array_namespace(x).concatenate(ring.all_gather_blocks(front(x, axis), comm))
        else:
            result = rows_of(out, axis, out.shape, x)
            if algorithm == "auto":
                algorithm = pick_all_gather(x, comm)
            ALL_GATHER[algorithm](contiguous(front(x, axis)), comm, result)
    return finished(result, axis, out)


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
