"""One layer of a transformer: attention and an MLP, each read from the residual stream and added to it.

    x --+--> norm1 --> wqkv --> attend --> wo --> dropout --(+)--> x1 --+--> norm2 --> MLP --> dropout --(+)--> y
        '------------------------------------------------->--'          '------------------------------->--'

Kept for backward, in bytes per s b h, for a GPT-2 style layer in float16 (Korthikanti et al. 2022, section 4.1):

    norm1   x 2          attend   q k v 6, and 5 a s/h     norm2   x1 2         gelu   its input 8
    wqkv    its input 2  wo       its input 2              w1      its input 2  w2     its input 8
    dropout              mask 1                            dropout              mask 1       in all 34 + 5 a s/h

    recompute     "selective": attend keeps q, k, v and computes its probabilities again in backward: 34
                  "full": only x is kept, and the whole forward is done again in backward: 2

A mixture of experts (moe.py) may stand in the MLP's place. What became of its tokens, and its auxiliary loss, is
`routed(saved)`; the loss's gradient comes with `backward_input(dy, saved, scale)`.

`attend` stands between the two projections and needs whole heads, any number of them: a rank with some of the heads
calls it with its part of qkv. Letters: b sequences, s positions, h hidden, n key-value heads, g query heads for each, d
features a head.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from refimpl.arrays import array_namespace
from refimpl.model import mlp, moe
from refimpl.model.attention import NO_DROPOUT, Dropout, attention, attention_backward
from refimpl.model.blockwise import blockwise_attention, blockwise_attention_backward
from refimpl.model.dropout import ATTENTION, MLP, PROJECTION, dropout, dropout_backward
from refimpl.model.layers import add, linear, linear_backward_input, linear_backward_weight
from refimpl.model.norms import norm, norm_backward_input, norm_backward_weight
from refimpl.model.rope import rope, rope_backward


@dataclass(frozen=True)
class Place:
    """Which part of the whole batch the arrays at hand are: global numbers, known on the host (range, list, array)."""

    sequences: object                  # (b,) of the batch
    positions: object                  # (s,) in the sequence
    heads: object                      # (n g,) query heads
    seed: int = 0
    step: int = 0
    core: object = None                # (forward, backward) of attention where keys are on other ranks, too
    experts: object = None             # the groups that share them, see parallel/expert_groups.py

    def key(self, layer, site):
        """The key of the dropout mask at this site of this layer."""
        return self.seed, self.step, layer, site


def whole(x, config, seed=0, step=0):
    """The `Place` of the only device's x (b, s, ...): all there is, numbered from 0."""
    return Place(range(x.shape[0]), range(x.shape[1]), range(config.heads), seed, step)


def forward(x, parameters, config, layer=0, place=None):
    """One block.

    x (b, s, h)    parameters: the block's own, by name (see config.block_shapes)    layer: its number, for dropout
    place          which part of the batch x is; the whole of it if None
    ->             y (b, s, h), saved
    """
    place = whole(x, config) if place is None else place
    if config.experts and (place.core or place.experts):
        raise ValueError(f"experts={config.experts} on several ranks: here they would decide on a part of the "
                         "sequences; expected parallel.block.forward, with place.experts")
    y, saved = _forward(x, parameters, config, layer, place)
    return y, Restart(x, parameters, config, layer, place, routed(saved)) if config.recompute == "full" else saved


class Restart(NamedTuple):
    """All that full recomputation keeps: the arguments of the forward; and what it had to report."""

    x: object
    parameters: dict
    config: object
    layer: int
    place: Place
    routed: object


def _forward(x, parameters, config, layer, place):
    part, axes = parameters.get, (place.sequences, place.positions, range(config.hidden))
    n1, saved1 = norm(x, part("norm1.w"), part("norm1.b"), config.epsilon)
    qkv, saved2 = linear(n1, part("attention.wqkv"), part("attention.bqkv"))
    context, saved3 = attend(qkv, part("attention.wqkv").shape[1:], config, layer, place)
    branch, saved4 = linear(context, part("attention.wo"), part("attention.bo"))
    branch, saved5 = dropout(branch, config.dropout, place.key(layer, PROJECTION), axes)
    x1 = add(x, branch)
    n2, saved6 = norm(x1, part("norm2.w"), part("norm2.b"), config.epsilon)
    if config.experts:
        branch, saved7 = moe.forward(n2, moe_part(parameters), config, place.positions)
    else:
        branch, saved7 = mlp.forward(n2, mlp_part(parameters), config.activation)
    branch, saved8 = dropout(branch, config.dropout, place.key(layer, MLP), axes)
    return add(x1, branch), (saved1, saved2, saved3, saved4, saved5, saved6, saved7, saved8)


def routed(saved):
    """What became of a mixture's tokens: `moe.Routed`, from what `forward` saved; None for an MLP."""
    if isinstance(saved, Restart):
        return saved.routed
    return getattr(saved[6], "routed", None)


def backward_input(dy, saved, scale=None):
    """The urgent half: dy (b, s, h)  ->  dx (b, s, h), pending

    scale    what the total loss is multiplied by, 1 / count times the loss scale: dy is already, and the gradient of a
             mixture's auxiliary loss will be. Without such a loss it is not asked for; ValueError where it is missing
    """
    if isinstance(saved, Restart):
        x, parameters, config, layer, place, _ = saved
        _, saved = _forward(x, parameters, replace(config, recompute="none"), layer, place)
    saved1, saved2, saved3, saved4, saved5, saved6, saved7, saved8 = saved
    dbranch = dropout_backward(dy, saved8)
    mixture = isinstance(saved7, moe.Saved)
    dn2, pending_mlp = moe.backward_input(dbranch, saved7, scale) if mixture else mlp.backward_input(dbranch, saved7)
    dx1, pending_norm2 = norm_backward_input(dn2, saved6)
    dx1 = add(dy, dx1)
    dcontext, pending_wo = linear_backward_input(dropout_backward(dx1, saved5), saved4)
    dn1, pending_wqkv = linear_backward_input(attend_backward(dcontext, saved3), saved2)
    dx, pending_norm1 = norm_backward_input(dn1, saved1)
    return add(dx1, dx), (pending_norm1, pending_wqkv, pending_wo, pending_norm2, pending_mlp)


def backward_weight(pending):
    """The half that can wait: pending  ->  gradients, a dict with the names and shapes of the parameters"""
    pending_norm1, pending_wqkv, pending_wo, pending_norm2, pending_mlp = pending
    gradients = {}
    gradients["norm1.w"], gradients["norm1.b"] = norm_backward_weight(pending_norm1)
    gradients["attention.wqkv"], gradients["attention.bqkv"] = linear_backward_weight(pending_wqkv)
    gradients["attention.wo"], gradients["attention.bo"] = linear_backward_weight(pending_wo)
    gradients["norm2.w"], gradients["norm2.b"] = norm_backward_weight(pending_norm2)
    kind, module = ("moe", moe) if isinstance(pending_mlp, moe.Pending) else ("mlp", mlp)
    gradients |= {f"{kind}.{name}": gradient for name, gradient in module.backward_weight(pending_mlp).items()}
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


def backward(dy, saved, scale=None):
    """Both halves at once: dy (b, s, h)  ->  dx (b, s, h), gradients"""
    dx, pending = backward_input(dy, saved, scale)
    return dx, backward_weight(pending)


# What stands between the projections, for any number of heads


def attend(qkv, parts, config, layer, place):
    """Split into heads, turn queries and keys (llama), attend causally, join the heads.

    qkv (b, s, n (g + 2) d), laid out as wqkv's columns    parts (n, g + 2, d): the heads at hand
    ->  context (b, s, n g d), saved
    """
    n, heads, d = parts
    b, s, _ = qkv.shape
    qkv = qkv.reshape(b, s, n, heads, d)
    q, k, v = qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]               # views: they keep qkv, once
    if config.family == "llama":
        q, k = (rope(x, place.positions, config.rope_base)[0] for x in (q, k))
        v = v.copy()                                                           # else all of qkv would be kept for it
    drop = NO_DROPOUT
    if config.dropout:
        drop = Dropout(config.dropout, place.key(layer, ATTENTION), place.sequences, place.heads)
    core, core_backward = place.core or CORES[config.attention]
    arguments = q, k, v, True, place.positions, place.positions, drop
    out, saved = core(*arguments)
    again = core if config.recompute == "selective" else None
    saved = arguments if again else saved, again, core_backward, q.shape, config, place
    return out.reshape(b, s, n * (heads - 2) * d), saved


CORES = {
    "naive": (attention, attention_backward),
    "blockwise": (blockwise_attention, blockwise_attention_backward),
}


def attend_backward(dcontext, saved):
    """dcontext (b, s, n g d)  ->  dqkv (b, s, n (g + 2) d)        no weights here, so nothing is pending"""
    saved, again, core_backward, (b, s, n, g, d), config, place = saved
    if again:
        _, saved = again(*saved)
    dq, dk, dv = core_backward(dcontext.reshape(b, s, n, g, d), saved)
    if config.family == "llama":
        dq, dk = (rope_backward(grad, (place.positions, config.rope_base)) for grad in (dq, dk))
    xp = array_namespace(dq)
    return xp.concatenate([dq, dk[..., None, :], dv[..., None, :]], -2).reshape(b, s, n * (g + 2) * d)


def mlp_part(parameters):
    """The MLP's parameters, by their names in mlp.py."""
    return {name.removeprefix("mlp."): p for name, p in parameters.items() if name.startswith("mlp.")}


def moe_part(parameters):
    """A mixture's parameters, and perhaps its router's bias, by their names in moe.py."""
    return {name.removeprefix("moe."): p for name, p in parameters.items() if name.startswith("moe.")}
