"""What a question's `check` may call on mixtures of experts: as in evidence.py, small experiments that compute its key.

    favourite(2, 4096, 8, 1.25)           all tokens choose one expert, and the layer says how many it took
    exchanged(4, 2).rows                  the layer runs on ranks, and a ledger counts
    Layout(dp=2, ep=2).world              ranks are counted
"""

from dataclasses import dataclass, replace

import numpy as np

from refimpl import Layout, Ledger, run
from refimpl.collectives import all_reduce, all_to_all
from refimpl.model import moe, router
from refimpl.model.adam import Adam, Moments, update
from refimpl.model.config import Config, expert_shapes
from refimpl.parallel import dispatch, expert
from refimpl.parallel.expert_groups import Experts, check_sizes

ROWS = (dispatch.DISPATCH, dispatch.COMBINE, dispatch.COMBINE_BACKWARD, dispatch.DISPATCH_BACKWARD)
BASE = Config("llama", vocabulary=2, hidden=4, layers=1, heads=1, ffn=4, experts=4, top_k=2, expert_ffn=2)


def mixture(config, seed=0):
    """Random parameters of a layer with this config."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in expert_shapes(config).items()}


def favourite(k, s, experts, factor):
    """How many of s tokens expert 0 takes when all of them like it best."""
    config = replace(BASE, hidden=2, expert_ffn=1, experts=experts, top_k=k, capacity_factor=factor)
    parameters = mixture(config) | {"router": np.tile(-np.arange(float(experts)), (2, 1))}
    _, saved = moe.forward(np.ones((1, s, 2)), parameters, config)
    return int(saved.routed.kept[0])


def dropped_output():
    """The largest number in the layer's output for a token that no expert takes."""
    config = replace(BASE, top_k=1, capacity_factor=0.25)
    parameters = mixture(config) | {"router": np.eye(4)}
    x = np.tile(np.eye(4)[0], (1, 8, 1))                             # all choose expert 0, which takes one of 8
    y, _ = moe.forward(x, parameters, config)
    return float(abs(y[0, 1:]).max())


@dataclass(frozen=True)
class Exchanged:
    """What rank 0 sent in a step: rows of the dispatch; how many of the phases carry rows; numbers of the counts."""

    rows: float
    all_to_alls: int
    counts: float


def exchanged(P, k, tokens=16, experts=16):
    """A step on P ranks with so many tokens each, of which every expert gets as many."""
    config = replace(BASE, hidden=experts, experts=experts, top_k=k)
    liked = sum(np.roll(np.eye(experts), j, axis=1) for j in range(k))                 # token t: experts t, t+1, ...
    whole = mixture(config) | {"router": liked}
    each = experts // P

    def program(comm):
        mine = slice(each * comm.rank, each * (comm.rank + 1))
        alone = comm.split(comm.rank)
        parameters = whole | {name: whole[name][mine] for name in ("w1", "w2")}
        x = np.eye(experts)[np.arange(tokens) % experts][None]
        y, saved = expert.forward(x, parameters, config, alone, Experts(comm, alone))
        expert.backward(np.ones_like(y), saved)

    log = Ledger()
    run(program, P, ledger=log)
    row = 8 * experts
    return Exchanged(log.bytes_sent(rank=0, phase=ROWS[0]) / row, sum(log.bytes_sent(phase=name) > 0 for name in ROWS),
                     log.bytes_sent(rank=0, phase=dispatch.COUNTS) / 8)


def gradient_factor(ep):
    """How much too large an expert's gradient is if ranks divide by their own tokens, and replicas take the mean."""
    x = np.arange(1.0, 1 + 4 * ep * ep).reshape(ep, 4 * ep)                          # of each rank, 4 for every expert

    def program(comm):
        mine = x[comm.rank] / len(x[comm.rank])                                        # a loss that is a mean: y = w x
        summed = sum(part.sum() for part in all_to_all(list(mine.reshape(ep, 4)), comm))
        return summed                                                                  # no other rank has this expert

    wrong = run(program, ep)[0]
    return float(wrong / (x.reshape(ep, ep, 4)[:, 0].sum() / x.size))


def shared_gradient_factor(P):
    """The same of a parameter that all P ranks have, and take the mean of."""
    x = np.arange(1.0, 1 + 4 * P).reshape(P, 4)
    found = run(lambda comm: all_reduce(x[comm.rank].mean(keepdims=True), comm)[0] / P, P)[0]
    return found / x.mean()


def router_learns(kind, k):
    """Whether the router's matrix gets a gradient from the weights of the chosen experts."""
    rng = np.random.default_rng(0)
    _, weights, _, saved = router.route(rng.normal(size=(5, 4)), rng.normal(size=(4, 3)), k, kind)
    _, pending = router.route_backward_input(rng.normal(size=weights.shape), 0, saved)
    return bool(abs(router.route_backward_weight(pending)).max() > 1e-12)


def bias_changes(what):
    """Whether a bias changes the "choice" of experts, or the "weight" that the chosen ones' scores give them."""
    x, w = np.array([[1.0, 0.9, 0.1, 0.0]]), np.eye(4)
    plain, _, _, _ = router.route(x, w, 2, router.SIGMOID)
    choice, weights, p, _ = router.route(x, w, 2, router.SIGMOID, np.array([0, 0, 0, 1.0]))
    if what == "choice":
        return not np.array_equal(plain, choice)
    scores = p[0][choice[0]]
    return not np.allclose(weights[0], scores / scores.sum())


def auxiliary_loss(even=True):
    """A token's auxiliary loss, of a coefficient of 1: with as much for every expert to do, or with all at one."""
    x = np.tile(np.eye(4), (2, 1))[None] if even else np.tile(np.eye(4)[:1], (8, 1))[None]
    config = replace(BASE, top_k=1, balance=1.0)
    _, saved = moe.forward(x, mixture(config) | {"router": 5.0 * np.eye(4)}, config)
    return float(saved.routed.balance) / 8


def idle_expert(decay):
    """(its gradient, whether Adam changes it) of an expert that no token has chosen; decay: the weight decay."""
    config = replace(BASE, top_k=1)
    parameters = mixture(config) | {"router": np.eye(4)}
    y, saved = moe.forward(np.eye(4)[None, :3], parameters, config)
    _, gradients = moe.backward(np.ones_like(y), saved)
    w, g = parameters["w1"][3].copy(), gradients["w1"][3]
    update(w, g, Moments(np.zeros_like(w), np.zeros_like(w)), 1, Adam(rate=0.1, decay=decay))
    return float(abs(g).max()), not np.array_equal(w, parameters["w1"][3])


def layer_share(experts, k):
    """Parameters of all experts of a layer, over those of the experts that a token uses: counted."""
    shapes = expert_shapes(replace(BASE, experts=experts, top_k=k))
    sizes = [np.prod(shapes[name]) for name in ("w1", "w2")]
    return float(sum(sizes) / sum(size // experts * k for size in sizes))


def refused(expert_tp, tp, sequence_parallel):
    """Whether experts cannot be cut so."""
    try:
        check_sizes(expert_tp, tp, sequence_parallel)
    except ValueError:
        return True
    return False


EXPERTS = {f.__name__: f for f in (
    favourite, dropped_output, exchanged, gradient_factor, shared_gradient_factor, router_learns, bias_changes,
    auxiliary_loss, idle_expert, layer_share, refused, Layout)}
