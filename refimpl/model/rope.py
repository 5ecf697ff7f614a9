"""Rotary positions: turn each query and key by an angle that grows with its position.

    (x1, x2) -> (x1 cos a - x2 sin a, x2 cos a + x1 sin a)         a = position * base^(-2 i / d), pair i of d/2

Then the product of a query at position m and a key at n depends on m - n only. Pair i is (x[i], x[i + d/2]), as in
Llama's weights as Hugging Face keeps them; the paper pairs neighbours instead, which is another order of the columns
of the weights. Turning is linear and keeps lengths, so backward turns by -a. (Su et al. 2021, section 3.2.)

Positions are given, not counted from 0: what a rank holds may be any part of the sequence. Nothing large is kept.
"""

from refimpl.arrays import array_namespace, integers
from refimpl.precision import narrow, wide


def rope(x, positions, base=10000.0):
    """Turn every vector of x by its position.

    x (b, s, ..., d), any number of head axes, d even
    positions   (s,), the same for every sequence, or (b, s): a range, a list or an integer array
    ->          y (b, s, ..., d), saved
    Raises ValueError for an odd d, or another number of positions than s.
    """
    return _turn(x, positions, base, 1), (positions, base)


def rope_backward(dy, saved):
    """dy (b, s, ..., d)  ->  dx (b, s, ..., d)"""
    return _turn(dy, *saved, -1)


def _turn(x, positions, base, direction):
    xp = array_namespace(x)
    d = x.shape[-1]
    if d % 2:
        raise ValueError(f"rotary positions turn pairs of features: a head needs an even number, not {d}; "
                         f"nearest {d + 1}")
    places = integers(positions, x)
    if places.shape not in (x.shape[1:2], x.shape[:2]):
        raise ValueError(f"positions {places.shape} do not fit x {x.shape}; expected {x.shape[1:2]} or {x.shape[:2]}")
    frequency = base ** (-2 * xp.arange(d // 2) / d)                       # in float64: positions reach 10^6
    angle = places[..., None] * frequency                                  # (s, d/2) or (b, s, d/2)
    angle = angle.reshape(*angle.shape[:-1], *[1] * (x.ndim - 3), d // 2)
    z = wide(x)
    cos, sin = xp.cos(angle).astype(z.dtype), (direction * xp.sin(angle)).astype(z.dtype)
    first, second = z[..., :d // 2], z[..., d // 2:]
    return narrow(xp.concatenate([first * cos - second * sin, second * cos + first * sin], -1), x.dtype)
