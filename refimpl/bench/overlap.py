"""How much of an all-reduce in the background hides behind computation.

    hidden share = (compute + communicate - both at once) / communicate

On the virtual clock it is all of it. Under MPI on shared memory communication is itself work for a core: with as many
busy ranks as cores there is nothing to hide behind, and the figure says so. Between machines, where the network works
on its own, there is.
"""

from functools import partial

import numpy as np

from refimpl.bench.timing import measure, median, size_words
from refimpl.collectives import all_reduce, all_reduce_start
from refimpl.world import Link, Network
from refimpl.world.local import run_local

SIZES, FULL = "16MiB,64MiB", "1MiB,4MiB,16MiB,64MiB,256MiB"


def bench(comm, sizes, rounds):
    """Rows of size_bytes, compute_s, communicate_s, both_s, hidden_share; and hidden_share, their median."""
    rows = [bench_size(comm, size, rounds) for size in sizes]
    return {"rows": rows, "hidden_share": median([row["hidden_share"] for row in rows])}


def bench_size(comm, size, rounds):
    """The row of one size: computation that takes about as long as the all-reduce."""
    x = np.zeros(max(size // 4, 1), np.float32)
    start = partial(all_reduce_start, x, comm, algorithm="ring", out=x)
    products = products_as_long_as(lambda: start().wait(), comm)

    def both():
        request = start()
        compute(products)
        request.wait()

    variants = {"compute": lambda: compute(products), "communicate": lambda: start().wait(), "both": both}
    times = measure(comm, variants, rounds)
    hidden = median([hidden_share(*seconds) for seconds in zip(*times.values())])
    return {"size_bytes": x.nbytes, "hidden_share": hidden} | {f"{name}_s": median(t) for name, t in times.items()}


def hidden_share(compute, communicate, both):
    """What of the communication cost no time, since computation was going on: of seconds each alone, and both at once.

    1: all of it; 0: nothing; below 0: at once takes longer than one after the other.
    """
    return (compute + communicate - both) / communicate


def products_as_long_as(communicate, comm):
    """How many matrix products take about as long as one call of `communicate`; the same number on every rank."""
    times = measure(comm, {"communicate": communicate, "compute": lambda: compute(100)}, rounds=3)
    return max(1, round(100 * median(times["communicate"]) / median(times["compute"])))


def compute(products):
    """Multiply matrices, so many times."""
    a = np.ones((96, 96), np.float32)
    for _ in range(products):
        a @ a


def virtual_hidden_share(P=4, n=2**20):
    """The same question on the virtual clock: compute as long as the all-reduce takes, both at once."""
    network = Network(Link(alpha=5e-6, beta=1e-9))
    x = np.ones(n, np.float32)

    def alone(comm):
        all_reduce(x, comm, algorithm="ring")
        return comm.clock

    def together(comm, seconds):
        request = all_reduce_start(x, comm, algorithm="ring")
        comm.elapse(seconds, "compute")
        request.wait()
        return comm.clock

    seconds = max(run_local(alone, P, network=network))         # the local world, in a rank of an MPI job, too
    both = max(run_local(together, P, (seconds,), network=network))
    return hidden_share(seconds, seconds, both)


def describe(result):
    """The rows as a table, and what they mean."""
    lines = [f"{'size':>8}  {'compute':>10}  {'communicate':>11}  {'both':>10}  {'hidden':>7}"]
    for row in result["rows"]:
        compute, communicate, both = (1e3 * row[f"{name}_s"] for name in ("compute", "communicate", "both"))
        lines.append(f"{size_words(row['size_bytes']):>8}  {compute:>7.2f} ms  {communicate:>8.2f} ms  "
                     f"{both:>7.2f} ms  {row['hidden_share']:>7.0%}")
    lines += ["On shared memory communication is work for a core: with all cores busy there is nothing to hide behind.",
              f"On the virtual clock: {result['virtual_hidden_share']:.0%} hidden."]
    return "\n".join(lines)
