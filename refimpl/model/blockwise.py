"""Attention without its matrix: blocks of queries meet blocks of keys, and a row remembers two numbers.

              keys  0..  B..  2B..     a block of queries goes over the blocks of keys that it may see:
    queries  0..   [x]                     S = q k^T / sqrt(d)
             B..   [x]  [x]                m' = max(m, max_j S)                          the largest so far
             2B..  [x]  [x]  [x]           e = exp(S - m'),  c = exp(m - m')             c: what the old sums are worth
                                           total = total c + sum_j e,  mixed = mixed c + e v,  m = m'
                                       and in the end  out = mixed / total,  lse = m + log total = log sum_j exp S

Backward needs no P either: P = exp(S - lse), tile by tile, and sum_j dP P = dout . out. (Dao et al. 2022, algorithm 4;
the running softmax is Milakov & Gimelshein 2018.) 4 d FLOPs for each head and pair of positions forward, 10 backward,
in tiles with a visible pair only; memory O(s d) and one tile of B x B per head, never O(s t).

A ring of ranks does the same with a block of keys each: `merge` joins what two of them found, and each one's backward
takes the out and lse of the whole row. Letters and layout as in attention.py; lse (b, s, n, g).
"""

import math
from typing import NamedTuple

from refimpl.arrays import array_namespace
from refimpl.model.attention import (
    NO_DROPOUT,
    Dropout,
    by_head,
    by_position,
    checked_positions,
    finite_or_zero,
    shared,
    visible,
)
from refimpl.model.dropout import apply_mask
from refimpl.precision import narrow, wide

BLOCK = 256                                                # positions: a head's tile of float32, 256 KiB, fits a cache


class Saved(NamedTuple):
    """What backward needs. With the out and lse of whole rows it gives the part of these keys in their gradients."""

    q: object                                              # (b, s, n, g, d)
    k: object                                              # (b, t, n, d)
    v: object                                              # (b, t, n, d)
    out: object                                            # (b, s, n, g, d)
    lse: object                                            # (b, s, n, g)
    causal: bool
    q_positions: object
    kv_positions: object
    dropout: Dropout
    block: int


def blockwise_attention(q, k, v, causal=True, q_positions=None, kv_positions=None, dropout=NO_DROPOUT, block=BLOCK):
    """Softmax attention; out and one number per row are kept for backward.

    q (b, s, n, g, d)    k, v (b, t, n, d)    ->  out (b, s, n, g, d), saved; saved.lse is (b, s, n, g)
    causal, q_positions, kv_positions, dropout    as in attention.attention; positions on the host
    block    positions per block, 1 or more
    A query that sees no key has out 0 and lse -inf. Raises ValueError if the shapes do not fit.
    """
    q_positions, kv_positions = checked_positions(q, k, v, q_positions, kv_positions)
    if block < 1:
        raise ValueError(f"block={block}: expected 1 or more positions; nearest 1")
    xp = array_namespace(q)
    queries, keys, values = by_head(wide(q)) * (1 / math.sqrt(q.shape[-1])), shared(wide(k)), shared(wide(v))
    out, lse = xp.empty_like(queries), xp.empty((*queries.shape[:-1], 1), queries.dtype)
    for rows, tiles in _tiles(q_positions, kv_positions, causal, block):
        largest = xp.full(lse[..., rows, :].shape, -xp.inf, lse.dtype)
        total, mixed = xp.zeros_like(largest), xp.zeros_like(out[..., rows, :])
        for columns, cut in tiles:
            scores = _scores(queries, keys, rows, columns, cut, q_positions, kv_positions)
            before, largest = largest, xp.maximum(largest, scores.max(axis=-1, keepdims=True))
            scores -= finite_or_zero(largest)
            e = xp.exp(scores, out=scores)
            worth = xp.exp(before - finite_or_zero(largest))
            total = total * worth + e.sum(axis=-1, keepdims=True)
            mask = _mask(q, k, dropout, rows, columns, q_positions, kv_positions)
            mixed = mixed * worth + apply_mask(e, mask, dropout.rate) @ values[..., columns, :]
        out[..., rows, :], lse[..., rows, :] = _finish(mixed, total, largest)
    out, lse = by_position(out, q.dtype), by_position(lse, lse.dtype)[..., 0]
    return out, Saved(q, k, v, out, lse, causal, q_positions, kv_positions, dropout, block)


def blockwise_attention_backward(dout, saved):
    """dout (b, s, n, g, d)  ->  dq (b, s, n, g, d), dk, dv (b, t, n, d)

    Where saved.out and saved.lse belong to rows that saw other keys, too, these are the parts of saved.k and saved.v:
    the parts of all keys add up to dq, and dk, dv are these keys' own.
    """
    q, k, v, out, lse, causal, q_positions, kv_positions, dropout, block = saved
    xp = array_namespace(q)
    scale = 1 / math.sqrt(q.shape[-1])
    queries, keys, values = by_head(wide(q)) * scale, shared(wide(k)), shared(wide(v))
    dout = wide(dout)
    delta = by_head((dout * wide(out)).sum(axis=-1, keepdims=True))
    dout, lse = by_head(dout), finite_or_zero(by_head(lse[..., None]))
    dq, dk, dv = xp.zeros_like(queries), xp.zeros_like(keys), xp.zeros_like(values)
    for rows, tiles in _tiles(q_positions, kv_positions, causal, block):
        mine = dout[..., rows, :]
        for columns, cut in tiles:
            p = _scores(queries, keys, rows, columns, cut, q_positions, kv_positions)
            p -= lse[..., rows, :]
            xp.exp(p, out=p)
            mask = _mask(q, k, dropout, rows, columns, q_positions, kv_positions)
            dv[..., columns, :] += _over_group(apply_mask(p, mask, dropout.rate).swapaxes(-1, -2) @ mine)
            ds = apply_mask(mine @ values[..., columns, :].swapaxes(-1, -2), mask, dropout.rate)
            ds -= delta[..., rows, :]
            ds *= p
            dq[..., rows, :] += ds @ keys[..., columns, :]
            dk[..., columns, :] += _over_group(ds.swapaxes(-1, -2) @ queries[..., rows, :])
    dq *= scale
    dk, dv = (grad[:, :, 0].swapaxes(1, 2) for grad in (dk, dv))
    return by_position(dq, q.dtype), narrow(dk, k.dtype), narrow(dv, v.dtype)


def merge(out1, lse1, out2, lse2):
    """Join two partial softmaxes over different keys for the same queries.

    out1, out2 (..., d)    lse1, lse2 (...), log of the sum of exponentials, -inf where no key was seen
    ->  out (..., d), lse (...)        commutative to the last bit; no exponential exceeds 1, so nothing overflows
    """
    xp = array_namespace(out1, lse1, out2, lse2)
    largest = xp.maximum(lse1, lse2)
    weight1, weight2 = (xp.exp(lse - finite_or_zero(largest)) for lse in (lse1, lse2))
    mixed = wide(out1) * weight1[..., None] + wide(out2) * weight2[..., None]
    out, lse = _finish(mixed, (weight1 + weight2)[..., None], largest[..., None])
    return narrow(out, out1.dtype), lse[..., 0]


def _finish(mixed, total, largest):
    """mixed (..., d) / total (..., 1), and the log of total e^largest; 0 and -inf where there was nothing."""
    xp = array_namespace(mixed)
    nothing = total == 0
    total = xp.where(nothing, 1, total)
    return mixed / total, xp.where(nothing, -xp.inf, largest + xp.log(total))


def _tiles(q_positions, kv_positions, causal, block):
    """For each block of queries: its slice, and a list of (slice of keys, whether causality cuts through the tile)."""
    ends = [(part, min(kv_positions[part]), max(kv_positions[part])) for part in _blocks(len(kv_positions), block)]
    for rows in _blocks(len(q_positions), block):
        first, last = min(q_positions[rows]), max(q_positions[rows])
        yield rows, [(part, causal and high > first) for part, low, high in ends if low <= last or not causal]


def _blocks(length, block):
    return [slice(start, min(start + block, length)) for start in range(0, length, block)]


def _scores(queries, keys, rows, columns, cut, q_positions, kv_positions):
    """One tile of S, -inf where it is not visible."""
    xp = array_namespace(queries)
    scores = queries[..., rows, :] @ keys[..., columns, :].swapaxes(-1, -2)
    return xp.where(visible(q_positions[rows], kv_positions[columns], scores), scores, -xp.inf) if cut else scores


def _mask(q, k, dropout, rows, columns, q_positions, kv_positions):
    """One tile of the dropout mask, or None."""
    return dropout.mask(q_positions[rows], kv_positions[columns], k.shape[2], q) if dropout.rate else None


def _over_group(x):
    """x (b, n, g, t, d) summed over the query heads that share a key head: (b, n, 1, t, d)"""
    return x if x.shape[2] == 1 else x.sum(axis=2, keepdims=True)
