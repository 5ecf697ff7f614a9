"""Normalisation over the features of each position: LayerNorm (GPT-2) and RMSNorm (Llama).

    LayerNorm   y = n * w + b,  n = (x - mean x) / sqrt(var x + eps)       dn = dy * w
                                dx = (dn - mean dn - n mean(dn n)) / sqrt(var x + eps)
    RMSNorm     y = n * w,      n = x / sqrt(mean x^2 + eps)
                                dx = (dn - n mean(dn n)) / sqrt(mean x^2 + eps)

What is kept is x, and two numbers per position (one for RMSNorm) that are named apart, since papers leave them out of
their counts: `Statistics`. n is computed again in backward. Positions do not see each other, so a shard of the sequence
needs only itself; but dw and db are sums over positions, so then they are partial sums.
Letters: ... leading axes, h features. (Ba et al. 2016; Zhang & Sennrich 2019.)
"""

from typing import NamedTuple

from refimpl.arrays import array_namespace
from refimpl.model.layers import rows
from refimpl.precision import narrow, wide


class Statistics(NamedTuple):
    """Per position (..., 1): the mean (None for RMSNorm) and 1 / sqrt(variance + eps), float32 or wider."""

    mean: object
    scale: object
    kind = "statistics"                                  # what the memory meter counts them as


def layer_norm(x, w, b, eps=1e-5):
    """y = (x - mean) / sqrt(var + eps) * w + b, mean and variance over the last axis.

    x (..., h)    w, b (h,)    ->  y (..., h), saved
    Raises ValueError if the shapes do not fit.
    """
    xp = array_namespace(x, w, b)
    _check(x, w, b)
    z = wide(x)
    mean = z.mean(axis=-1, keepdims=True)
    z = z - mean
    scale = 1 / xp.sqrt((z * z).mean(axis=-1, keepdims=True) + eps)
    return narrow(z * scale * wide(w) + wide(b), x.dtype), (x, w, Statistics(mean, scale))


def layer_norm_backward_input(dy, saved):
    """dy (..., h)  ->  dx (..., h), pending"""
    x, w, statistics = saved
    n, dn = _normed(x, statistics), wide(dy) * wide(w)
    dx = dn - dn.mean(axis=-1, keepdims=True) - n * (dn * n).mean(axis=-1, keepdims=True)
    return narrow(dx * statistics.scale, dy.dtype), (dy, x, statistics)


def layer_norm_backward_weight(pending):
    """dw = sum dy n, db = sum dy, over the leading axes  ->  dw (h,), db (h,)"""
    dy, x, statistics = pending
    db = rows(wide(dy)).sum(axis=0)
    return rms_norm_backward_weight(pending), narrow(db, dy.dtype)


def layer_norm_backward(dy, saved):
    """Both halves at once: dy (..., h)  ->  dx (..., h), dw (h,), db (h,)"""
    dx, pending = layer_norm_backward_input(dy, saved)
    return dx, *layer_norm_backward_weight(pending)


def rms_norm(x, w, eps=1e-5):
    """y = x / sqrt(mean x^2 + eps) * w, the mean over the last axis.

    x (..., h)    w (h,)    ->  y (..., h), saved
    Raises ValueError if the shapes do not fit.
    """
    xp = array_namespace(x, w)
    _check(x, w)
    z = wide(x)
    scale = 1 / xp.sqrt((z * z).mean(axis=-1, keepdims=True) + eps)
    return narrow(z * scale * wide(w), x.dtype), (x, w, Statistics(None, scale))


def rms_norm_backward_input(dy, saved):
    """dy (..., h)  ->  dx (..., h), pending"""
    x, w, statistics = saved
    n, dn = _normed(x, statistics), wide(dy) * wide(w)
    dx = dn - n * (dn * n).mean(axis=-1, keepdims=True)
    return narrow(dx * statistics.scale, dy.dtype), (dy, x, statistics)


def rms_norm_backward_weight(pending):
    """dw = sum dy n over the leading axes  ->  dw (h,)"""
    dy, x, statistics = pending
    return narrow(rows(wide(dy) * _normed(x, statistics)).sum(axis=0), dy.dtype)


def rms_norm_backward(dy, saved):
    """Both halves at once: dy (..., h)  ->  dx (..., h), dw (h,)"""
    dx, pending = rms_norm_backward_input(dy, saved)
    return dx, rms_norm_backward_weight(pending)


# Whichever of the two a model has: with b LayerNorm, without RMSNorm


def norm(x, w, b, eps=1e-5):
    """x (..., h)    w (h,)    b (h,) or None    ->  y (..., h), saved"""
    return rms_norm(x, w, eps) if b is None else layer_norm(x, w, b, eps)


def norm_backward_input(dy, saved):
    """dy (..., h)  ->  dx (..., h), pending"""
    return (rms_norm_backward_input if saved[2].mean is None else layer_norm_backward_input)(dy, saved)


def norm_backward_weight(pending):
    """->  dw (h,), db (h,) or None as b was"""
    if pending[2].mean is None:
        return rms_norm_backward_weight(pending), None
    return layer_norm_backward_weight(pending)


def _normed(x, statistics):
    """n (..., h): x with its statistics taken out."""
    z = wide(x)
    return (z if statistics.mean is None else z - statistics.mean) * statistics.scale


def _check(x, *weights):
    for w in weights:
        if x.ndim < 1 or w.shape != x.shape[-1:]:
            raise ValueError(f"norm weights {w.shape} do not fit x {x.shape}; expected {x.shape[-1:]}")
