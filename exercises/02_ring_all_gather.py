"""Exercise 02: the ring all-gather (lesson 01, about 15 minutes, difficulty 1 of 3).

    0 --c0--> 1        Every rank has one block; at the end every rank is to have them all, in rank order.
    ^         |c1      In each of P-1 steps a rank sends a block to its right neighbour and receives another
  c3|         v        from its left: first its own, then whatever came last.
    3 <--c2-- 2

Check it:  python -m refimpl check ring_all_gather        Stuck:  python -m refimpl hint ring_all_gather
"""

import numpy as np


def ring_all_gather(block, comm):
    """All ranks' blocks, one after the other, on every rank.

    block (m_r,), the rank's own; its length may differ from rank to rank, and may be 0    ->  (sum of all m_r,)
    comm    comm.rank, comm.size, comm.send(a, dst), comm.recv(src), comm.sendrecv(a, dst=..., src=...)

    Sends every block but that of rank r+1, in P-1 messages. A received array says its own length.
    """
    P, r = comm.size, comm.rank
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
