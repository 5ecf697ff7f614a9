"""Attention: every position mixes the values of those it may see, weighted by how well its query fits their keys.

    S = q k^T / sqrt(d)      P = softmax(S), row by row, 0 where not visible      out = P v
    dv = P^T dout            dP = dout v^T      dS = P (dP - sum_j dP P) / sqrt(d)           dq = dS k,  dk = dS^T q

This is the plain one, which stores all of P: with dropout, two numbers and a mask byte for each head and pair of
positions, in float16 the 5 a s^2 b bytes of Korthikanti et al. 2022. The one in blockwise.py stores none of it.

Layout, everywhere: (b, s, ...), sequences first, heads split inside. Query heads come in groups that share a key and a
value head (Ainslie et al. 2023): g = 1 is multi-head attention, n = 1 multi-query.
Letters: b sequences, s query positions, t key positions, n key-value heads, g query heads for each, d features a head.
A rank with some of the heads calls the same functions with its n; causality goes by the positions that are given.
4 b n g s t d FLOPs forward, 8 backward; causality would save half, which is not used here.
"""

import math
from typing import NamedTuple

from refimpl.arrays import array_namespace, integers
from refimpl.model.dropout import apply_mask, keep_mask
from refimpl.precision import narrow, wide


class Dropout(NamedTuple):
    """What decides which probabilities are dropped: see dropout.keep_mask. All numbers are global."""

    rate: float
    key: tuple
    sequences: object                                    # b numbers: a range, a list or an integer array
    heads: object                                        # n g numbers, of query heads

    def mask(self, q_positions, kv_positions, n, like):
        """Which probabilities are kept: bool (b, n, g, s, t), for the queries `like` (b, any s, n, g, d)."""
        wanted = like.shape[0], n * like.shape[3]
        if (len(self.sequences), len(self.heads)) != wanted:
            raise ValueError(f"dropout numbers {len(self.sequences)} sequences and {len(self.heads)} heads, but q "
                             f"{like.shape} has {wanted[0]} and {wanted[1]}")
        mask = keep_mask(self.rate, self.key, (self.sequences, self.heads, q_positions, kv_positions), like)
        b, heads, s, t = mask.shape
        return mask.reshape(b, n, heads // n, s, t)


NO_DROPOUT = Dropout(0.0, (), range(0), range(0))


def attention(q, k, v, causal=True, q_positions=None, kv_positions=None, dropout=NO_DROPOUT):
    """Softmax attention, all probabilities kept for backward.

    q (b, s, n, g, d)    k, v (b, t, n, d)    ->  out (b, s, n, g, d), saved
    causal        a query sees keys at its own position and before
    q_positions (s,), kv_positions (t,)    which positions these are (range, list, integer array); 0, 1, ... if None
    dropout       drops probabilities after the softmax
    A query that sees no key gets 0. Raises ValueError if the shapes do not fit.
    """
    q_positions, kv_positions = checked_positions(q, k, v, q_positions, kv_positions)
    xp = array_namespace(q)
    scores = by_head(wide(q) * (1 / math.sqrt(q.shape[-1]))) @ shared(wide(k)).swapaxes(-1, -2)
    if causal:
        scores = xp.where(visible(q_positions, kv_positions, q), scores, -xp.inf)
    p = narrow(softmax_(scores), q.dtype)
    mask = dropout.mask(q_positions, kv_positions, k.shape[2], q) if dropout.rate else None
    kept = apply_mask(p, mask, dropout.rate)
    out = wide(kept) @ shared(wide(v))
    return by_position(out, q.dtype), (q, k, v, p, mask, kept, dropout.rate)


def attention_backward(dout, saved):
    """dout (b, s, n, g, d)  ->  dq (b, s, n, g, d), dk, dv (b, t, n, d)"""
    q, k, v, p, mask, kept, rate = saved
    p, dout = wide(p), by_head(wide(dout))
    dv = wide(kept).swapaxes(-1, -2) @ dout                               # (b, n, g, t, d): summed over g below
    dp = apply_mask(dout @ shared(wide(v)).swapaxes(-1, -2), mask, rate)
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True))
    ds *= 1 / math.sqrt(q.shape[-1])
    dq = ds @ shared(wide(k))
    dk = ds.swapaxes(-1, -2) @ by_head(wide(q))
    dk, dv = (grad.sum(axis=2).swapaxes(1, 2) for grad in (dk, dv))
    return by_position(dq, q.dtype), narrow(dk, k.dtype), narrow(dv, v.dtype)


def softmax_(scores):
    """exp(s) / sum exp(s) over the last axis, in place; a row that is all -inf, or empty, gives 0.

    scores (..., t), -inf or finite, however large  ->  the same array
    """
    xp = array_namespace(scores)
    if scores.shape[-1] == 0:
        return scores
    scores -= finite_or_zero(scores.max(axis=-1, keepdims=True))
    xp.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    scores /= xp.where(total == 0, 1, total)
    return scores


def finite_or_zero(x):
    """x with 0 for -inf: the maximum of a row without entries can then be subtracted from it."""
    xp = array_namespace(x)
    return xp.where(x == -xp.inf, 0, x)


def visible(q_positions, kv_positions, like):
    """Which key each query may see: bool (s, t) in the library of the array `like`."""
    return integers(q_positions, like)[:, None] >= integers(kv_positions, like)


def by_head(x):
    """x (b, s, n, g, d)  ->  (b, n, g, s, d), a view: a matrix for each head"""
    return x.transpose(0, 2, 3, 1, 4)


def by_position(x, dtype):
    """x (b, n, g, s, d)  ->  (b, s, n, g, d) of this dtype, in one piece, so that joining its heads is a view"""
    xp = array_namespace(x)
    return xp.ascontiguousarray(narrow(x.transpose(0, 3, 1, 2, 4), dtype))


def shared(x):
    """x (b, t, n, d)  ->  (b, n, 1, t, d), a view: a matrix for each key-value head, the same for its g query heads"""
    return x.swapaxes(1, 2)[:, :, None]


def checked_positions(q, k, v, q_positions, kv_positions):
    """The positions, 0, 1, ... where they are None; ValueError if anything does not fit."""
    array_namespace(q, k, v)
    if any(x.dtype.kind not in "fu" for x in (q, k, v)):
        raise ValueError(f"q, k and v have dtypes {q.dtype}, {k.dtype} and {v.dtype}; expected floats")
    if (q.ndim, k.ndim) != (5, 4) or k.shape != v.shape or k.shape != (q.shape[0], k.shape[1], q.shape[2], q.shape[4]):
        raise ValueError(f"q {q.shape}, k {k.shape} and v {v.shape} do not fit; expected q (b, s, n, g, d) and "
                         "k, v (b, t, n, d)")
    given = {"q_positions": (q_positions, q.shape[1]), "kv_positions": (kv_positions, k.shape[1])}
    for name, (positions, length) in given.items():
        if positions is not None and len(positions) != length:
            raise ValueError(f"{name} has {len(positions)} entries; expected {length}, one for each position")
    return [range(length) if positions is None else positions for positions, length in given.values()]
