"""Softmax cross-entropy: how surprised the model is by what comes next, in nats per position.

    p = softmax(z) = exp(z) / sum exp(z)                loss = mean over positions of -log p[target]
    dloss/dz = (p - onehot(target)) / n                 n positions; each row sums to 0: only differences of z matter

    -log p[t] = log sum exp(z - m) - (z[t] - m)         with m = max z no exponential exceeds 1, however large z is

Letters: ... positions, n their number, V classes. About 5 n V elementwise operations, and n V numbers kept.
"""

import math

from refimpl.arrays import array_namespace, check_indices


def softmax_cross_entropy(logits, targets):
    """Mean cross-entropy of the softmax over the last axis.

    logits (..., V)    targets (...) integers in 0..V-1    ->  loss (), saved
    No positions at all give loss 0, not 0/0: an idle rank must not spoil a sum. Raises ValueError if the shapes do not
    fit or, for host arrays, a target is out of range.
    """
    xp = array_namespace(logits, targets)
    if logits.ndim < 1 or logits.shape[:-1] != targets.shape:
        raise ValueError(f"targets {targets.shape} do not fit logits {logits.shape}; expected {logits.shape[:-1]}")
    check_indices(targets, logits.shape[-1], "targets")
    n = max(math.prod(targets.shape), 1)
    z = logits - logits.max(axis=-1, keepdims=True)
    e = xp.exp(z)
    total = e.sum(axis=-1, keepdims=True)
    at_target = xp.take_along_axis(z, targets[..., None].astype(xp.int64), -1)
    return (xp.log(total) - at_target).sum() / n, (e / total, targets)


def softmax_cross_entropy_backward(dloss, saved):
    """dlogits = dloss (softmax - onehot) / n.

    dloss a number or ()    ->  dlogits (..., V)
    """
    p, targets = saved
    xp = array_namespace(p)
    onehot = targets[..., None] == xp.arange(p.shape[-1])
    return (p - onehot) * (dloss / max(math.prod(targets.shape), 1))
