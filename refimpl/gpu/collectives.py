"""Every collective on ranks of one process, on the host and on the device: the same bits.

Sums of two numbers are the same everywhere (IEEE 754), and the order of additions is the algorithm's own. So what the
ranks hold after an all-reduce of device arrays is, bit for bit, what they hold after one of host arrays, and the same
on all ranks. A library whose additions round otherwise, or a message that overtakes a kernel, shows here.
"""

import numpy as np

from refimpl import run
from refimpl.arrays import to_device, to_host
from refimpl.collectives import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter
from refimpl.collectives.calls import ALL_REDUCE

ALGORITHMS = sorted(ALL_REDUCE.keys() - {"native"})
DTYPES, RANKS, ELEMENTS = ("float64", "float32", "float16"), (1, 2, 3, 4, 8), 100_003      # a prime: chunks are uneven


def compare(like, elements=ELEMENTS):
    """[{"collective", "dtype", "ranks", "equal"}]: has every rank the bits that it has on the host?"""
    rows = []
    for dtype in DTYPES:
        for P in RANKS:
            there, here = (run(all_of_them, P, dtype, elements, library) for library in (like, np.empty(0)))
            for name in here[0]:
                equal = all(np.array_equal(mine[name], theirs[name]) for mine, theirs in zip(there, here))
                if name in ALGORITHMS:
                    equal = equal and all(np.array_equal(mine[name], there[0][name]) for mine in there)
                rows.append({"collective": name, "dtype": dtype, "ranks": P, "equal": equal})
    return rows


def all_of_them(comm, dtype, elements, like):
    """What one rank holds after each collective: host arrays by name."""
    x = to_device(addend(comm.rank, dtype, elements), like)
    done = {name: all_reduce(x, comm, algorithm=name) for name in ALGORITHMS}
    done["reduce-scatter"] = chunk = reduce_scatter(x, comm)
    done["all-gather"] = all_gather(chunk, comm)
    done["broadcast"] = broadcast(x, comm)
    for k, part in enumerate(all_to_all([x[k::comm.size] for k in range(comm.size)], comm)):
        done[f"all-to-all, from rank {k}"] = part
    return {name: to_host(y) for name, y in done.items()}


def addend(rank, dtype, elements):
    """What rank `rank` brings: the same on every machine."""
    return np.random.default_rng(rank).standard_normal(elements).astype(dtype)
