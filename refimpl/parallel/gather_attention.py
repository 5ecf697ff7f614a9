"""Attention over gathered keys: every rank gets all keys and values, and computes its own queries' rows at once.

    forward     k, v = all-gather            out = attention(own queries, all keys)
    backward    k, v = all-gather, again     dq; dk, dv of all keys = addends: reduce-scatter, in float32 or wider

It is what Llama 3 does (Grattafiori et al. 2024, section 3.3.2): with few key-value heads the gathered keys are small
beside the queries, and one dense block takes any mask. Sent by a rank: what the ring sends, (P-1) KV forward and
(P-1) KV and gradients backward, KV = 2 b s/P n d elements. But nothing hides it: (P-1) T, and then the work. And while
it computes a rank holds all keys, O(s); between forward and backward, O(s/P), as the keys are gathered once more.
Letters as in ring_attention.py.
"""

from refimpl.arrays import array_namespace
from refimpl.collectives import all_gather, bounds, chunk_sizes, reduce_scatter
from refimpl.model.attention import NO_DROPOUT
from refimpl.model.blockwise import BLOCK
from refimpl.model.blockwise import Saved as BlockSaved
from refimpl.parallel.context_layout import shard, together, unshard
from refimpl.parallel.context_work import attend_block, attend_block_backward, check_block
from refimpl.parallel.ring_attention import Saved, pack_kv, unpack_kv
from refimpl.precision import narrow


def gather_attention(q, k, v, comm, everybody, causal=True, dropout=NO_DROPOUT, block=BLOCK):
    """Softmax attention over the keys of all ranks; arguments and result as of ring_attention.

    Ranks must have as many positions as collectives' chunks have, equal numbers say; else ValueError.
    """
    check_block(q, k, v, comm, everybody, dropout, block)
    _check_chunks(comm, everybody)
    keys, values = _gathered(k, v, comm, everybody)
    mine, all_of_them = everybody[comm.rank], together(everybody)
    out, found = attend_block(q, keys, values, comm, causal, mine, all_of_them, dropout, block)
    out = narrow(out, q.dtype)
    return out, Saved(q, k, v, out, found.lse, comm, everybody, causal, dropout, block)


def gather_attention_backward(dout, saved):
    """dout (b, s_r, n, g, d)  ->  dq (b, s_r, n, g, d), dk, dv (b, s_r, n, d)"""
    q, k, v, out, lse, comm, everybody, causal, dropout, block = saved
    keys, values = _gathered(k, v, comm, everybody)
    mine, all_of_them = everybody[comm.rank], together(everybody)
    found = BlockSaved(q, keys, values, out, lse, causal, mine, all_of_them, dropout, block)
    dq, dk, dv = attend_block_backward(dout, found, comm)
    by_rank = [shard(pack_kv(dk, dv), everybody, rank) for rank in range(comm.size)]
    dk, dv = unpack_kv(reduce_scatter(array_namespace(q).concatenate(by_rank, 1), comm, axis=1))
    return narrow(dq, q.dtype), narrow(dk, k.dtype), narrow(dv, v.dtype)


def _gathered(k, v, comm, everybody):
    """All keys and values, positions ascending: (b, s, n, d), views of one array. One all-gather."""
    blocks = all_gather(pack_kv(k, v), comm, axis=1, algorithm="ring")
    ends = bounds(blocks.shape[1], comm.size)
    return unpack_kv(unshard([blocks[:, a:b] for a, b in zip(ends, ends[1:])], everybody))


def _check_chunks(comm, everybody):
    lengths = tuple(map(len, everybody))
    expected = chunk_sizes(sum(lengths), comm.size)
    if lengths != expected:
        raise ValueError(f"the ranks of {comm.name} have {lengths} positions; expected {expected}, the chunks that a "
                         "reduce-scatter leaves; or use ring_attention, which takes any")
