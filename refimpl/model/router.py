"""The router of a mixture of experts: which k of the E experts a token goes to, and how much each of them counts.

    z = x w             w (h, E): a score for each expert, in float32 or wider: rounded, another's might be the largest

    "softmax-topk"      p = softmax(z)               the k largest p            weights: their p       (Switch, GShard)
    "topk-softmax"      p = softmax(z)               the k largest z            p / sum of those p     (Mixtral)
    "sigmoid"           p = sigmoid(z) / their sum   the k largest sigmoid(z)   p / sum of those p     (DeepSeek-V3)

The choice has no gradient. The weights have: through them the router learns. One weight divided by itself is 1 whatever
z is, so with k = 1 only the first kind learns anything. Of equal scores the lowest expert's comes first.

Experts that are chosen often learn fast, and are chosen more often. Two cures, and a bound:

    auxiliary loss      sum over tokens t, experts e of f_e p_te      f_e = E/(k s) times how many of s tokens chose e
                        1 a token where all experts have as much to do, more where the probable ones have more
    bias                e is chosen by its score + bias_e, and weighted without; after each step bias_e rises by `rate`
                        where the load is below the mean, and falls where it is above it: no gradient
    capacity            of a sequence's s tokens an expert takes so many at most, and drops the others

f and what is dropped are matters of a whole sequence, not of a micro-batch or of what a rank has: the layout changes
neither. (Shazeer et al. 2017; Fedus et al. 2022, section 2.2; Wang et al. 2024; DeepSeek-V3, section 2.1.2.)
Letters: ... leading axes, b sequences, s positions, h hidden, E experts, k chosen.
"""

import difflib
import math
from fractions import Fraction
from typing import NamedTuple

from refimpl.arrays import array_namespace, integers
from refimpl.model.layers import rows
from refimpl.precision import narrow, wide

SOFTMAX_FIRST, SOFTMAX_LAST, SIGMOID = ROUTERS = "softmax-topk", "topk-softmax", "sigmoid"
BY_POSITION, BY_PROBABILITY = DROPS = "position", "probability"


class Decision(NamedTuple):
    """What the router keeps for each token beside x: small numbers, which papers leave out of their counts."""

    p: object                          # (..., E)
    choice: object                     # (..., k)
    weights: object                    # (..., k)
    total: object                      # (..., 1) what the weights were divided by, or None
    sigmoid: object                    # (..., E) or None
    kind = "statistics"                # what the memory meter counts them as


def route(x, w, k, kind=SOFTMAX_FIRST, bias=None):
    """Choose k experts for each token.

    x (..., h)    w (h, E)    kind: one of ROUTERS    bias (E,) or None: has a say in the choice only
    ->  choice (..., k) integers, best first; weights (..., k) and p (..., E) in float32 or wider; saved
    ValueError for a kind that is none, or a k that E experts have not.
    """
    _check_one_of("kind", kind, ROUTERS)
    if not 1 <= k <= w.shape[-1]:
        raise ValueError(f"k={k} of {w.shape[-1]} experts: expected 1 to {w.shape[-1]}")
    xp = array_namespace(x, w, bias)
    z = wide(x) @ wide(w)
    if kind == SIGMOID:
        score = xp.exp(-xp.logaddexp(0, -z))                          # 1 / (1 + exp(-z)), which no z overflows
        p = score / score.sum(axis=-1, keepdims=True)
    else:
        p = xp.exp(z - z.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        score = p if kind == SOFTMAX_FIRST else z
    ranked = score if bias is None else score + bias
    choice = xp.argsort(-ranked, axis=-1, kind="stable")[..., :k].copy()              # a view would keep all E alive
    weights, total = xp.take_along_axis(p, choice, -1), None
    if kind != SOFTMAX_FIRST:
        total = weights.sum(axis=-1, keepdims=True)
        weights = weights / total
    return choice, weights, p, (x, w, Decision(p, choice, weights, total, score if kind == SIGMOID else None))


def route_backward_input(dweights, dp, saved):
    """Through the weights and through p, as the auxiliary loss sees it.

    dweights (..., k)    dp (..., E), or a number where there is none  ->  dx (..., h), pending
    """
    x, w, (p, choice, weights, total, sigmoid) = saved
    if total is not None:
        dweights = (dweights - (dweights * weights).sum(axis=-1, keepdims=True)) / total
    dp = scattered(dweights, choice, p.shape[-1]) + dp
    dz = p * (dp - (dp * p).sum(axis=-1, keepdims=True))
    if sigmoid is not None:
        dz *= 1 - sigmoid
    return narrow(dz @ wide(w).T, x.dtype), (x, dz, w.dtype)


def route_backward_weight(pending):
    """->  dw (h, E), summed over the leading axes"""
    x, dz, dtype = pending
    return narrow(rows(wide(x)).T @ rows(dz), dtype)


def scattered(values, choice, experts):
    """A column for each expert: values[..., j] in column choice[..., j], 0 elsewhere.

    values, choice (..., k); the number E stands for no expert    ->  (..., E)
    """
    xp = array_namespace(choice)
    return xp.where(choice[..., None] == xp.arange(experts), values[..., None], 0).sum(axis=-2)


# What a whole sequence decides


def load(choice, experts):
    """How many tokens chose each expert.  choice (..., s, k)  ->  (..., E) integers"""
    return (choice[..., None] == array_namespace(choice).arange(experts)).sum(axis=(-3, -2))


def capacity(k, s, experts, factor, least=0):
    """Tokens that an expert takes of a sequence: ceil(k s / E * factor), at least `least` and at most s.

    k s / E would be the load of each, if all had the same; `factor` is taken as the decimal number that it is written.
    (Fedus et al. 2022, equation 3, for k = 1; GShard has one for k = 2.)
    """
    return min(max(math.ceil(Fraction(k * s, experts) * Fraction(str(factor))), least), s)


def kept(choice, weights, positions, room, experts, drop=BY_POSITION):
    """Which choices an expert with `room` for so many tokens of each sequence takes.

    choice, weights (b, s, k)    positions (s,) in the sequence, in any order, all of them
    drop    "position": the first ones stay    "probability": the heaviest ones stay, of equal ones the first
    ->      (b, s, k) booleans
    """
    _check_one_of("drop", drop, DROPS)
    xp = array_namespace(choice)
    order = xp.argsort(integers(positions, choice))
    choice = choice[:, order]
    chosen = (choice[..., None] == xp.arange(experts)).any(axis=-2)                                       # (b, s, E)
    urgency = scattered(weights[:, order], choice, experts) if drop == BY_PROBABILITY else 1.0 * chosen
    queue = xp.argsort(xp.where(chosen, -urgency, 1), axis=1, kind="stable")            # who has not chosen comes last
    turn = xp.argsort(queue, axis=1)
    taken = xp.take_along_axis(chosen & (turn < room), choice, -1)
    return taken[:, xp.argsort(order)]


def _check_one_of(name, value, known):
    if value not in known:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(known)}; "
                         f"nearest {difflib.get_close_matches(str(value), known, n=1, cutoff=0.0)[0]!r}")


def frequency(load, k, s, dtype):
    """f: an expert's load over the mean one.  load (b, E) of s tokens each  ->  (b, E) of this dtype"""
    return load.astype(dtype) * (load.shape[-1] / (k * max(s, 1)))


def update_bias(bias, load, rate):
    """The bias after a step: `rate` more for experts with less than the mean load, `rate` less for those with more.

    bias (E,)    load (E,) of the whole step, all ranks and micro-batches    ->  (E,), a new array
    """
    return bias + rate * array_namespace(bias, load).sign(load.mean() - load).astype(bias.dtype)
