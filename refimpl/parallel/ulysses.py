"""Ulysses: positions are exchanged for heads, each rank computes whole sequences of some heads, and back.

    its positions, all heads    -- q k v: to rank k its heads ---->    all positions, its heads:
    its positions, all heads    <-- out: to rank k its positions --    attention as on one device

    8 query heads on 2 key-value heads, 4 ranks      rank 0: q0 q1 k0 v0   1: q2 q3 k0 v0   2: q4 q5 k1 v1   ...
    more ranks than key-value heads: each is sent to all that need it; their dk, dv come home as addends

Sent by a rank, n_u = max(n, P) key-value heads with their copies: (P-1)/P b s/P d (n g + 2 n_u) forward for q, k, v,
and (P-1)/P b s/P d n g for out; backward the same. With one key-value head for each query head that is 4 b s h / P a
layer, each way, where the other variants send the more the more ranks there are; but nothing hides it, and there may
be no more ranks than query heads. (Jacobs et al. 2023, DeepSpeed-Ulysses.)

What is between the all-to-alls is any attention that has the signature of model/attention.py: blockwise, or a ring
over the ranks that have the same heads (`hybrid` in context.py; Fang & Zhao 2024, USP).
Letters as in ring_attention.py. A rank's part of q, k and v is (b, s, n_r, g_r + 2, d), as wqkv's columns: one message.
"""

from typing import NamedTuple

from refimpl.arrays import array_namespace
from refimpl.collectives import all_to_all
from refimpl.model.attention import NO_DROPOUT
from refimpl.parallel.context_layout import shard, together, unshard
from refimpl.parallel.context_work import check_block, local_core
from refimpl.precision import narrow, wide


class Saved(NamedTuple):
    """What backward needs: what the attention between kept, of all positions and the rank's heads."""

    inner: object
    inner_backward: object
    comm: object
    everybody: object
    n: int                                                 # key-value heads of all ranks


def ulysses_attention(q, k, v, comm, everybody, causal=True, dropout=NO_DROPOUT, inner=None):
    """Softmax attention over the keys of all ranks.

    q (b, s_r, n, g, d)    k, v (b, s_r, n, d)    ->  out (b, s_r, n, g, d), saved
    everybody, causal, dropout    as in ring_attention
    inner     (forward, backward) with the signatures of model/attention.py, for all positions and some heads;
              blockwise, with its FLOPs declared, if None
    Raises ValueError, before anything is sent, for heads that cannot be dealt out, naming what can.
    """
    check_block(q, k, v, comm, everybody, dropout)
    _, _, n, g, _ = q.shape
    check_heads(n * g, n, comm.size)
    forward, backward = local_core(comm) if inner is None else inner
    parts = [columns(q, k, v, rank, comm.size) for rank in range(comm.size)]
    qkv = unshard(all_to_all(parts, comm), everybody)
    dropout, everything = _of_rank(dropout, n * g, comm.rank, comm.size), together(everybody)
    out, saved = forward(*_split(qkv), causal, everything, everything, dropout)
    return _to_positions(out, comm, everybody, n), Saved(saved, backward, comm, everybody, n)


def ulysses_attention_backward(dout, saved):
    """dout (b, s_r, n, g, d)  ->  dq (b, s_r, n, g, d), dk, dv (b, s_r, n, d)"""
    inner, backward, comm, everybody, n = saved
    parts = [_query_heads(dout, rank, comm.size) for rank in range(comm.size)]
    gradients = _join(*backward(unshard(all_to_all(parts, comm), everybody), inner))
    parts = all_to_all([shard(gradients, everybody, rank) for rank in range(comm.size)], comm)
    dq, dk, dv = zip(*map(_split, parts))
    return _heads_together(dq, n), *(_copies_summed(parts, n) for parts in (dk, dv))


def check_heads(heads, kv_heads, size):
    """ValueError unless each of `size` ranks gets as many query heads, of whole groups or of one: names what works."""
    if heads % size or (kv_heads % size and size % kv_heads):
        works = [k for k in range(1, heads + 1) if heads % k == 0 and (kv_heads % k == 0 or k % kv_heads == 0)]
        *most, last = map(str, works)
        raise ValueError(f"heads={heads} on kv_heads={kv_heads} cannot be dealt out to ulysses={size} ranks; ulysses "
                         f"may be {', '.join(most) + ' or ' if most else ''}{last}, with a ring over the others")


# Which heads a rank has: of q (b, s, n, g, d) whole groups, or, of more ranks than groups, a part of one


def _groups(n, rank, size):
    """(slice of the n key-value heads, how many ranks share one)"""
    share = max(size // n, 1)
    first, each = rank // share, max(n // size, 1)
    return slice(first * each, (first + 1) * each), share


def _query_heads(x, rank, size):
    """x (b, s, n, g, d)  ->  the rank's (b, s, n_r, g_r, d), a view"""
    groups, share = _groups(x.shape[2], rank, size)
    each = x.shape[3] // share
    place = rank % share
    return x[:, :, groups, each * place:each * (place + 1)]


def columns(q, k, v, rank, size):
    """The heads of `rank` of `size`: q (b, s, n, g, d), k, v (b, s, n, d)  ->  (b, s, n_r, g_r + 2, d), a copy"""
    groups, _ = _groups(k.shape[2], rank, size)
    return _join(_query_heads(q, rank, size), k[:, :, groups], v[:, :, groups])


def _join(q, k, v):
    """q (b, s, n, g, d), k, v (b, s, n, d)  ->  (b, s, n, g + 2, d)"""
    return array_namespace(q).concatenate([q, k[:, :, :, None], v[:, :, :, None]], 3)


def _split(qkv):
    """_join's inverse: views"""
    return qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]


def _of_rank(dropout, heads, rank, size):
    """The dropout of the rank's query heads."""
    each = heads // size
    return dropout._replace(heads=dropout.heads[each * rank:each * (rank + 1)])


# And back


def _to_positions(out, comm, everybody, n):
    """out (b, s, n_r, g_r, d), all positions, the rank's heads  ->  (b, s_r, n, g, d), all heads. One all-to-all."""
    return _heads_together(all_to_all([shard(out, everybody, rank) for rank in range(comm.size)], comm), n)


def _heads_together(parts, n):
    """parts: (b, s, n_r, g_r, d) of each rank  ->  (b, s, n, g, d)"""
    xp, share = array_namespace(*parts), max(len(parts) // n, 1)
    groups = [xp.concatenate(parts[k:k + share], 3) for k in range(0, len(parts), share)]
    return xp.concatenate(groups, 2)


def _copies_summed(parts, n):
    """parts: dk (b, s, n_r, d) of each rank  ->  (b, s, n, d); what ranks with the same head found is added up"""
    xp, share, dtype = array_namespace(*parts), max(len(parts) // n, 1), parts[0].dtype
    if share > 1:
        parts = [narrow(sum(wide(part) for part in parts[k:k + share]), dtype) for k in range(0, len(parts), share)]
    return xp.concatenate(parts, 2)
