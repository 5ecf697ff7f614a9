"""Expert parallelism: the experts of a layer are dealt out over ranks that have different tokens anyway.

    x_r --+--> router --> dispatch ==> experts e_r ==> combine --* weights --(+)--> y_r        ==> all-to-all
          '-------------------> shared experts, as an MLP -------------------'

The ranks that hold the experts are those that have the tokens: expert_groups.py says which, and sums the gradients. A
rank keeps E/ep experts and computes them for the tokens of ep ranks, so it does about as much as before. Four
all-to-alls a layer (dispatch.py); nothing else is sent for the experts, unless

    their features are cut over tp     what leaves is a sum over tp, forward y, backward dx and that of the weights, as
                                       an MLP's; sequence-parallel tokens, weights and choices are gathered before
    a sequence decides as a whole      capacity, auxiliary loss: its choices are gathered from the ranks with other
                                       positions, k + 1/b numbers a token beside the k h that are dispatched

Each rank routes its own tokens, so its gradient of the router is an addend over those with others, as that of a norm.
An expert without tokens has gradient 0, not none: weight decay and moments go on. Mirrors model/moe.py.
Letters: b sequences, s positions, h hidden, E experts, k chosen, f features; a subscript r marks the rank's own.
"""

from typing import NamedTuple

from refimpl.arrays import array_namespace, integers
from refimpl.collectives import all_gather, chunk_sizes
from refimpl.model import mlp, moe, router
from refimpl.model.layers import add
from refimpl.parallel import dispatch, feed_forward, sequence, tensor
from refimpl.parallel.expert_groups import Experts, check_groups
from refimpl.precision import narrow, wide

STATISTICS, FEATURES = "sequence statistics", "expert features"                                              # phases


class Decided(NamedTuple):
    """Where the tokens that the rank dispatches go, and what that weighs."""

    plan: dispatch.Plan
    weights: object                    # (b, s, k)
    frequency: object                  # (b, E)
    kind = "statistics"                # what the memory meter counts them as


class Saved(NamedTuple):
    """What backward wants again, and what the forward has to report."""

    decided: Decided
    outputs: object                    # (b, s, k, h) of the experts, of all tokens that the rank dispatches
    experts: list                      # saved by each that is here
    router: tuple
    shared: tuple | None
    none: dict                         # w1 and w2 of no expert: all that a rank without experts has for gradients
    cut: tuple                         # (group with other features of the experts, or None; sequence-parallel?)
    config: object
    routed: moe.Routed


class Pending(NamedTuple):
    """What backward leaves for the weights."""

    router: tuple
    experts: list
    shared: tuple | None
    none: dict


def forward(x, parameters, config, comm, groups=None, positions=None, sequence_parallel=False):
    """The layer.

    x (b, s, h), the same on every rank of `comm`, the tp group; sequence-parallel: (b, s_r, h)
    parameters    the rank's own, by name: shards.shard    positions (s,) or (s_r,): those of x in the sequence
    groups        `Experts`; None: every rank of comm has all experts, and of each its part of the features
    ->            y as x, saved; saved.routed counts what is in x
    ValueError for groups, positions or experts that do not fit, before anything is sent.
    """
    groups = Experts(expert_tp=comm) if groups is None else groups
    check_groups(groups, comm, sequence_parallel)
    positions = _checked(x, parameters, config, groups, positions, sequence_parallel)
    choice, weights, p, saved_router = router.route(x, parameters["router"], config.top_k, config.router,
                                                    parameters.get("bias"))
    taken, frequency = of_whole_sequence(choice, weights, positions, config,
                                         (comm if sequence_parallel else None, groups.cp))
    routed = moe.routed_of(p, frequency, router.load(choice, config.experts), taken, config)
    cut = (comm, sequence_parallel) if groups.share.tp_size > 1 else (None, False)
    inside, weights, taken = (_gathered(a, cut) for a in (x, weights, taken))
    y, plan, outputs, saved = _through_experts(inside, weights, taken, parameters, config, groups.ep)
    y, saved_shared = _summed(y, cut), None
    if config.shared_experts:
        linear = sequence if sequence_parallel else tensor
        more, saved_shared = feed_forward.forward(x, moe.shared_part(parameters), comm, linear, config.activation)
        y = add(y, more)
    none = {name: parameters[name][:0] for name in ("w1", "w2")}
    decided = Decided(plan, weights, frequency)
    return y, Saved(decided, outputs, saved, saved_router, saved_shared, none, cut, config, routed)


def _checked(x, parameters, config, groups, positions, sequence_parallel):
    """The positions; ValueError unless they are those of x, and the rank has the experts that it should."""
    elsewhere = sequence_parallel or groups.cp is not None and groups.cp.size > 1
    if positions is None and elsewhere and config.capacity_factor is not None:
        raise ValueError(f"positions=None with capacity_factor={config.capacity_factor}, where other ranks have a part "
                         "of the sequence: who has room goes by position; expected those of x in the whole sequence")
    positions = range(x.shape[1]) if positions is None else positions
    moe.check_positions(positions, x.shape[1])
    share, here = groups.share, parameters["w1"].shape[0]
    if here != chunk_sizes(config.experts, share.size)[share.rank]:
        raise ValueError(f"w1 has {here} experts, but rank {share.rank} of {share.size} in ep holds "
                         f"{chunk_sizes(config.experts, share.size)[share.rank]} of {config.experts}: "
                         "shards.shard(parameters, config, rank, size, share=groups.share)")
    return positions


def of_whole_sequence(choice, weights, positions, config, groups):
    """What the positions of a sequence decide together, wherever they are: who has room, and how the load is.

    choice, weights (b, s_r, k)    positions (s_r,)    groups: those with other positions; None: none
    ->  choice (b, s_r, k), E where an expert had no room; frequency (b, E)
    Sends choices and positions, 8 bytes each, and weights if they decide who stays; nothing where nobody asks.
    """
    xp, mine = array_namespace(choice), integers(positions, choice)
    all_choices, all_weights, where = choice, weights, mine
    limits = config.capacity_factor is not None
    for comm in groups if limits or config.balance else ():
        if comm is not None:
            with comm.phase(STATISTICS):
                where = all_gather(where, comm)
                all_choices = all_gather(all_choices, comm, axis=1)
                if limits and config.drop == router.BY_PROBABILITY:
                    all_weights = all_gather(all_weights, comm, axis=1)
    load = router.load(all_choices, config.experts)
    frequency = router.frequency(load, config.top_k, all_choices.shape[1], weights.dtype)
    if not limits:
        return choice, frequency
    taken, order = moe.limited(all_choices, all_weights, where, config), xp.argsort(where)
    return taken[:, order[xp.searchsorted(where[order], mine)]], frequency


def _through_experts(x, weights, choice, parameters, config, comm):
    """There and back.  x (b, s, h), weights, choice (b, s, k)  ->  y (b, s, h), plan, outputs, saved by each"""
    xp, (b, s, h), k = array_namespace(x), x.shape, config.top_k
    plan = dispatch.plan(choice.reshape(b * s, k), config.experts, comm)
    rows = xp.take(x.reshape(b * s, h), plan.order // k, axis=0)
    outputs, saved = [], []
    for e, tokens in enumerate(dispatch.to_experts(rows, plan, dispatch.DISPATCH)):
        y, kept = mlp.forward(tokens, {name: parameters[name][e] for name in ("w1", "w2")}, config.activation)
        outputs.append(y)
        saved.append(kept)
    rows = dispatch.from_experts(outputs, plan, dispatch.COMBINE, x)
    outputs = dispatch.placed(rows, plan).reshape(b, s, k, h)
    y = narrow((weights[..., None] * wide(outputs)).sum(axis=2), x.dtype)
    return y, plan, outputs, saved


def _gathered(x, cut):
    """All tokens that the rank dispatches.  x (b, s_r, ...)  ->  (b, s, ...); x itself where they are here already"""
    comm, sequence_parallel = cut
    if not sequence_parallel:
        return x
    with comm.phase(FEATURES):
        return sequence.gather(x, comm)


def _summed(x, cut):
    """The sum over ranks with other features; sequence-parallel the rank's own positions of it. x may change"""
    comm, sequence_parallel = cut
    if comm is None:
        return x
    with comm.phase(FEATURES):
        return sequence.scatter_sum(x, comm) if sequence_parallel else tensor.summed(x, comm)


def backward_input(dy, saved, scale=None):
    """The urgent half: dy as y  ->  dx as x, pending

    scale    what the total loss is multiplied by, as in model/moe.py; ValueError without it, before anything is sent
    """
    moe.check_scale(saved.config, scale)
    plan, weights, frequency = saved.decided
    dall = wide(_gathered(dy, saved.cut))[..., None, :]                                             # (b, s, 1, h)
    dweights = (dall * wide(saved.outputs)).sum(axis=-1)
    douts = narrow(weights[..., None] * dall, dy.dtype).reshape(plan.choices, dy.shape[-1])
    rows = array_namespace(dy).take(douts, plan.order, axis=0)
    dtokens, pending_experts = [], []
    for drows, kept in zip(dispatch.to_experts(rows, plan, dispatch.COMBINE_BACKWARD), saved.experts, strict=True):
        dx, pending = mlp.backward_input(drows, kept)
        dtokens.append(dx)
        pending_experts.append(pending)
    rows = dispatch.from_experts(dtokens, plan, dispatch.DISPATCH_BACKWARD, dy)
    dx = narrow(wide(dispatch.placed(rows, plan)).reshape(*saved.outputs.shape).sum(axis=2), dy.dtype)
    dx, dweights = _summed(dx, saved.cut), _summed(dweights, saved.cut)
    dp = moe.balance_gradient(frequency, saved.config, scale)
    more, pending_router = router.route_backward_input(dweights, dp, saved.router)
    dx, pending_shared = add(dx, more), None
    if saved.shared is not None:
        more, pending_shared = feed_forward.backward_input(dy, saved.shared)
        dx = add(dx, more)
    return dx, Pending(pending_router, pending_experts, pending_shared, saved.none)


def backward_weight(pending):
    """The half that can wait: pending  ->  gradients of the rank's own parameters, by name    sends nothing"""
    gradients = {"router": router.route_backward_weight(pending.router)} | moe.shared_gradients(pending.shared)
    return gradients | (moe.stacked(pending.experts) if pending.experts else pending.none)


def backward(dy, saved, scale=None):
    """Both halves at once: dy as y  ->  dx as x, gradients"""
    dx, pending = backward_input(dy, saved, scale)
    return dx, backward_weight(pending)
