"""Layers, forward beside backward: linear, and the sum at the end of a residual branch.

    y, saved = f(x, ...)              saved: what backward will want again
    dx, ...  = f_backward(dy, saved)  d stands for the gradient of the loss: dy has y's shape, dx has x's

A layer with weights splits its backward, since only half of it is urgent: the layer below waits for dx, nobody for dw.

    dx, pending = f_backward_input(dy, saved)       now
    dw, db      = f_backward_weight(pending)        any time before the optimizer (zero-bubble pipelines: later)

Everything keeps the dtype of its input; float16 and bfloat16 are computed in float32 (see precision.py).
Letters: ... any leading axes (batch, sequence, none; empty ones too), T their product, I inputs, O outputs.
"""

import math

from refimpl.arrays import array_namespace, check_indices
from refimpl.model.activations import (  # noqa: F401    also found here
    GELU_CUBIC,
    GELU_SCALE,
    gelu,
    gelu_backward,
    relu,
    relu_backward,
)
from refimpl.precision import narrow, wide

# y = x w + b


def linear(x, w, b=None):
    """y = x @ w + b.

    x (..., I)    w (I, O)    b (O,) or None    ->  y (..., O), saved        2 T I O FLOPs
    A fused matrix may keep its parts on axes of their own: w (I, 2, H) and b (2, H), say, with O = 2 H; y is (..., O).
    Raises ValueError if the shapes do not fit.
    """
    check_linear(x, w, b)
    y = wide(x) @ wide(matrix(w))
    if b is not None:
        y += wide(b).reshape(y.shape[-1])
    return narrow(y, x.dtype), (x, w, b)


def check_linear(x, w, b=None):
    """ValueError unless x (..., I), w (I, O) or (I, ...) and b, as w without I, or None, fit each other."""
    array_namespace(x, w, b)
    if x.ndim < 1 or w.ndim < 2 or x.shape[-1] != w.shape[0]:
        raise ValueError(f"x {x.shape} does not fit w {w.shape}; expected x (..., I) and w (I, O)")
    if b is not None and b.shape != w.shape[1:]:
        raise ValueError(f"b {b.shape} does not fit w {w.shape}; expected b {w.shape[1:]}, or None")


def matrix(w):
    """w (I, ...) as (I, O), O the product of the rest: a view where w's memory allows."""
    return w.reshape(w.shape[0], math.prod(w.shape[1:]))              # not -1: ambiguous where a shard is empty


def linear_backward_input(dy, saved):
    """dx = dy @ w.T, and what the weight gradient still needs.

    dy (..., O)    ->  dx (..., I), pending        2 T I O FLOPs
    """
    x, w, b = saved
    return narrow(wide(dy) @ wide(matrix(w)).T, dy.dtype), (x, dy, w.shape, b is not None)


def linear_backward_weight(pending):
    """dw = x.T @ dy and db = dy, both summed over the leading axes.

    ->  dw as w, db as b or None        2 T I O FLOPs
    """
    x, dy, shape, has_bias = pending
    x, wide_dy = rows(wide(x)), rows(wide(dy))
    dw = narrow((x.T @ wide_dy).reshape(shape), dy.dtype)
    return dw, narrow(wide_dy.sum(axis=0).reshape(shape[1:]), dy.dtype) if has_bias else None


def linear_backward(dy, saved):
    """Both halves at once: dy (..., O)  ->  dx (..., I), dw as w, db as b or None        4 T I O FLOPs"""
    dx, pending = linear_backward_input(dy, saved)
    return dx, *linear_backward_weight(pending)


def rows(x):
    """x (..., I) as (T, I): the leading axes as one, a view where x's memory allows."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def add(x, y):
    """x + y, in x's dtype: the residual stream and a branch, or the two gradients that meet there. x, y (...)."""
    return narrow(wide(x) + wide(y), x.dtype)


def one_hot(ids, classes, dtype):
    """Rows of the identity: y[..., k] = 1 where k == ids[...], else 0.

    ids (...) integers in 0..classes-1    ->  y (..., classes) of this dtype
    Raises ValueError for an id out of range (host arrays only; on a device such a row is all 0).
    """
    xp = array_namespace(ids)
    check_indices(ids, classes, "ids")
    return (ids[..., None] == xp.arange(classes)).astype(dtype)
