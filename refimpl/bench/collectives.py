"""Reduce-scatter and all-gather: the streamed ring against MPI's own."""

import numpy as np

from refimpl.bench.all_reduce import describe as describe
from refimpl.bench.timing import measure, median, ratio, repeats, touched_zeros
from refimpl.collectives import all_gather, bounds, native, reduce_scatter

SIZES, FULL = "64KiB,1MiB,16MiB,64MiB", "4KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB,256MiB"


def bench(comm, sizes, rounds):
    """Rows as of `bench all-reduce`; the limit is (P-1)/P of a copy, and for reduce-scatter of an addition, too."""
    return {"rows": [row for size in sizes for row in bench_size(comm, size, rounds)]}


def bench_size(comm, size, rounds):
    """The rows of one size."""
    P, r = comm.size, comm.rank
    x, y, z = touched_zeros(3, max(size // 4, P))
    b = bounds(x.size, P)
    chunk = x[b[r]:b[r + 1]].copy()
    variants = {
        "reduce_scatter ring": lambda: reduce_scatter(x, comm, out=chunk),
        "reduce_scatter native": lambda: native.reduce_scatter(x, comm, "sum", chunk),
        "all_gather ring": lambda: all_gather(chunk, comm, out=x, algorithm="ring"),
        "all_gather direct": lambda: all_gather(chunk, comm, out=x, algorithm="direct"),
        "all_gather native": lambda: native.all_gather(chunk, comm, x),
        "copy": lambda: np.copyto(y, z),
        "add": lambda: np.add(y, z, out=y),
    }
    times = measure(comm, variants, rounds, repeats(size))
    share = (P - 1) / P
    limits = {"all_gather": [share * c for c in times["copy"]],
              "reduce_scatter": [share * (c + a) for c, a in zip(times["copy"], times["add"])]}
    rows = []
    for name in variants:
        if " " in name:
            call = name.split()[0]
            rows.append({"size_bytes": x.nbytes, "algorithm": name, "median_s": median(times[name]),
                         "ratio_to_native": ratio(times[name], times[f"{call} native"]),
                         "share_of_limit": ratio(limits[call], times[name])})
    return rows
