"""Mixture of experts: E MLPs in place of one, of which each token uses k. More parameters, no more work for a token.

                    .-> expert 2 --* weight .7 --.
    x -+-> router --'-> expert 5 --* weight .3 --(+)--> y          y_t = sum over chosen e of weight_te expert_e(x_t)
       '-------------> shared experts, if any ---'                        + shared(x_t)

A token that an expert drops for want of room gets nothing from it: the residual stream, to which y is added, keeps it.
This is the truth, as plain as can be: every expert computes every token, and the weight, 0 for most, decides. So E/k
times too much work; parallel/expert.py does only what counts, on one rank as on many.

    router (h, E)        bias (E,): no parameter, it has no gradient; among the buffers where config.bias_rate > 0
    w1 (E, h, 2, f)      gpt2: (E, h, f)        w2 (E, f, h)        no biases (as in Megatron's grouped experts)
    shared.w1, .w2       the shared experts as one MLP: n of f features side by side are one of n f features

The auxiliary loss is a sum over tokens, with a target or without, as the cross-entropy is one over targets: the two are
added, and divided by the count of targets once (Megatron scales it so where it counts per token). `Routed.balance` of a
forward is config.balance times that sum; backward is given `scale`, what the total loss is multiplied by: 1/count,
times the loss scale. What dy already is.
Letters: b sequences, s positions, h hidden, E experts, k chosen, f features of an expert.
"""

from typing import NamedTuple

from refimpl.arrays import array_namespace
from refimpl.model import mlp, router
from refimpl.model.layers import add
from refimpl.precision import narrow, wide


class Routed(NamedTuple):
    """What became of the tokens at hand: addends, over all that have other tokens."""

    balance: object                    # () the auxiliary loss, its coefficient included
    load: object                       # (E,) how many chose each expert
    kept: object                       # (E,) how many each expert took
    kind = "statistics"                # what the memory meter counts them as


class Saved(NamedTuple):
    """What backward wants again, and what the forward has to report."""

    choice: object                     # (b, s, k); E where the expert had no room
    weights: object                    # (b, s, k)
    frequency: object                  # (b, E)
    outputs: list                      # of each expert (b, s, h)
    experts: list                      # saved by each
    router: tuple
    shared: tuple | None
    config: object
    routed: Routed


class Pending(NamedTuple):
    """What backward leaves for the weights."""

    router: tuple
    experts: list                      # of each expert
    shared: tuple | None


def forward(x, parameters, config, positions=None):
    """The layer.

    x (b, s, h)    parameters: by name, perhaps with "bias"    positions (s,) in the sequence, all of them, in any order
    ->  y (b, s, h), saved
    """
    E, positions = config.experts, range(x.shape[1]) if positions is None else positions
    check_positions(positions, x.shape[1])
    choice, weights, p, saved_router = router.route(x, parameters["router"], config.top_k, config.router,
                                                    parameters.get("bias"))
    load = router.load(choice, E)
    frequency = router.frequency(load, config.top_k, x.shape[1], p.dtype)
    taken = limited(choice, weights, positions, config)
    routed = routed_of(p, frequency, load, taken, config)
    gates = router.scattered(weights, taken, E)
    outputs, saved_experts = [], []
    for e in range(E):
        y, saved = mlp.forward(x, {"w1": parameters["w1"][e], "w2": parameters["w2"][e]}, config.activation)
        outputs.append(y)
        saved_experts.append(saved)
    y = narrow(sum(gates[..., e:e + 1] * wide(outputs[e]) for e in range(E)), x.dtype)
    saved_shared = None
    if config.shared_experts:
        shared, saved_shared = mlp.forward(x, shared_part(parameters), config.activation)
        y = add(y, shared)
    return y, Saved(taken, weights, frequency, outputs, saved_experts, saved_router, saved_shared, config, routed)


def backward_input(dy, saved, scale=None):
    """The urgent half: dy (b, s, h)  ->  dx (b, s, h), pending

    scale    what the total loss is multiplied by, see above; ValueError without it where there is an auxiliary loss
    """
    check_scale(saved.config, scale)
    xp, E = array_namespace(dy), saved.config.experts
    gates, dgates = router.scattered(saved.weights, saved.choice, E), []
    dx, pending_experts = 0, []
    for e in range(E):
        dgates.append((wide(dy) * wide(saved.outputs[e])).sum(axis=-1))
        more, pending = mlp.backward_input(narrow(gates[..., e:e + 1] * wide(dy), dy.dtype), saved.experts[e])
        dx = dx + wide(more)
        pending_experts.append(pending)
    dweights = gathered(xp.stack(dgates, -1), saved.choice)
    dp = balance_gradient(saved.frequency, saved.config, scale)
    more, pending_router = router.route_backward_input(dweights, dp, saved.router)
    dx, pending_shared = add(narrow(dx, dy.dtype), more), None
    if saved.shared is not None:
        more, pending_shared = mlp.backward_input(dy, saved.shared)
        dx = add(dx, more)
    return dx, Pending(pending_router, pending_experts, pending_shared)


def backward_weight(pending):
    """The half that can wait: pending  ->  gradients by name; of an expert without tokens 0"""
    gradients = {"router": router.route_backward_weight(pending.router)} | stacked(pending.experts)
    return gradients | shared_gradients(pending.shared)


def backward(dy, saved, scale=None):
    """Both halves at once: dy (b, s, h)  ->  dx (b, s, h), gradients"""
    dx, pending = backward_input(dy, saved, scale)
    return dx, backward_weight(pending)


# Pieces that the layer on many ranks has, too: what a token, or an expert, does by itself


def limited(choice, weights, positions, config):
    """The choices that count: E where an expert of a `Config` has no room.  choice, weights (b, s, k)  ->  (b, s, k)"""
    if config.capacity_factor is None:
        return choice
    E, s = config.experts, choice.shape[1]
    room = router.capacity(config.top_k, s, E, config.capacity_factor, config.min_capacity)
    fits = router.kept(choice, weights, positions, room, E, config.drop)
    return array_namespace(choice).where(fits, choice, E)


def routed_of(p, frequency, load, taken, config):
    """The report: p (b, s, E), frequency, load (b, E), taken (b, s, k)  ->  `Routed`"""
    balance = config.balance * (p.sum(axis=1) * frequency).sum()
    return Routed(balance, load.sum(axis=0), router.load(taken, config.experts).sum(axis=0))


def balance_gradient(frequency, config, scale):
    """What the auxiliary loss adds to the gradient of p: frequency (b, E)  ->  (b, 1, E), or 0 where there is none"""
    return (config.balance * scale * frequency[:, None]).astype(frequency.dtype) if config.balance else 0


def check_scale(config, scale):
    """ValueError unless the scale is given, where there is something to scale."""
    if config.balance and scale is None:
        raise ValueError(f"backward was given no scale, but balance={config.balance} makes an auxiliary loss; expected "
                         "what the total loss is multiplied by: 1 / count, times the loss scale")


def check_positions(positions, s):
    """ValueError unless each of s tokens has a position of its own."""
    if len(positions) != s or len(set(positions)) != s:
        raise ValueError(f"x has {s} tokens a sequence, and positions are {len(positions)} numbers, "
                         f"{len(set(positions))} of them different; expected one for each token")


def gathered(columns, choice):
    """columns[..., choice[..., j]], and 0 for the number E.  columns (..., E), choice (..., k)  ->  (..., k)"""
    xp, E = array_namespace(columns), columns.shape[-1]
    return xp.where(choice < E, xp.take_along_axis(columns, xp.minimum(choice, E - 1), -1), 0)


def stacked(pending):
    """Gradients of the experts' w1 and w2, an axis of experts in front.  pending: one for each, at least one"""
    gradients = [mlp.backward_weight(half) for half in pending]
    return {name: array_namespace(g).stack([mine[name] for mine in gradients]) for name, g in gradients[0].items()}


def shared_part(parameters):
    """The shared experts' parameters, by their names in mlp.py."""
    return {name.removeprefix("shared."): p for name, p in parameters.items() if name.startswith("shared.")}


def shared_gradients(pending):
    """Their gradients, by name; none where there are no shared experts (None)."""
    return {} if pending is None else {f"shared.{name}": g for name, g in mlp.backward_weight(pending).items()}


def buffers(parameters, config):
    """What a model keeps that no optimizer may touch: the bias of every layer's router, 0 at first.

    parameters    the whole model's by name, or a rank's    ->  dict by name, {"blocks.0.moe.bias": (E,), ...}
    Give forward both, `parameters | buffers`. Once a step: router.update_bias with the load of the whole step.
    """
    routers = {name: w for name, w in parameters.items() if name.endswith("moe.router")} if config.bias_rate else {}
    return {name.removesuffix("router") + "bias": array_namespace(w).zeros(config.experts, wide(w[:0]).dtype)
            for name, w in routers.items()}
