"""Every collective on ranks of one process, on the host and on the device: the same bits.

Sums of two numbers are the same everywhere (IEEE 754), and the order of additions is the algorithm's own. So what the
ranks hold after an all-reduce of device arrays is, bit for bit, what they hold after one of host arrays, and the same
on all ranks. A library whose additions round otherwise, or a message that overtakes a kernel, shows here.

Every call of `refimpl.collectives`, and the same in the background; every algorithm but MPI's own, and every op. The
ranks are two on a node, or each on its own where that would not come out even: the hierarchical all-reduce crosses.
"""

import numpy as np

from refimpl import run
from refimpl.arrays import array_namespace, to_device, to_host
from refimpl.collectives import (
    all_gather,
    all_gather_start,
    all_reduce,
    all_reduce_start,
    all_to_all,
    all_to_all_start,
    broadcast,
    broadcast_start,
    chunk_sizes,
    gather,
    gather_start,
    reduce_scatter,
    reduce_scatter_start,
    scatter,
    scatter_start,
)
from refimpl.collectives.calls import ALL_GATHER, ALL_REDUCE
from refimpl.collectives.reduction import OPS
from refimpl.layout import Layout
from refimpl.world.mesh import Mesh

ALGORITHMS = sorted(ALL_REDUCE.keys() - {"native"})
DTYPES, RANKS, ELEMENTS = ("float64", "float32", "float16"), (1, 2, 3, 4, 8), 100_003      # a prime: chunks are uneven


def compare(like, elements=ELEMENTS):
    """[{"collective", "dtype", "ranks", "equal"}]: has every rank the bits that it has on the host?"""
    rows = []
    for dtype in DTYPES:
        for P in RANKS:
            there, here = (run(all_of_them, P, dtype, elements, library) for library in (like, np.empty(0)))
            for name in here[0]:
                equal = all(same(mine[name], theirs[name]) for mine, theirs in zip(there, here))
                if name.startswith("all-reduce"):
                    equal = equal and all(same(mine[name], there[0][name]) for mine in there)
                rows.append({"collective": name, "dtype": dtype, "ranks": P, "equal": equal})
    return rows


def same(mine, theirs):
    """Are the host arrays equal, bit by bit? A list of arrays, or None where a rank gets nothing, too."""
    if isinstance(mine, list):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    if mine is None or theirs is None:
        return mine is theirs
    return (mine.shape, mine.dtype, mine.tobytes()) == (theirs.shape, theirs.dtype, theirs.tobytes())


def all_of_them(comm, dtype, elements, like):
    """What one rank holds after each collective: host arrays by name."""
    x, comm = to_device(addend(comm.rank, dtype, elements), like), on_nodes(comm)
    done = {name: fetched(now(**arguments)) for name, now, _, arguments in calls(x, comm)}
    return done | {f"{name}, in the background": fetched(start(**arguments).wait())
                   for name, _, start, arguments in calls(x, comm)}


def calls(x, comm):
    """Of each collective (name, the function, the one that starts it in the background, arguments); x (n,)."""
    last, mine = comm.size - 1, x[:chunk_sizes(len(x), comm.size)[comm.rank]].copy()
    parts = [x[k::comm.size] for k in range(comm.size)]
    yield "all-to-all", all_to_all, all_to_all_start, {"parts": parts, "comm": comm}
    yield "broadcast", broadcast, broadcast_start, {"x": x, "comm": comm, "root": last}
    yield "gather", gather, gather_start, {"x": mine, "comm": comm, "root": last}
    yield "scatter", scatter, scatter_start, {"x": x if comm.rank == last else None, "comm": comm, "root": last}
    yield "all-gather", all_gather, all_gather_start, {"x": mine, "comm": comm}
    for name in ALL_GATHER:
        out = array_namespace(x).zeros_like(x)
        yield (f"all-gather, {name}", all_gather, all_gather_start,
               {"x": mine, "comm": comm, "out": out, "algorithm": name})
    for op in OPS:
        yield f"reduce-scatter, {op}", reduce_scatter, reduce_scatter_start, {"x": x, "comm": comm, "op": op}
        for name in ALGORITHMS:
            yield (f"all-reduce, {name}, {op}", all_reduce, all_reduce_start,
                   {"x": x, "comm": comm, "op": op, "algorithm": name})


def on_nodes(comm):
    """The same ranks, two on a node, or each on its own where they are two or an odd number."""
    return Mesh(comm, Layout(dp=comm.size, node_size=2 if comm.size > 2 and comm.size % 2 == 0 else 1)).dp


def fetched(result):
    """The arrays of a result on the host; None stays."""
    if isinstance(result, list):
        return [fetched(one) for one in result]
    return None if result is None else to_host(result)


def addend(rank, dtype, elements):
    """What rank `rank` brings: the same on every machine."""
    return np.random.default_rng(rank).standard_normal(elements).astype(dtype)
