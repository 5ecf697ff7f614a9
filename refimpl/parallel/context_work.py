"""A block of queries meets a block of keys: the work that every variant of context parallelism is made of, counted.

    forward 4 d, backward 10 d FLOPs for each head, sequence and pair of a query and a key that it sees

               keys 0 1 2 3        queries 2 and 5 see 3 + 4 = 7 of these 8 pairs; a block of the future has none,
    query 2         x x x .        and is not even looked at
    query 5         x x x x

The FLOPs are declared to the communicator: the ledger counts them and the virtual clock takes its time. What is
computed are tiles (model/blockwise.py): those that causality cuts through are computed whole, and masked.
Backward computes the scores again: 5 products instead of 2. Arrays are computed with in float32 or wider, and what is
not the end yet stays so: partial sums, of outputs and of gradients, are not rounded to 16 bits.
"""

import operator
from bisect import bisect_right
from itertools import chain

from refimpl.model.attention import checked_positions
from refimpl.model.blockwise import BLOCK, blockwise_attention, blockwise_attention_backward
from refimpl.precision import narrow, wide


def visible_pairs(q_positions, kv_positions, causal=True):
    """How many pairs of a query and a key that it sees. Positions ascending."""
    if not causal:
        return len(q_positions) * len(kv_positions)
    if not sees_any(q_positions, kv_positions):
        return 0
    if kv_positions[-1] <= q_positions[0]:
        return len(q_positions) * len(kv_positions)
    return sum(bisect_right(kv_positions, p) for p in q_positions)


def sees_any(q_positions, kv_positions, causal=True):
    """Whether there is such a pair: else the block can be passed over. Positions ascending."""
    if not len(q_positions) or not len(kv_positions):
        return False
    return not causal or kv_positions[0] <= q_positions[-1]


def attend_block(q, k, v, comm, causal, q_positions, kv_positions, dropout, block=BLOCK):
    """blockwise_attention, in float32 or wider, with its FLOPs declared.

    q (b, s, n, g, d)    k, v (b, t, n, d)    ->  out (b, s, n, g, d), saved: of these keys alone
    """
    out, saved = blockwise_attention(wide(q), wide(k), wide(v), causal, q_positions, kv_positions, dropout, block)
    comm.compute(4 * _heads_times_d(q) * visible_pairs(q_positions, kv_positions, causal), "attention")
    return out, saved


def attend_block_backward(dout, saved, comm):
    """blockwise_attention_backward, in float32 or wider, with its FLOPs declared.

    dout (b, s, n, g, d)    saved as from attend_block, with the out and lse of whole rows
    ->  these keys' part of dq (b, s, n, g, d), and dk, dv (b, t, n, d)
    """
    pairs = visible_pairs(saved.q_positions, saved.kv_positions, saved.causal)
    saved = saved._replace(q=wide(saved.q), k=wide(saved.k), v=wide(saved.v))
    gradients = blockwise_attention_backward(wide(dout), saved)
    comm.compute(10 * _heads_times_d(saved.q) * pairs, "attention backward")
    return gradients


def local_core(comm, block=BLOCK):
    """Blockwise attention of what this rank has, with its FLOPs declared, by the signatures of model/attention.py."""

    def forward(q, k, v, causal, q_positions, kv_positions, dropout):
        out, saved = attend_block(q, k, v, comm, causal, q_positions, kv_positions, dropout, block)
        return narrow(out, q.dtype), saved._replace(q=q, k=k, v=v, out=narrow(out, q.dtype))

    def backward(dout, saved):
        gradients = attend_block_backward(dout, saved, comm)
        return [narrow(gradient, x.dtype) for gradient, x in zip(gradients, (saved.q, saved.k, saved.v), strict=True)]

    return forward, backward


def check_block(q, k, v, comm, everybody, dropout, block=BLOCK):
    """ValueError unless q, k and v are what this rank has of a sequence dealt out so: before anything is sent."""
    checked_positions(q, k, v, None, None)
    if len(everybody) != comm.size:
        raise ValueError(f"positions of {len(everybody)} ranks are given, but {comm.name} has {comm.size}; expected "
                         "every rank's: context_layout.all_positions(length, comm.size, layout)")
    check_dealt(everybody)
    mine = len(everybody[comm.rank])
    if not q.shape[1] == k.shape[1] == mine:
        raise ValueError(f"rank {comm.rank} of {comm.size} has {mine} positions, but q {q.shape} and k {k.shape}; "
                         f"expected {mine} along axis 1")
    b, _, n, g, _ = q.shape
    if dropout.rate and (len(dropout.sequences), len(dropout.heads)) != (b, n * g):
        raise ValueError(f"dropout numbers {len(dropout.sequences)} sequences and {len(dropout.heads)} heads, but q "
                         f"{q.shape} has {b} and {n * g}")
    check_tiles(block)


def check_dealt(everybody):
    """ValueError unless each rank's positions ascend and no two are the same."""
    for rank, mine in enumerate(everybody):
        if not all(map(operator.lt, mine, mine[1:])):
            raise ValueError(f"rank {rank} is given positions {list(mine[:8])}, which do not ascend; expected "
                             f"{sorted(set(mine))[:8]}, and arrays in that order")
    if len(set(chain(*everybody))) < sum(map(len, everybody)):
        raise ValueError("two ranks are given the same position; expected each of them once: "
                         "context_layout.all_positions(length, comm.size, layout)")


def check_tiles(block):
    """ValueError unless a tile has positions."""
    if block < 1:
        raise ValueError(f"block={block}: expected 1 or more positions; nearest 1")


def _heads_times_d(q):
    """b n g d: what a pair of positions costs, in products, is twice that."""
    b, _, n, g, d = q.shape
    return b * n * g * d
