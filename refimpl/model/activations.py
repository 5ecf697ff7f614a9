"""Activations, forward beside backward: ReLU, GELU, SwiGLU. They have no weights, and each element is alone.

    relu      y = max(x, 0)
    gelu      y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    swiglu    y = silu(gate) * up          silu(z) = z sigmoid(z)          x = [gate | up], side by side

So a shard of y needs only that shard of x (of gate and of up). Each keeps x, or less; what tanh and sigmoid gave is
computed again in backward, since it would cost as much memory as x does (Korthikanti et al. 2022, section 4.1, counts
the input of GELU, 8 s b h bytes a layer, and nothing else of it). Where nothing is said, all arrays have x's shape.
"""

import math

from refimpl.arrays import array_namespace
from refimpl.precision import narrow, wide


def relu(x):
    """y = max(x, 0).  x (...)  ->  y (...), saved: one byte per element"""
    xp = array_namespace(x)
    z = wide(x)
    return narrow(xp.maximum(z, 0), x.dtype), z > 0


def relu_backward(dy, saved):
    """dx = dy where x > 0, else 0; at the kink, x = 0, by custom 0 too.  dy (...)  ->  dx (...)"""
    xp = array_namespace(dy)
    return narrow(xp.where(saved, wide(dy), 0), dy.dtype)


GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715


def gelu(x):
    """y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), close to x times the normal distribution function.

    x (...)  ->  y (...), saved: x        The tanh form of Hendrycks & Gimpel 2016, section 2: it needs no erf, which
    NumPy lacks, and GPT-2 uses it.
    """
    z = wide(x)
    return narrow(0.5 * z * (1 + _gelu_tanh(z)), x.dtype), x


def gelu_backward(dy, saved):
    """dx = dy ((1 + t)/2 + x/2 (1 - t^2) sqrt(2/pi) (1 + 3 * 0.044715 x^2)), t the tanh.  dy (...)  ->  dx (...)"""
    x = wide(saved)
    t = _gelu_tanh(x)
    dt = (1 - t * t) * GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x)
    return narrow(wide(dy) * (0.5 * (1 + t) + 0.5 * x * dt), dy.dtype)


def _gelu_tanh(x):
    xp = array_namespace(x)
    inside = x * x
    inside *= GELU_SCALE * GELU_CUBIC
    inside += GELU_SCALE
    inside *= x
    return xp.tanh(inside, out=inside)


def swiglu(x):
    """y = silu(gate) * up.

    x (..., 2 H): gate in the first half, up in the second  ->  y (..., H), saved: x        (Shazeer 2020)
    Raises ValueError if x has an odd number of features.
    """
    if x.shape[-1] % 2:
        raise ValueError(f"x {x.shape}: swiglu takes gate and up side by side, an even number of features; "
                         f"nearest {x.shape[-1] + 1}")
    gate, up, sigmoid = _gate_up_sigmoid(x)
    return narrow(gate * sigmoid * up, x.dtype), x


def swiglu_backward(dy, saved):
    """dgate = dy up (sigmoid + gate sigmoid (1 - sigmoid)), dup = dy silu(gate).  dy (..., H)  ->  dx (..., 2 H)"""
    xp = array_namespace(dy)
    gate, up, sigmoid = _gate_up_sigmoid(saved)
    silu, wide_dy = gate * sigmoid, wide(dy)
    dgate = wide_dy * up * (sigmoid + silu * (1 - sigmoid))
    return narrow(xp.concatenate([dgate, wide_dy * silu], -1), dy.dtype)


def _gate_up_sigmoid(x):
    """The halves of x, and sigmoid(gate) = (1 + tanh(gate/2)) / 2, which no gate overflows."""
    xp = array_namespace(x)
    z = wide(x)
    half = z.shape[-1] // 2
    return z[..., :half], z[..., half:], 0.5 * (1 + xp.tanh(0.5 * z[..., :half]))
