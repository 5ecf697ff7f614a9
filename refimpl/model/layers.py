"""Layers, forward beside backward: linear, ReLU, GELU.

    y, saved = f(x, ...)              saved: what backward will want again
    dx, ...  = f_backward(dy, saved)  d stands for the gradient of the loss: dy has y's shape, dx has x's

A layer with weights splits its backward, since only half of it is urgent: the layer below waits for dx, nobody for dw.

    dx, pending = f_backward_input(dy, saved)       now
    dw, db      = f_backward_weight(pending)        any time before the optimizer (zero-bubble pipelines: later)

Letters: ... any leading axes (batch, sequence, none; empty ones too), T their product, I inputs, O outputs.
"""

import math

from refimpl.arrays import array_namespace, check_indices

# y = x w + b


def linear(x, w, b=None):
    """y = x @ w + b.

    x (..., I)    w (I, O)    b (O,) or None    ->  y (..., O), saved        2 T I O FLOPs
    Raises ValueError if the shapes do not fit.
    """
    array_namespace(x, w, b)
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise ValueError(f"x {x.shape} does not fit w {w.shape}; expected x (..., I) and w (I, O)")
    if b is not None and b.shape != w.shape[1:]:
        raise ValueError(f"b {b.shape} does not fit w {w.shape}; expected b {w.shape[1:]}, or None")
    y = x @ w
    return (y if b is None else y + b), (x, w, b)


def linear_backward_input(dy, saved):
    """dx = dy @ w.T, and what the weight gradient still needs.

    dy (..., O)    ->  dx (..., I), pending        2 T I O FLOPs
    """
    x, w, b = saved
    return dy @ w.T, (x, dy, b is not None)


def linear_backward_weight(pending):
    """dw = x.T @ dy and db = dy, both summed over the leading axes.

    ->  dw (I, O), db (O,) or None as b was        2 T I O FLOPs
    """
    x, dy, has_bias = pending
    rows = math.prod(dy.shape[:-1])                    # not -1: ambiguous where a shard or a batch is empty
    x, dy = x.reshape(rows, x.shape[-1]), dy.reshape(rows, dy.shape[-1])
    return x.T @ dy, dy.sum(axis=0) if has_bias else None


def linear_backward(dy, saved):
    """Both halves at once: dy (..., O)  ->  dx (..., I), dw (I, O), db (O,) or None        4 T I O FLOPs"""
    dx, pending = linear_backward_input(dy, saved)
    return dx, *linear_backward_weight(pending)


# Activations: elementwise, so x, y, dy and dx share one shape, and a shard of y needs only that shard of x.


def relu(x):
    """y = max(x, 0).  x (...)  ->  y (...), saved: one byte per element"""
    xp = array_namespace(x)
    return xp.maximum(x, 0), x > 0


def relu_backward(dy, saved):
    """dx = dy where x > 0, else 0; at the kink, x = 0, by custom 0 too.  dy (...)  ->  dx (...)"""
    xp = array_namespace(dy)
    return xp.where(saved, dy, 0)


GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715


def gelu(x):
    """y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), close to x times the normal distribution function.

    x (...)  ->  y (...), saved        The tanh form of Hendrycks & Gimpel 2016, section 2: it needs no erf, which NumPy
    lacks, and GPT-2 uses it.
    """
    xp = array_namespace(x)
    t = xp.tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x))
    return 0.5 * x * (1 + t), (x, t)


def gelu_backward(dy, saved):
    """dx = dy ((1 + t)/2 + x/2 (1 - t^2) sqrt(2/pi) (1 + 3 * 0.044715 x^2)), t the tanh.  dy (...)  ->  dx (...)"""
    x, t = saved
    dt = (1 - t * t) * GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x)
    return dy * (0.5 * (1 + t) + 0.5 * x * dt)


def one_hot(ids, classes, dtype):
    """Rows of the identity: y[..., k] = 1 where k == ids[...], else 0.

    ids (...) integers in 0..classes-1    ->  y (..., classes) of this dtype
    Raises ValueError for an id out of range (host arrays only; on a device such a row is all 0).
    """
    xp = array_namespace(ids)
    check_indices(ids, classes, "ids")
    return (ids[..., None] == xp.arange(classes)).astype(dtype)
