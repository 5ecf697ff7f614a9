"""Which algorithm `auto` takes.

Counted runs, and all runs in this process: recursive doubling for small arrays (fewest messages), a ring for large ones
(fewest bytes), the same in both worlds, so that counts can be compared. Under MPI, uncounted arrays of the host: below
4 MiB MPI's own, from there on Rabenseifner's (a ring's bytes in fewer rounds; a ring, if the ranks are no power of
two); but only where `out` is given, since MPI's own cannot find out that ranks disagree, and not in the background,
where it would spin. The constants are read off

    python -m refimpl bench all-reduce --full --ranks 2    (and 4)
"""

from refimpl.arrays import is_device

DOUBLING_UP_TO = 4 * 1024               # bytes; counted
OURS_FROM = 4 * 2**20                   # bytes; uncounted: from here ours are faster, on 2 ranks and on 4; where other
                                        # programs use the same cache, from 16 MiB


def pick_all_reduce(x, comm):
    """The name of the all-reduce that `auto` stands for: all ranks come to the same one."""
    if uncounted(x, comm):
        power_of_two = comm.size & (comm.size - 1) == 0
        return "native" if x.nbytes < OURS_FROM else "rabenseifner" if power_of_two else "ring"
    return "doubling" if x.nbytes <= DOUBLING_UP_TO else "ring"


def pick_all_gather(x, comm):
    """The same for an all-gather with `out`. On 2 ranks the two are one exchange, and the ring's has fewer requests."""
    return "direct" if uncounted(x, comm) and comm.size > 2 else "ring"


def uncounted(x, comm):
    """Whether MPI's own will do: x, on the host, travels under MPI, nobody counts, nobody checks, and it may spin."""
    return comm.bare and comm.native and comm.me.ledger is None and not is_device(x)
