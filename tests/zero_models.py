"""Training a small transformer under ZeRO, and on one device: for the tests of ZeRO. Batches do not divide evenly."""

from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from backends import device_array
from tp_models import on_device

from refimpl import run
from refimpl.arrays import to_host
from refimpl.collectives import all_reduce
from refimpl.model import transformer
from refimpl.model.adam import Adam
from refimpl.model.config import Config, init, of_block
from refimpl.model.loss import cross_entropy, cross_entropy_backward
from refimpl.parallel.data import plan, share
from refimpl.parallel.units import layers
from refimpl.parallel.zero import Zero
from refimpl.precision import Precision, overflow, wide
from refimpl.testing import REPLICATED, compare
from refimpl.train import single
from refimpl.train.clipping import clip_factor, global_norm

ADAM = Adam(rate=0.01, beta1=0.8, beta2=0.9, decay=0.3)          # large enough that a mistake shows in 5 steps
CONFIGS = {                                                      # a tied table, and two that are not
    "gpt2": Config("gpt2", vocabulary=11, hidden=6, layers=2, heads=2, ffn=7, context=5, dropout=0.2),
    "llama": Config("llama", vocabulary=11, hidden=8, layers=2, heads=2, ffn=5),
}
B, S, STEPS = 7, 5, 5                                            # sequences, positions; on 5 ranks x 3 some have none


def recipe_of(dtype="float64", micro_batches=1, grad_dtype=None, scale=None, adam=ADAM):
    """How to train: with clipping, in this precision."""
    return single.Recipe(adam, Precision(dtype, grad_dtype), 1.0, scale, micro_batches)


def start(config, recipe):
    """Parameters on the host, larger than fresh ones, no two alike, norms and biases included."""
    rng = np.random.default_rng(1)
    fresh = init(config, rng)
    return {name: (p + 0.3 * rng.standard_normal(p.shape)).astype(recipe.precision.master) for name, p in fresh.items()}


def batches(config):
    """[(tokens, targets)] of each step; some targets are ignored, in one sequence all."""
    rng, made = np.random.default_rng(2), []
    for _ in range(STEPS):
        tokens, targets = rng.integers(0, config.vocabulary, (2, B, S))
        targets[0] = -1
        targets[rng.random(targets.shape) < 0.3] = -1
        made.append((tokens, targets))
    return made


def units_of(parameters, how):
    """How parameters are put into units: "layers", or buckets of so many elements."""
    if how == "layers":
        return layers(parameters)
    return plan({name: p.size for name, p in parameters.items()}, how)[::-1]


@cache
def truth(family, recipe):
    """On one device: the state after all steps, the history, and each step's gradients, by name."""
    config = CONFIGS[family]
    state, history, found = single.fresh(start(config, recipe), recipe), [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for number, (tokens, targets) in enumerate(batches(config)):
            loss, gradients = single.loss_and_gradients(state, tokens, targets, config, recipe, number)
            bad = recipe.scale is not None and bool(overflow(gradients.values())[0])
            norm = 0.0 if bad else global_norm(list(gradients.values()))
            history.append(single.apply_(state, loss, gradients, recipe, bad, norm))
            found.append(gradients)
    return state, history, found


def train(P, family, recipe, stage, how="layers", copies=1, ledger=None, **options):
    """The same on P ranks: per rank (history, gradients of each step, states, steps).

    copies    of the whole, for hybrid sharding: P / copies ranks share one        options    as in `on_a_rank`
    """
    def program(comm):
        shard, across = comm, None
        if copies > 1:
            each = comm.size // copies
            shard = comm.split(comm.rank // each, comm.rank, "shard")
            across = comm.split(comm.rank % each, comm.rank, "replicate")
        zero, history, found = on_a_rank(shard, family, recipe, stage, how, across, **options)
        return history, found, states(zero), zero.steps

    with np.errstate(over="ignore", invalid="ignore"):
        return run(program, P, ledger=ledger)


def on_a_rank(comm, family, recipe, stage, how, replicate=None, xp=np, steps=STEPS, prepare=None, sample=None,
              **options):
    """One rank: (zero, history, gradients of each step).

    how        "layers": unit by unit, prefetching; a number: buckets of so many elements, the model as a whole
    prepare    called with zero before the first step; sample: when most is held
    """
    config = CONFIGS[family]
    parameters = start(config, recipe)
    zero = Zero(on_device(xp, parameters), units_of(parameters, how), comm, stage, recipe.adam, recipe.precision,
                replicate, **options)
    if prepare is not None:
        prepare(zero)
    groups = [comm] if replicate is None else [comm, replicate]
    ranks, me = (comm.size, comm.rank) if replicate is None else (
        comm.size * replicate.size, replicate.rank * comm.size + comm.rank)
    scale, history, found = recipe.scale, [], []
    for number, (tokens, targets) in enumerate(batches(config)[:steps]):
        dtotal, loss = (scale.value if scale else 1.0) / int((targets != -1).sum()), 0.0
        mine = share(B, me, ranks, recipe.micro_batches)
        for k, sequences in enumerate(mine):
            place = transformer.Place(sequences, range(S), range(config.heads), recipe.seed, number)
            part = slice(sequences.start, sequences.stop)
            micro_batch = layer_by_layer if how == "layers" else all_at_once
            total = micro_batch(zero, device_array(xp, tokens[part]), device_array(xp, targets[part]), config, place,
                                dtotal, k == len(mine) - 1, sample)
            loss += float(to_host(total)) * dtotal
        zero.finish()
        found.append(parts(zero))
        history.append(step(zero, scale, recipe.clip, comm))
        scale = scale and scale.after(history[-1].skipped)
        for group in groups:
            loss = float(all_reduce(loss, group, algorithm="doubling"))
        history[-1] = history[-1]._replace(loss=loss / (history[-1].scale))
    return zero, history, found


class Step(NamedTuple):
    """What is known of one step afterwards, as in train/single.py."""

    loss: float
    norm: float | None
    skipped: bool
    scale: float


def step(zero, scale, clip, comm):
    """Ask all ranks whether to step, and with which factor; step, or skip."""
    sums, value = list(zero.shards().values()), scale.value if scale else 1.0
    verdict = overflow(sums) if sums else np.zeros(1, np.float32)
    if scale and to_host(all_reduce(to_host(verdict), comm, op="max"))[0]:
        zero.skip()
        return Step(0.0, None, True, value)
    norm = global_norm(sums, [comm] if zero.stage else []) / value
    zero.step(clip_factor(norm, clip) / value)
    return Step(0.0, norm, False, value)


def check(results, family, recipe, gradients=1e-12, states=1e-10):
    """The ranks' results against the truth: gradients of every step, parameters and moments after the last, verdicts.

    In 2 bytes later gradients are those of other parameters, rounded otherwise: then the first ones, and parameters.
    """
    config, (state, history, expected) = CONFIGS[family], truth(family, recipe)
    shapes = {name: p.shape for name, p in state.masters.items()}
    half = recipe.precision.master != recipe.precision.parameters
    stepped = [number for number, step in enumerate(history) if not step.skipped][:1 if half else None]
    for number in stepped:
        same(joined([result[1][number] for result in results], shapes), expected[number], gradients)
    moments = [{name: pair[k] for name, pair in state.moments.items()} for k in (0, 1)]
    for which, wanted in enumerate([state.masters] if half else [state.masters, *moments]):
        same(joined([result[2] for result in results], shapes, which), wanted, states)
    for name, before in start(config, recipe).items():
        assert np.abs(state.masters[name] - before).max() > 1e-3, f"{name} has hardly changed"
    for mine, _, _, steps in results:
        assert mine == results[0][0] and steps == state.steps
        assert [(step.skipped, step.scale) for step in mine] == [(step.skipped, step.scale) for step in history]
        for number in stepped:
            assert mine[number].loss == pytest.approx(history[number].loss, rel=gradients)
            assert mine[number].norm == pytest.approx(history[number].norm, rel=gradients)


def same(found, expected, tolerance):
    """Whole arrays by name, widened, against whole arrays."""
    found, expected = ({name: wide(a) for name, a in arrays.items()} for arrays in (found, expected))
    compare([found], expected, dict.fromkeys(expected, REPLICATED), tolerance=tolerance)


def all_at_once(zero, tokens, targets, config, place, dtotal, last, sample):
    """One micro-batch through the whole model: every unit is gathered, in the end each is reduced."""
    whole = {name: p for key in zero.units for name, p in zero.parameters(key).items()}
    total, _, saved = transformer.loss(tokens, targets, whole, config, place)
    gradients = transformer.loss_backward(dtotal, saved)
    for key in reversed(zero.units):
        zero.reduce(key, {name: gradients[name] for name in zero.units[key].shapes}, last)
        zero.release(key)
    return total


def layer_by_layer(zero, tokens, targets, config, place, dtotal, last, sample):
    """The same, each unit gathered for its own part of forward and of backward only, the next one on its way."""
    keys, kept, x = list(zero.units), [], tokens
    for key, following in zip(keys, [*keys[1:], None]):
        with lent(zero, key, following, config) as parameters:
            if key == "embedding":
                x, saved = transformer.embed(x, parameters, config, place)
            elif key == "head":
                x, saved = transformer.head(x, parameters, config)
            else:
                x, saved = transformer.block_forward(x, inside(parameters, key), config, int(key[7:]), place)
            kept.append(without(saved, parameters))
    total, _, saved = cross_entropy(x, targets)
    dx = cross_entropy_backward(dtotal, saved)
    for key, following in zip(reversed(keys), [*reversed(keys[:-1]), None]):
        with lent(zero, key, following, config) as parameters:
            saved = again(kept.pop(), parameters)
            if key == "embedding":
                gradients = transformer.embed_backward(dx, saved)
            elif key == "head":
                dx, pending = transformer.head_backward_input(dx, saved)
                gradients = transformer.head_backward_weight(pending)
            else:
                dx, gradients = transformer.block_backward(dx, saved)
                gradients = {f"{key}.{name}": g for name, g in gradients.items()}
            if key == "head" and config.tied:
                zero.add("embedding", {"embedding.tokens": gradients.pop("embedding.tokens")})
            zero.reduce(key, gradients, last)
            if sample is not None:
                sample(zero)
    return total


@contextmanager
def lent(zero, key, following, config):
    """A unit's parameters; the tied head's table, too, though it lies in another unit."""
    keys = [key, "embedding"] if key == "head" and config.tied else [key]
    parameters = {name: p for k in keys for name, p in zero.parameters(k).items()}
    if following is not None:
        zero.prefetch(following)
    yield parameters
    for k in keys:
        zero.release(k)


def inside(parameters, key):
    """A block's parameters by their names in the block."""
    return of_block(parameters, int(key[7:]))


class Name(str):
    """Stands for a parameter in what a layer keeps: a unit that something still points to is not freed."""


def without(saved, parameters):
    """What a layer keeps, with names in place of the unit's parameters."""
    names = {id(p): Name(name) for name, p in parameters.items()}
    return walk(saved, lambda thing: names.get(id(thing), thing))


def again(saved, parameters):
    """And with the parameters, gathered once more."""
    return walk(saved, lambda thing: parameters[thing] if isinstance(thing, Name) else thing)


def walk(thing, change):
    """A copy of nested containers, with change(leaf) for each leaf."""
    if isinstance(thing, dict):
        return {key: walk(value, change) for key, value in thing.items()}
    if isinstance(thing, tuple):
        things = [walk(part, change) for part in thing]
        return type(thing)(*things) if hasattr(thing, "_fields") else tuple(things)
    return change(thing)


def parts(zero):
    """Copies of the gradient shards, on the host: {name: (start, stop, flat array)}."""
    ranges = zero.ranges()
    return {name: (*ranges[name][1:3], to_host(g).copy()) for name, g in zero.shards().items()}


def states(zero):
    """Copies of parameters and moments, on the host, likewise: {name: (start, stop, parameter, m, v)}."""
    return {name: (held.start, held.stop, *(to_host(a).copy() for a in held[3:]))
            for name, held in zero.state().items()}


def joined(results, shapes, which=0):
    """Whole arrays from what the ranks hold: every element from one rank, or the same bits from all."""
    whole = {}
    for name, shape in shapes.items():
        flat = None
        for result in results:
            if name not in result:
                continue
            start, stop, array = *result[name][:2], result[name][2 + which]
            if flat is None:
                flat, seen = np.zeros(int(np.prod(shape)), array.dtype), np.zeros(int(np.prod(shape)), bool)
            assert array.shape == (stop - start,)
            everything = start == 0 and stop == flat.size
            assert everything or not seen[start:stop].any(), f"{name}: two ranks hold some of {start}..{stop - 1}"
            if everything and seen.all():
                np.testing.assert_array_equal(flat, array)
            flat[start:stop], seen[start:stop] = array, True
        assert flat is not None and seen.all(), f"no rank holds all of {name}"
        whole[name] = flat.reshape(shape)
    return whole
