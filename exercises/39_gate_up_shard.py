"""Exercise 39: find the bug in a fused matrix (lesson 05, about 15 minutes, difficulty 2 of 3).

    fused (h, 2f):   g0 g1 g2 g3 | u0 u1 u2 u3        y = (silu(x G) * (x U)) D
                                                      rank 0 of 2 needs  g0 g1 u0 u1  and the first two rows of D

Checkpoints keep the gates G and the ups U of a gated MLP side by side, because one product is faster than two. Cut over
the ranks, every shape is right and nothing fails; on one rank the answer is right, too. On two it is nonsense (NVIDIA
NeMo Automodel met this with gates and ups, and with queries, keys and values: PR #1324).

Find out what is wrong, and mend it. Delete the line with NotImplementedError once you have read the code.

Check it:  python -m refimpl check gate_up_shard        Stuck:  python -m refimpl hint gate_up_shard
"""

import numpy as np

from refimpl.collectives import all_reduce
from refimpl.testing import cut


def gate_up_shard(x, fused, down, comm):
    """A gated MLP of a whole checkpoint, tensor-parallel: each rank takes its part of the matrices.

    x (T, h), fused (h, 2f), all gates and then all ups, and down (f, h): the same on every rank
    ->  y (T, h), the same on every rank    `cut(a, axis, rank, size)` is the rank's part of a along that axis
    """
    # YOUR CODE HERE
    raise NotImplementedError("find the bug below, mend it, and delete this line")
    mine = cut(fused, 1, comm.rank, comm.size)
    gate, up = np.split(mine, 2, axis=1)
    # END OF YOUR CODE
    a = x @ gate
    hidden = a / (1 + np.exp(-a)) * (x @ up)
    return all_reduce(hidden @ cut(down, 0, comm.rank, comm.size), comm)
