"""Whole runs under data parallelism against runs on one device: 5 steps, every gradient, every precision, overflows."""

from dataclasses import replace

import numpy as np
import pytest
from dp_models import CAPS, GPT2, LLAMA, assert_gradients_equal, micro_batches_of, sizes_of
from numpy.testing import assert_array_equal
from tp_models import drawn

from refimpl import Layout, Ledger, Mesh, run
from refimpl.arrays import to_host
from refimpl.collectives import all_reduce
from refimpl.cost import traffic
from refimpl.model.adam import Adam
from refimpl.model.config import shapes
from refimpl.parallel import data
from refimpl.parallel.data import GRADIENTS, GradientBuckets, plan
from refimpl.precision import LossScale, Precision, overflow, wide
from refimpl.testing import norm_of_all, relative_difference
from refimpl.train.clipping import global_norm
from refimpl.train.single import Recipe, apply_, fresh, loss_and_gradients

STEPS, SEQUENCES, POSITIONS = 5, 7, 4
both = pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])


def batches(config):
    """Random tokens, the same ones for everybody; some targets are ignored, unevenly."""
    rng = np.random.default_rng(11)
    for _ in range(STEPS):
        tokens, targets = rng.integers(0, config.vocabulary, (2, SEQUENCES, POSITIONS))
        targets[rng.random(targets.shape) < 0.3] = -1
        targets[rng.integers(SEQUENCES)] = -1
        yield tokens, targets


def on_one_device(config, recipe):
    """[(step, gradients)] of a run, and its state."""
    state, history = fresh(drawn(shapes(config)), recipe), []
    with np.errstate(over="ignore", invalid="ignore"):
        for number, (tokens, targets) in enumerate(batches(config)):
            loss, gradients = loss_and_gradients(state, tokens, targets, config, recipe, number)
            bad = recipe.scale is not None and bool(overflow(gradients.values())[0])
            norm = None if bad else global_norm(list(gradients.values()))
            history.append((apply_(state, loss, gradients, recipe, bad, norm), gradients))
    return history, state


def on_a_rank(comm, config, recipe, cap):
    """The same as one of the ranks: its own part of each batch, the sums of all."""
    state, history = fresh(drawn(shapes(config)), recipe), []
    buckets = plan(sizes_of(state.parameters), cap)
    for number, (tokens, targets) in enumerate(batches(config)):
        step = GradientBuckets(state.parameters, buckets, comm, recipe.precision.stored_gradients)
        mine = micro_batches_of(tokens, targets, config, comm, recipe.micro_batches, recipe.seed, number)
        scale = state.scale.value if state.scale else 1.0
        loss, gradients = data.loss_and_gradients(mine, state.parameters, config, step, scale)
        bad = recipe.scale is not None and bool(all_reduce(overflow(gradients.values()), comm, op="max")[0])
        norm = None if bad else global_norm(list(gradients.values()))
        history.append((apply_(state, loss, gradients, recipe, bad, norm), gradients))
    return history, state


def on_ranks(config, recipe, P, cap, ledger=None):
    with np.errstate(over="ignore", invalid="ignore"):
        return run(on_a_rank, P, config, recipe, cap, ledger=ledger)


def check(config, recipe, P, cap, first=1e-12, last=1e-10):
    """Gradients of every step, losses, norms, parameters; the ranks' copies to the last bit; bytes of gradients.

    Of 2-byte parameters only the gradients of the first step: those of later ones are taken at parameters that have
    been rounded this way or that.
    """
    truth, whole = on_one_device(config, replace(recipe, micro_batches=1))
    log = Ledger()
    results = on_ranks(config, recipe, P, cap, log)
    buckets = [sum(whole.parameters[name].size for name in names) for names in plan(sizes_of(whole.parameters), cap)]
    item = np.dtype(recipe.precision.stored_gradients).itemsize
    for rank, (history, state) in enumerate(results):
        for number, ((step, gradients), (expected, right)) in enumerate(zip(history, truth, strict=True)):
            assert (step.skipped, step.scale) == (expected.skipped, expected.scale)
            assert step.loss == pytest.approx(expected.loss, rel=last)
            if not step.skipped:
                assert step.norm == pytest.approx(expected.norm, rel=10 * last)
                before = sum(not earlier.skipped for earlier, _ in history[:number])
                if not before or recipe.precision.parameters in ("float64", "float32"):
                    assert_gradients_equal(in_float(gradients), in_float(right), last if before else first)
        assert (state.steps, state.scale) == (whole.steps, whole.scale)
        assert largest_difference(state, whole) < last
        for name, p in state.parameters.items():
            assert_array_equal(p, results[0][1].parameters[name])
        assert log.bytes_sent(rank, GRADIENTS) == STEPS * item * traffic.data_parallel(buckets, P, rank)
    return truth, whole


def in_float(gradients):
    return {name: wide(g) for name, g in gradients.items()}


def largest_difference(state, whole):
    """Of masters, in which updates are not rounded away."""
    norm = norm_of_all(whole.masters.values())
    return max(relative_difference(state.masters[name], p, norm) for name, p in whole.masters.items())


@both
@pytest.mark.parametrize("P", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_five_steps_are_those_of_one_device(config, P, cap, micro_batches):
    """With dropout, weight decay, clipping, ignored tokens; 7 sequences do not divide."""
    adam = Adam(rate=1e-2, epsilon=1e-6, decay=0.1)
    recipe = Recipe(adam, Precision("float64"), clip=0.5, micro_batches=micro_batches)
    truth, whole = check(config, recipe, P, cap)
    start = drawn(shapes(config))
    assert all(not np.array_equal(p, start[name]) for name, p in whole.parameters.items())
    assert all(step.norm > 0.5 for step, _ in truth)                             # clipping did something


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("grad_dtype", [None, "float32"])
@pytest.mark.parametrize(("P", "cap", "micro_batches"), [(1, 500, 3), (3, 10**6, 3), (5, 1, 2)])
@both
def test_so_they_are_in_mixed_precision_within_its_bounds(config, precision, grad_dtype, P, cap, micro_batches):
    """In float16 the first steps overflow: skipped by all ranks, as on one device."""
    bound = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}[precision]
    adam = Adam(rate=1e-3, epsilon=1e-2)                   # not 1e-8, which turns rounding near 0 into signs
    scale = LossScale(2.0**22, interval=2, backoff=2.0**-8) if precision == "float16" else None
    recipe = Recipe(adam, Precision(precision, grad_dtype), clip=1.0, scale=scale, micro_batches=micro_batches)
    truth, whole = check(replace(config, dropout=0.0), recipe, P, cap, first=bound, last=bound)
    if scale is not None:
        assert [step.skipped for step, _ in truth] == [True, False, False, False, False]
        assert whole.steps == 4


def test_an_overflow_on_one_rank_is_everybodys():
    """Only the first sequence has inf in its gradient: a bucket's sum carries it to all. bfloat16 carries it, too."""
    for dtype in ("float16", "uint16"):
        def program(comm, dtype=dtype):
            bad = wide(np.zeros(3, dtype))
            bad[1] = np.inf if comm.rank == 0 else 0.0
            step = GradientBuckets({"w": np.zeros(3, dtype)}, [["w"]], comm)
            step.ready("w", bad)
            return float(overflow(step.finish().values())[0])

        with np.errstate(invalid="ignore"):
            assert run(program, 3) == [1.0] * 3


# -- a verdict for shards ---------------------------------------------------------------------------------------------

AXES = {"zero": Layout(dp=2), "tp": Layout(tp=2), "pp": Layout(pp=2), "dp x tp": Layout(dp=2, tp=2)}


@pytest.mark.parametrize("P", [2, 4])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_if_one_shard_overflows_no_rank_takes_the_step(world, P, bad):
    """A25: pytorch/pytorch #136009, fairscale PR #179. Scale 8; without a common verdict the scales would be 4 and 8,
    and the shards of one model at different steps."""
    layouts = {name: layout for name, layout in AXES.items() if layout.world == P}
    recipe = Recipe(Adam(rate=0.1), clip=1.0, scale=LossScale(8.0))
    whole = {"w": np.arange(1.0, 9.0, dtype="float32")}
    gradient = {"w": np.linspace(-1, 2, 8, dtype="float32")}
    cut = lambda arrays, rank: {name: x[rank * 8 // P:(rank + 1) * 8 // P] for name, x in arrays.items()}

    def program(comm, layout):
        mesh = Mesh(comm, layout)
        groups = [mesh.dp, mesh.tp, mesh.pp]
        state, seen = fresh(cut(whole, comm.rank), recipe), []
        for number in range(2):
            mine = {name: 8 / 2**number * g for name, g in cut(gradient, comm.rank).items()}
            mine = {name: g.astype("float32") for name, g in mine.items()}
            if number == 0 and comm.rank == 0:
                mine["w"][0] = bad
            verdict = overflow(mine.values())
            for group in groups:
                verdict = all_reduce(verdict, group, op="max")
            norm = None if verdict[0] else global_norm(list(mine.values()), groups)
            step = apply_(state, 0.0, mine, recipe, bool(verdict[0]), norm)
            moments = [a.any() for pair in state.moments.values() for a in pair]
            seen.append((step.skipped, state.scale.value, state.steps, moments, state.parameters["w"].copy()))
        return seen

    for layout in layouts.values():
        results = run(program, P, layout)
        for rank, (skipped, taken) in enumerate(results):
            assert skipped[:3] == (True, 4.0, 0) and not any(skipped[3])
            assert_array_equal(skipped[4], cut(whole, rank)["w"])
            assert taken[:3] == (False, 4.0, 1)
        together = np.concatenate([taken[4] for _, taken in results])
        np.testing.assert_allclose(together, fresh_step(whole, gradient, recipe), rtol=1e-6)


def fresh_step(whole, gradient, recipe):
    """What one device makes of the finite step: its scale is 4 by then."""
    state = fresh(whole, replace(recipe, scale=LossScale(4.0)))
    scaled = {name: 4 * g for name, g in gradient.items()}
    apply_(state, 0.0, scaled, recipe, norm=global_norm(list(scaled.values())))
    return to_host(state.parameters["w"])
