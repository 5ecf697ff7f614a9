"""Softmax cross-entropy: how surprised the model is by what comes next, in nats per position.

    p = softmax(z) = exp(z) / sum exp(z)         loss = sum over positions of -log p[target], and how many there were
    dloss/dz = p - onehot(target)                each row sums to 0: only differences of z matter

    -log p[t] = log sum exp(z - m) - (z[t] - m)          with m = max z no exponential exceeds 1, however large z is

Label smoothing asks for a share eps spread evenly over all V classes, the target's own included:

    loss = -(1 - eps) log p[t] - eps/V sum_k log p[k]            dloss/dz = p - (1 - eps) onehot - eps/V

(Szegedy et al. 2016, section 7. Megatron instead spreads eps over the V-1 others; then eps here is eps' V/(V-1).)

Positions whose target is `ignore_index` (padding, a prompt) have no loss, no gradient and are not counted. The sum and
the count leave apart, so that ranks that hold other tokens can add up both and divide once: a mean of means is wrong.
Letters: ... positions, n their number, V classes. About 5 n V elementwise operations, and n V numbers kept.
"""

import math

from refimpl.arrays import array_namespace, check_indices
from refimpl.precision import narrow, wide

IGNORED = -1


def cross_entropy(logits, targets, ignore_index=IGNORED, smoothing=0.0):
    """Summed cross-entropy of the softmax over the last axis, and the number of positions in the sum.

    logits (..., V)    targets (...) integers in 0..V-1, or ignore_index    smoothing eps, 0 <= eps < 1
    ->  total (), count () (an integer array), saved        total, and p that is kept, in float32 or wider
    Raises ValueError if the shapes do not fit or, for host arrays, a target is out of range.
    """
    xp = array_namespace(logits, targets)
    check(logits, targets, smoothing)
    places = targets.astype(xp.int64)[..., None]                               # bytes, too, can be compared with -1
    counted = places != ignore_index
    places = xp.where(counted, places, 0)                                      # any place will do where not counted
    check_indices(places, logits.shape[-1], "targets")
    z = wide(logits)
    z = z - z.max(axis=-1, keepdims=True)
    p = xp.exp(z)
    total = p.sum(axis=-1, keepdims=True)
    p /= total
    losses = xp.log(total) - (1 - smoothing) * xp.take_along_axis(z, places, -1)
    if smoothing:
        losses -= smoothing * z.mean(axis=-1, keepdims=True)
    saved = p, targets, ignore_index, smoothing, logits.dtype
    return xp.where(counted, losses, 0).sum(), counted.sum(), saved


def cross_entropy_backward(dtotal, saved):
    """dlogits = dtotal (p - (1 - eps) onehot - eps/V), 0 where the position is ignored.

    dtotal a number or ()    ->  dlogits (..., V)        for the mean loss: dtotal = 1 / xp.maximum(count, 1)
    """
    p, targets, ignore_index, smoothing, dtype = saved
    xp = array_namespace(p)
    classes = p.shape[-1]
    places = targets.astype(xp.int64)[..., None]
    onehot = places == xp.arange(classes)
    dz = p - onehot
    if smoothing:
        dz += smoothing * (onehot.astype(p.dtype) - 1 / classes)
    dz *= dtotal
    return narrow(xp.where(places != ignore_index, dz, 0), dtype)


def softmax_cross_entropy(logits, targets):
    """Mean cross-entropy over all positions: none is ignored, nothing is smoothed.

    logits (..., V)    targets (...) integers in 0..V-1    ->  loss (), saved
    No positions at all give loss 0, not 0/0: an idle rank must not spoil a sum. Raises ValueError if the shapes do not
    fit or, for host arrays, a target is out of range.
    """
    array_namespace(logits, targets)
    check(logits, targets)
    check_indices(targets, logits.shape[-1], "targets")
    total, _, saved = cross_entropy(logits, targets)
    return total / max(math.prod(targets.shape), 1), saved


def softmax_cross_entropy_backward(dloss, saved):
    """dlogits = dloss (softmax - onehot) / n.

    dloss a number or ()    ->  dlogits (..., V)
    """
    return cross_entropy_backward(dloss / max(math.prod(saved[1].shape), 1), saved)


def check(logits, targets, smoothing=0.0):
    """ValueError unless logits (..., V), targets (...) and smoothing fit each other."""
    if logits.ndim < 1 or logits.shape[:-1] != targets.shape:
        raise ValueError(f"targets {targets.shape} do not fit logits {logits.shape}; expected {logits.shape[:-1]}")
    if targets.dtype.kind not in "iu":
        raise ValueError(f"targets has dtype {targets.dtype}; expected integers: targets.astype('int64')")
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing={smoothing}: expected at least 0 and less than 1; nearest "
                         f"{0.0 if smoothing < 0 else 0.9}")
