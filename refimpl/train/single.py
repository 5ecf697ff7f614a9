"""Training as one device does it, from text to updated parameters: the truth that every parallel run is compared with.

    tokens --> loss x scale --> gradients, micro-batch by micro-batch --> overflow? --yes--> halve the scale, next batch
                                                                            |no
               parameters <-- stored anew <-- master <-- Adam <-- clip <-- norm / scale

    state = fresh(init(config, rng), Recipe(precision=Precision("float16")))
    history = train(state, batches(text.load(), recipe, steps=5, context=16), config, recipe)

A batch is any number of sequences and may be cut into micro-batches: gradients are sums over tokens, divided by how
many tokens of the whole batch count, so that how it is cut does not matter. In float64 there is one copy of everything;
in float16 the parameters are what the float32 master rounds to, and the loss is scaled. A step that overflows changes
the scale and nothing else: no parameter, no moment, no count of steps. (Micikevicius et al. 2018.)
"""

from dataclasses import dataclass

import numpy as np

from refimpl.arrays import array_namespace, to_host
from refimpl.collectives import bounds
from refimpl.model import moe, text, transformer
from refimpl.model.adam import Adam, decays, moments, update
from refimpl.model.loss import IGNORED
from refimpl.model.router import update_bias
from refimpl.precision import LossScale, Precision, add_, narrow, overflow, store_, wide
from refimpl.train.clipping import clip_factor, global_norm


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: everything but the model and the data."""

    adam: Adam = Adam()
    precision: Precision = Precision()
    clip: float | None = None                # the largest norm of all gradients together; None: any
    scale: LossScale | None = None           # the first step's; None: the loss is not scaled, overflows not looked for
    micro_batches: int = 1
    seed: int = 0                            # of the text that is drawn, and of dropout

    def __post_init__(self):
        clip_factor(0.0, self.clip)          # ValueError for a limit that is none
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches={self.micro_batches}: expected 1 or more; nearest 1")


@dataclass
class State:
    """What training changes."""

    parameters: dict                         # by name, as the model computes with them
    masters: dict                            # by name, as the optimizer updates them: the same arrays in float32 and 64
    moments: dict                            # Adam's, by name
    buffers: dict                            # what no optimizer may touch: the biases of experts' routers
    steps: int = 0                           # updates so far; skipped ones do not count
    scale: LossScale | None = None


@dataclass(frozen=True)
class Step:
    """What is known of one step afterwards. norm: of the unscaled gradients, before clipping; None if skipped."""

    loss: float
    norm: float | None
    skipped: bool
    scale: float


def fresh(parameters, recipe, config=None):
    """A `State` from fresh parameters, a dict of arrays by name in float32 or wider, which stay as they are.

    config    the model's; needed for routers with a bias
    """
    masters, stored = {}, {}
    for name, p in parameters.items():
        xp = array_namespace(p)
        masters[name] = p.astype(recipe.precision.master)                             # a copy
        stored[name] = narrow(masters[name], xp.dtype(recipe.precision.stored))       # the master itself if it can be
    return State(stored, masters, {name: moments(p) for name, p in masters.items()},
                 {} if config is None else moe.buffers(stored, config), scale=recipe.scale)


def batches(data, recipe, steps, sequences=8, context=16):
    """One batch a step, drawn from the text: tokens (sequences, context) and the tokens that follow, host arrays."""
    for step in range(steps):
        windows = text.windows(data, step, sequences, context, recipe.seed)
        yield windows[:, :-1], windows[:, 1:].astype(np.int64)


def train(state, batches, config, recipe, on_step=None):
    """Train on each batch (tokens, targets), changing `state`: a list of `Step`. Overflow is no reason for warnings.

    on_step    called with the loss after every step
    """
    history = []
    with np.errstate(over="ignore", invalid="ignore"):
        for number, (tokens, targets) in enumerate(batches):
            loads = {}
            loss, gradients = loss_and_gradients(state, tokens, targets, config, recipe, number, loads)
            bad = recipe.scale is not None and bool(to_host(overflow(gradients.values()))[0])
            norm = None if bad else global_norm(list(gradients.values()))
            history.append(apply_(state, loss, gradients, recipe, bad, norm))
            if not bad:
                update_biases(state, loads, config)
            if on_step:
                on_step(loss)
    return history


def loss_and_gradients(state, tokens, targets, config, recipe, number=0, loads=None):
    """Mean loss of a batch, and its gradients times the loss scale, in the recipe's dtype of gradients.

    tokens, targets (b, s)    number: the batch's, for dropout    ->  a float, dict by name
    loads    dict that is told how many tokens chose each expert: by the name of the router's bias (E,)
    """
    scale = state.scale.value if state.scale else 1.0
    count = max(int(to_host((targets != IGNORED).sum())), 1)
    gradients, loss = zeros(state.parameters, recipe.precision), 0.0
    for place in micro_batches(tokens.shape, config, recipe, number):
        mine = slice(place.sequences.start, place.sequences.stop)
        total, _, saved = transformer.loss(tokens[mine], targets[mine], state.parameters | state.buffers, config, place)
        if loads is not None:
            for layer, routed in transformer.routed(saved[0]).items():
                loads[f"{layer}.bias"] = loads.get(f"{layer}.bias", 0) + routed.load
        loss += float(to_host(total)) / count
        for name, gradient in transformer.loss_backward(scale / count, saved).items():
            add_(gradients[name], gradient)
    return loss, gradients


def update_biases(state, loads, config):
    """Move the routers' biases by the load of a step, in place; where they have none, nothing."""
    for name, bias in state.buffers.items():
        bias[...] = update_bias(bias, loads[name], config.bias_rate)


def micro_batches(shape, config, recipe, number=0):
    """The `Place` of each micro-batch of a batch (b, s): consecutive sequences, as many in each as can be."""
    b = bounds(shape[0], recipe.micro_batches)
    return [transformer.Place(range(*ends), range(shape[1]), range(config.heads), recipe.seed, number)
            for ends in zip(b, b[1:])]


def zeros(parameters, precision):
    """An array of zeros for each parameter's gradient."""
    return {name: array_namespace(p).zeros(p.shape, precision.stored_gradients) for name, p in parameters.items()}


def apply_(state, loss, gradients, recipe, overflowed=False, norm=0.0):
    """The second half of a step: unscale, clip, update, store. Changes `state`; -> `Step`

    gradients     by name, times the loss scale, as they come
    overflowed    whether any gradient is inf or nan        norm    of all of them together
    Both over all ranks, where there are more.
    """
    scale = state.scale.value if state.scale else 1.0
    if state.scale is not None:
        state.scale = state.scale.after(overflowed)
    if overflowed:
        return Step(loss, None, True, scale)
    factor = clip_factor(norm / scale, recipe.clip) / scale
    state.steps += 1
    for name, master in state.masters.items():
        gradient = wide(gradients[name]) * factor
        update(master, gradient, state.moments[name], state.steps, recipe.adam, decays(name))
        store_(state.parameters[name], master)
    return Step(loss, norm / scale, False, scale)
