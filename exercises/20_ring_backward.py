"""Exercise 20: ring attention, backward (lesson 07, about 30 minutes, difficulty 3 of 3).

    step     rank 0    rank 1    rank 2          keys and values go round as in the forward, one rank to the right
    0        kv0       kv1       kv2             in each step
    1        kv2       kv0       kv1
    2        kv1       kv2       kv0             dq of my queries adds up here; dk and dv of the block that is here are
                                                 for another rank: they travel with it, and one step further home

The attention is not causal here and has one head. `block_backward` below does the numbers of one block.

Check it:  python -m refimpl check ring_backward        Stuck:  python -m refimpl hint ring_backward
"""

import numpy as np


def block_backward(dout, q, k, v, out, lse):
    """Of these queries and these keys: their part of dq, dk and dv.  dout, q, out (c, d), lse (c,), k, v (t, d)"""
    p = np.exp(q @ k.T / q.shape[1] ** 0.5 - lse[:, None])          # lse of the whole row: so p is, too
    ds = p * (dout @ v.T - (dout * out).sum(axis=1, keepdims=True)) / q.shape[1] ** 0.5
    return ds @ k, ds.T @ q, p.T @ dout


def ring_backward(dout, q, k, v, out, lse, comm):
    """Gradients of attention over the keys of all ranks.

    dout, q, k, v, out (c, d), lse (c,): the rank's own; out and lse of whole rows, over all keys. c may differ
    between ranks, and an array that is received says its own length
    ->  dq (c, d), dk (c, d), dv (c, d): what all ranks' queries say about this rank's keys and values

    Build it from comm.sendrecv(x, dst=..., src=...), with one neighbour on each side.
    """
    P, right, left = comm.size, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
