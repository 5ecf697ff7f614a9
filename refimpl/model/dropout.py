"""Dropout whose mask depends on where an element is in the whole batch, not on who computes it, or when.

    y = x m / (1 - rate)      m[i, j, k] = 1 with probability 1 - rate, a hash of (seed, step, layer, site, i, j, k)

    a batch of 4 sequences:     sequence   0 1 2 3        rank 1 of 2 holds sequences 2 and 3, computes the mask of
                                rank       0 0 1 1        numbers 2 and 3, and has the single device's mask

i, j, k are *global* numbers: which sequence of the batch, which position in it, which head or feature. So any shard
(data, sequence, context, heads) has its part of the single device's mask without a message, replicas have equal masks,
and a forward that is computed again has its own. The hash is SplitMix64 (Steele, Lea & Flood 2014) once per axis: the
number i of the generator that the seed starts, started as the seed of the next axis. One byte per element is kept.
"""

from refimpl.arrays import array_namespace, integers
from refimpl.precision import narrow, wide

EMBEDDING, ATTENTION, PROJECTION, MLP = range(4)                    # sites: where in a layer a mask is drawn

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = 2**64 - 1


def check_rate(rate):
    """ValueError unless 0 <= rate < 1."""
    if not 0 <= rate < 1:
        raise ValueError(f"dropout={rate}: expected at least 0 and less than 1; nearest {0.0 if rate < 0 else 0.9}")


def keep_mask(rate, key, indices, like):
    """True where an element is kept.

    rate      probability to drop, 0 <= rate < 1
    key       whole numbers from 0: (seed, step, layer, site)
    indices   one per axis: the global numbers of what lies along it (a range, a list or an integer array), from 0
    ->        bool array, one axis per index, in the library of the array `like`
    """
    check_rate(rate)
    xp = array_namespace(like)
    seed = 0
    for number in key:
        seed = _number(number, seed)
    state = xp.full((), xp.uint64(seed), xp.uint64)
    for index in indices:
        state = _mix_(state[..., None] + (integers(index, like).astype(xp.uint64) + 1) * xp.uint64(GOLDEN))
    return (state >> 11) < round((1 - rate) * 2**53)


def dropout(x, rate, key, indices):
    """Drop elements of x with probability `rate`, scale the rest so that the mean stays.

    x (...)    key, indices as in `keep_mask`, an index per axis of x  ->  y (...), saved: one byte per element
    rate 0 gives x itself, and nothing saved. Raises ValueError unless the indices number exactly x's elements: one mask
    for several sequences would fit, too.
    """
    if rate == 0:
        return x, (None, 0.0)
    lengths = tuple(map(len, indices))
    if lengths != x.shape:
        raise ValueError(f"indices number {lengths} elements, but x is {x.shape}; expected an index for each axis, as "
                         "long as the axis")
    mask = keep_mask(rate, key, indices, x)
    return apply_mask(x, mask, rate), (mask, rate)


def dropout_backward(dy, saved):
    """dx = dy m / (1 - rate).  dy (...)  ->  dx (...)"""
    mask, rate = saved
    return apply_mask(dy, mask, rate)


def apply_mask(x, mask, rate):
    """x m / (1 - rate), or x itself where there is no mask. x, mask (...)"""
    return x if mask is None else narrow(wide(x) * mask * (1 / (1 - rate)), x.dtype)


def _mix_(z):
    """SplitMix64's bijection of 64-bit words, in place: every input bit reaches every output bit. z (...) uint64"""
    xp = array_namespace(z)
    z ^= z >> 30
    z *= xp.uint64(FIRST)
    z ^= z >> 27
    z *= xp.uint64(SECOND)
    z ^= z >> 31
    return z


def _number(i, seed):
    """Number i of the generator that `seed` starts, in Python's integers."""
    z = (seed + (i + 1) * GOLDEN) & WORD
    z = ((z ^ z >> 30) * FIRST) & WORD
    z = ((z ^ z >> 27) * SECOND) & WORD
    return z ^ z >> 31
