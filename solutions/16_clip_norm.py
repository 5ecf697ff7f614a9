"""Exercise 16: clip by the norm of all gradients (lesson 04, about 15 minutes, difficulty 2 of 3).

    norm = sqrt(sum over all parameters of g^2)              every gradient is multiplied by most / norm, if that is
                                                             below 1
    rank 0 has   3, and 12           3 and 4 are shards of one gradient, 12 is on both ranks
    rank 1 has   4, and 12           norm = sqrt(9 + 16 + 144) = 13

All ranks must come to the same number, or their parameters drift apart. No rank has everything, and some things are on
all of them.

Check it:  python -m refimpl check clip_norm        Stuck:  python -m refimpl hint clip_norm
"""

import numpy as np  # noqa: F401

from refimpl.collectives import all_reduce  # noqa: F401


def clip_norm(sharded, replicated, most, comm):
    """Gradients whose norm is at most `most`.

    sharded (n_r,), this rank's shard, of which other ranks have the rest    replicated (k,), the same on every rank
    most    a number above 0
    ->  sharded (n_r,) and replicated (k,), multiplied by most / norm where the norm is larger than most

    One number has to be sent. `all_reduce(x, comm)` takes a number, too.
    """
    # BEGIN SOLUTION
    norm = np.sqrt(all_reduce((sharded**2).sum(), comm) + (replicated**2).sum())
    factor = most / norm if norm > most else 1.0
    return sharded * factor, replicated * factor
    # END SOLUTION
