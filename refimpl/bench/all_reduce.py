"""All-reduce: our algorithms against MPI_Allreduce, and against what memory allows, size by size.

The limit: on one machine every byte that is sent is copied, and every chunk is added P-1 times: 2 (P-1)/P of a copy and
(P-1)/P of an addition of n bytes, both done by all ranks at once, from memory. What is added while it is in the cache
costs less, so that a share above 100% is possible.

On a GPU that all ranks share its memory is the limit alike, if MPI is CUDA-aware; staged through the host it is the bus
between them. MPI's own is not given device arrays.
"""

from functools import partial

from refimpl.arrays import array_namespace, is_device, synchronize
from refimpl.bench.timing import measure, median, ratio, repeats, size_words, touched_zeros
from refimpl.collectives import all_reduce

SIZES, FULL = "4KiB,64KiB,1MiB,16MiB,64MiB", "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,8MiB,16MiB,64MiB,256MiB"
WHOLE = ("doubling", "tree")            # send the whole array each round: left out where that takes seconds
WHOLE_UP_TO = 2**20


def bench(comm, sizes, rounds, like=None):
    """Rows of size_bytes, algorithm, median_s, ratio_to_native (None on a device), share_of_limit (of the memory limit;
    1 is perfect), bus_bytes_per_s (2 (P-1)/P of the array over its time: what a link between two ranks carries).

    like    an array of the library to use; NumPy's unless given
    """
    return {"rows": [row for size in sizes for row in bench_size(comm, size, rounds, like)]}


def bench_size(comm, size, rounds, like=None):
    """The rows of one size."""
    on_host = like is None or not is_device(like)
    x, y, z = touched_zeros(3, max(size // 4, 1), None if on_host else like)
    xp, P = array_namespace(x), comm.size
    algorithms = [*["native"] * on_host, "ring", "rabenseifner", *(WHOLE if size <= WHOLE_UP_TO else ()), "auto"]
    variants = {name: partial(all_reduce, x, comm, algorithm=name, out=x) for name in algorithms}
    variants |= {"copy": lambda: y.__setitem__(..., z), "add": lambda: xp.add(y, z, out=y)}
    times = measure(comm, variants, rounds, repeats(size), lambda: synchronize(x))
    limit = memory_limit(times, P)
    return [{"size_bytes": x.nbytes, "algorithm": name, "median_s": median(times[name]),
             "ratio_to_native": ratio(times[name], times["native"]) if on_host else None,
             "share_of_limit": ratio(limit, times[name]),
             "bus_bytes_per_s": 2 * (P - 1) / P * x.nbytes / median(times[name])} for name in algorithms]


def memory_limit(times, P):
    """Seconds, round by round, that memory needs for an all-reduce over P ranks."""
    return [2 * (P - 1) / P * copy + (P - 1) / P * add for copy, add in zip(times["copy"], times["add"], strict=True)]


def describe(result):
    """The rows as a table."""
    width = max(14, *(len(row["algorithm"]) for row in result["rows"]))
    lines = [f"{'size':>8}  {'algorithm':{width}} {'median':>10}  {'of native':>9}  {'of limit':>9}"]
    for row in result["rows"]:
        native = "" if row["ratio_to_native"] is None else f"{row['ratio_to_native']:.2f}x"
        size, name = size_words(row["size_bytes"]), row["algorithm"]
        lines.append(f"{size:>8}  {name:{width}} {row['median_s'] * 1e3:>7.3f} ms  {native:>9}  "
                     f"{row['share_of_limit']:>9.0%}")
    return "\n".join(lines)
