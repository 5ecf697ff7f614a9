"""The training loop on one device: what mixed precision, accumulation, clipping and a skipped step do to a run."""

from dataclasses import replace

import numpy as np
import pytest
from dp_models import GPT2, LLAMA, batch_of
from numpy.testing import assert_array_equal
from tp_models import drawn, on_device, on_host

from refimpl.model import text, transformer
from refimpl.model.adam import Adam
from refimpl.model.config import Config, init, shapes
from refimpl.precision import LossScale, Precision, wide
from refimpl.testing import norm_of_all, relative_difference
from refimpl.train.clipping import global_norm
from refimpl.train.single import Recipe, apply_, batches, fresh, loss_and_gradients, train

TEXT = Config("gpt2", vocabulary=256, hidden=16, layers=2, heads=4, context=8, dropout=0.1)
both = pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])


def trained(config, recipe, steps=5, sequences=6):
    """State and history after these steps on text of as many symbols as the config has."""
    data = bytes(byte % config.vocabulary for byte in text.load()[:4000])
    state = fresh(drawn(shapes(config)), recipe)
    return state, train(state, batches(data, recipe, steps, sequences, context=8), config, recipe)


def difference(found, expected):
    """The largest relative difference of two dicts of parameters, in what they are computed in."""
    norm = norm_of_all([wide(p) for p in expected.values()])
    return max(relative_difference(wide(found[name]), wide(p), norm) for name, p in expected.items())


@both
def test_a_step_is_the_gradient_of_the_mean_loss_through_adam(config):
    tokens, targets, parameters = batch_of(config)
    recipe = Recipe(Adam(rate=0.01), Precision("float64"), seed=3)
    state = fresh(parameters, recipe)
    history = train(state, [(tokens, targets)], config, recipe)
    total, count, saved = transformer.loss(tokens, targets, parameters, config, transformer.whole(tokens, config, 3, 0))
    gradients = transformer.loss_backward(1 / count, saved)
    assert history[0].loss == pytest.approx(total / count, rel=1e-14)
    assert history[0].norm == pytest.approx(global_norm(list(gradients.values())), rel=1e-12)
    for name, g in gradients.items():                        # Adam's first step: rate g / (|g| + epsilon)
        moved = parameters[name] - 0.01 * g / (np.abs(g) + 1e-8)
        np.testing.assert_allclose(state.parameters[name], moved, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("precision", ["float64", "float32", "float16", "bfloat16"])
def test_a_model_learns_real_text_in_every_precision(precision):
    recipe = Recipe(Adam(rate=0.02), Precision(precision), clip=1.0,
                    scale=LossScale(2.0**8) if precision == "float16" else None)
    state = fresh(init(TEXT, np.random.default_rng(0)), recipe)
    history = train(state, batches(text.load(), recipe, steps=12, context=8), TEXT, recipe)
    assert history[0].loss == pytest.approx(np.log(256), rel=0.02)
    assert history[-1].loss < history[0].loss - 1
    assert not any(step.skipped for step in history) and state.steps == 12


@both
@pytest.mark.parametrize("micro_batches", [2, 3, 7])
def test_how_a_batch_is_cut_into_micro_batches_does_not_matter(config, micro_batches):
    """6 sequences; 7 micro-batches leave one empty. With dropout."""
    recipe = Recipe(Adam(rate=0.01, decay=0.1), Precision("float64"), clip=0.5)
    whole, history = trained(config, recipe)
    cut, cut_history = trained(config, replace(recipe, micro_batches=micro_batches))
    assert difference(cut.parameters, whole.parameters) < 1e-10
    np.testing.assert_allclose([s.loss for s in cut_history], [s.loss for s in history], rtol=1e-12)


def test_micro_batches_weigh_by_their_tokens():
    """A06: of 5 sequences one is ignored altogether, and part of another: a mean of means would differ."""
    tokens, targets, parameters = batch_of(GPT2)
    results = []
    for micro_batches in (1, 2, 5):
        recipe = Recipe(precision=Precision("float64"), micro_batches=micro_batches)
        results.append(loss_and_gradients(fresh(parameters, recipe), tokens, targets, GPT2, recipe))
    for loss, gradients in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-13)
        assert difference(gradients, results[0][1]) < 1e-12


def test_a_batch_of_ignored_tokens_has_loss_0_and_gradients_0():
    tokens, targets, parameters = batch_of(GPT2)
    recipe = Recipe(precision=Precision("float64"))
    loss, gradients = loss_and_gradients(fresh(parameters, recipe), tokens, np.full_like(targets, -1), GPT2, recipe)
    assert loss == 0.0 and not any(g.any() for g in gradients.values())


# -- clipping ---------------------------------------------------------------------------------------------------------

def test_clipping_scales_all_gradients_by_one_factor():
    """Seen in the first moments, which after one step are a tenth of the gradients."""
    free, history = trained(GPT2, Recipe(precision=Precision("float64")), steps=1)
    clipped, same = trained(GPT2, Recipe(precision=Precision("float64"), clip=history[0].norm / 4), steps=1)
    assert same[0].norm == history[0].norm
    for name, (m, _) in free.moments.items():
        np.testing.assert_allclose(clipped.moments[name].m, m / 4, rtol=1e-5)
    ample, _ = trained(GPT2, Recipe(precision=Precision("float64"), clip=history[0].norm * 4), steps=1)
    assert difference(ample.parameters, free.parameters) == 0.0


# -- mixed precision --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("precision", "dtype", "tolerance"), [
    ("float32", "float32", 1e-4), ("float16", "float16", 5e-3), ("bfloat16", "uint16", 2e-2)])
@pytest.mark.parametrize("grad_dtype", [None, "float32"])
@both
def test_a_run_in_less_precision_stays_near_the_run_in_float64(config, precision, dtype, tolerance, grad_dtype):
    config = replace(config, dropout=0.0)
    adam = Adam(rate=1e-3, epsilon=1e-2)                     # not 1e-8, which turns rounding near 0 into signs
    truth, history = trained(config, Recipe(adam, Precision("float64")))
    recipe = Recipe(adam, Precision(precision, grad_dtype), scale=LossScale(64.0) if precision == "float16" else None)
    state, found = trained(config, recipe)
    assert {p.dtype.name for p in state.parameters.values()} == {dtype}
    assert {p.dtype.name for p in state.masters.values()} == {"float32"}
    assert difference(state.parameters, truth.parameters) < tolerance
    np.testing.assert_allclose([s.loss for s in found], [s.loss for s in history], rtol=tolerance)
    np.testing.assert_allclose([s.norm for s in found], [s.norm for s in history], rtol=10 * tolerance)


def test_parameters_are_what_the_master_copy_rounds_to_and_in_float32_the_copy_itself():
    state, _ = trained(GPT2, Recipe(precision=Precision("float16"), scale=LossScale(64.0)))
    for name, master in state.masters.items():
        assert_array_equal(state.parameters[name], master.astype("float16"))
        assert not np.array_equal(master, wide(state.parameters[name]))
    for precision in ("float32", "float64"):
        state, _ = trained(GPT2, Recipe(precision=Precision(precision)), steps=1)
        assert all(state.parameters[name] is master for name, master in state.masters.items())


def test_steps_too_small_for_float16_add_up_in_the_master_copy():
    """1 - 1e-4 is 1 in float16, for ever; in the master 20 such steps are seen."""
    recipe = Recipe(Adam(rate=1e-4), Precision("float16"))
    state = fresh({"norm.w": np.ones(3)}, recipe)
    seen = []
    for _ in range(20):
        apply_(state, 0.0, {"norm.w": np.ones(3, "float16")}, recipe)
        seen.append(float(state.parameters["norm.w"][0]))
    assert seen[:2] == [1.0, 1.0] and seen[-1] == np.float16(1 - 20e-4)


def test_what_was_given_stays_as_it_is():
    parameters = drawn(shapes(GPT2))
    before = {name: p.copy() for name, p in parameters.items()}
    recipe = Recipe(Adam(rate=0.1), Precision("float64"))
    state = fresh(parameters, recipe)
    train(state, [batch_of(GPT2)[:2]], GPT2, recipe)
    assert all(np.array_equal(parameters[name], p) for name, p in before.items())
    assert all(not np.array_equal(state.parameters[name], p) for name, p in before.items())


# -- the loss scale ---------------------------------------------------------------------------------------------------

def test_a_power_of_two_changes_nothing_but_what_would_be_lost():
    """In float32, where nothing under- or overflows, a scaled run has the bits of the run that is not."""
    plain, _ = trained(GPT2, Recipe(Adam(rate=0.01), clip=0.5))
    scaled, history = trained(GPT2, Recipe(Adam(rate=0.01), clip=0.5, scale=LossScale(2.0**10, interval=2)))
    assert [step.scale for step in history] == [1024.0, 1024.0, 2048.0, 2048.0, 4096.0]
    assert all(np.array_equal(scaled.masters[name], p) for name, p in plain.masters.items())


def test_gradients_are_0_in_float16_where_the_scale_is_too_small():
    """Scaled by 2^-24 most are below 2^-25, and gone; scaled by 2^6 all are there."""
    tokens, targets, parameters = batch_of(GPT2)
    zeros = {}
    for scale in (2.0**-24, 2.0**6):
        recipe = Recipe(precision=Precision("float16"), scale=LossScale(scale))
        _, gradients = loss_and_gradients(fresh(parameters, recipe), tokens, targets, GPT2, recipe)
        zeros[scale] = (gradients["blocks.1.mlp.w1"] == 0).mean()
    assert zeros[2.0**-24] > 0.5 and zeros[2.0**6] == 0


def snapshot(state):
    """Copies of everything a step may change, the scale apart."""
    moments = [a for pair in state.moments.values() for a in pair]
    return [state.steps, *(a.copy() for a in [*state.parameters.values(), *state.masters.values(), *moments])]


@both
def test_a_step_that_overflows_changes_the_scale_and_nothing_else(config):
    recipe = Recipe(Adam(rate=0.01), Precision("float16"), clip=1.0, scale=LossScale(2.0**24, backoff=0.25))
    state = fresh(drawn(shapes(config)), recipe)
    before, scales = snapshot(state), []
    data = bytes(byte % config.vocabulary for byte in text.load()[:4000])
    for batch in batches(data, recipe, steps=12, context=8):
        step = train(state, [batch], config, recipe)[0]
        scales.append(step.scale)
        after = snapshot(state)
        if not step.skipped:
            break
        assert all(np.array_equal(a, b) for a, b in zip(before, after)) and step.norm is None
    assert len(scales) >= 3 and scales == [2.0**24 * 0.25**k for k in range(len(scales))]
    assert state.steps == 1 and not any(np.array_equal(a, b) for a, b in zip(before, after))
    assert np.isfinite(step.norm)


def test_a_recipe_is_checked():
    with pytest.raises(ValueError, match="micro_batches=0: expected 1 or more"):
        Recipe(micro_batches=0)
    with pytest.raises(ValueError, match="clip=-1: expected a norm above 0, or None"):
        Recipe(clip=-1)


def test_it_runs_on_either_library(xp):
    tokens, targets, parameters = batch_of(GPT2)
    recipe = Recipe(Adam(rate=0.01), Precision("float16"), clip=0.1, scale=LossScale(8.0), micro_batches=2)
    results = []
    for library in (np, xp):
        state = fresh(on_device(library, parameters), recipe)
        batch = [library.asarray(x) for x in (tokens, targets)]
        results.append((train(state, [batch], GPT2, recipe), on_host(state.parameters)))
    assert results[0][0] == results[1][0]
    assert all(np.array_equal(results[1][1][name], p) for name, p in results[0][1].items())
