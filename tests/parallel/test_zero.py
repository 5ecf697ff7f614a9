"""Training under every stage of ZeRO equals training on one device: every gradient, every parameter, every moment."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from zero_models import check, recipe_of, train

from refimpl.model.adam import Adam
from refimpl.parallel.units import Unit
from refimpl.precision import LossScale

stages = pytest.mark.parametrize("stage", [0, 1, 2, 3])
HALF = Adam(rate=0.01, beta1=0.8, beta2=0.9, epsilon=1e-2, decay=0.3)         # what is 0 but for rounding stays it
families = pytest.mark.parametrize("family", ["gpt2", "llama"])                     # a tied table, and two tables


@stages
@families
@pytest.mark.parametrize(("P", "how", "micro_batches"), [
    (1, "layers", 3), (2, "layers", 3), (3, "layers", 1), (4, "layers", 3), (5, "layers", 1), (5, "layers", 3),
    (1, 60, 1), (2, 1, 3), (3, 60, 3), (5, 60, 1), (4, 10**6, 1)])
def test_five_steps_are_those_of_one_device(P, how, micro_batches, family, stage):
    """Buckets: every parameter alone, some of about two, one of all. Some ranks have empty micro-batches, or none."""
    recipe = recipe_of(micro_batches=micro_batches)
    check(train(P, family, recipe, stage, how), family, recipe)


@stages
@pytest.mark.parametrize(("P", "copies", "dtype", "tolerance"), [
    (2, 1, "float64", 1e-12), (4, 1, "float64", 1e-12), (4, 2, "float64", 1e-12), (3, 1, "bfloat16", 2e-2)])
def test_so_they_are_in_every_world(world, P, copies, dtype, tolerance, stage):
    recipe = recipe_of(dtype, 2, adam=HALF)
    results = train(P, "gpt2", recipe, stage, copies=copies)
    check(results[:P // copies], "gpt2", recipe, tolerance, max(tolerance, 1e-10))


@pytest.mark.parametrize(("stage", "how", "dtype", "tolerance"), [
    (0, 60, "float16", 5e-3), (1, 60, "float64", 1e-12), (2, 60, "bfloat16", 2e-2), (3, "layers", "float64", 1e-12),
    (3, "layers", "bfloat16", 2e-2)])
def test_so_they_are_on_the_device(xp, how, stage, dtype, tolerance):
    recipe = recipe_of(dtype, adam=HALF)
    check(train(3, "llama", recipe, stage, how, xp=xp), "llama", recipe, tolerance, max(tolerance, 1e-10))


@stages
@pytest.mark.parametrize("alignment", [12, 96])
def test_so_they_are_with_more_padding_than_ranks_and_one_buffer_in_any_order(alignment, stage):
    recipe = recipe_of(micro_batches=2)
    options = {"alignment": alignment, "buffers": 1, "ordered": False}
    check(train(3, "llama", recipe, stage, 60, **options), "llama", recipe)


# -- padding ----------------------------------------------------------------------------------------------------------

def poison(zero):
    """Fill the padding of all that is held with NaN."""
    for key, unit in zero.units.items():
        for held in (zero.held.whole, zero.gradients.whole):
            if key in held:
                held[key][unit.size:] = np.nan
        for held in (zero.held.shards, zero.gradients.shards, zero.masters, *zip(*zero.moments.values())):
            shard = held[key] if isinstance(held, dict) else held[list(zero.units).index(key)]
            shard[unit.held(zero.rank):] = np.nan


@stages
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_A23_padding_of_nan_reaches_no_norm_no_update_and_no_state(dtype, stage, monkeypatch):
    plain, poisoned = Unit.blank, []

    def blank(unit, dtype, like, rank=None):
        made = plain(unit, dtype, like, rank)
        made[unit.size if rank is None else unit.held(rank):] = np.nan
        poisoned.append(made)
        return made

    recipe = recipe_of(dtype)
    clean = train(5, "gpt2", recipe, stage, alignment=20, steps=3)
    monkeypatch.setattr(Unit, "blank", blank)
    spoilt = train(5, "gpt2", recipe, stage, alignment=20, steps=3, prepare=poison)
    assert any(np.isnan(made).any() for made in poisoned)
    for (history, gradients, states, _), (history_too, gradients_too, states_too, _) in zip(clean, spoilt):
        assert history == history_too                                          # loss and norm, to the last bit
        for one, other in zip([*gradients, states], [*gradients_too, states_too]):
            assert one.keys() == other.keys()
            for name in one:
                for mine, theirs in zip(one[name], other[name]):
                    assert_array_equal(mine, theirs)


# -- hybrid sharding --------------------------------------------------------------------------------------------------

@stages
@pytest.mark.parametrize(("P", "copies"), [(4, 2), (6, 3), (3, 3)])
def test_hybrid_sharding_equals_one_device_and_copies_stay_the_same(P, copies, stage):
    recipe = recipe_of(micro_batches=2)
    results = train(P, "gpt2", recipe, stage, copies=copies)
    each = P // copies
    for rank, (_, _, states, _) in enumerate(results):
        assert states.keys() == results[rank % each][2].keys()
        for name, held in states.items():
            for mine, first in zip(held, results[rank % each][2][name]):
                assert_array_equal(mine, first)
    for copy in range(copies):
        check(results[copy * each:(copy + 1) * each], "gpt2", recipe)


# -- 2-byte parameters ------------------------------------------------------------------------------------------------

@stages
@pytest.mark.parametrize(("dtype", "grad_dtype", "tolerance"), [
    ("float16", None, 5e-3), ("float16", "float32", 5e-3), ("bfloat16", None, 2e-2), ("bfloat16", "float32", 2e-2)])
def test_mixed_precision_equals_that_of_one_device_within_its_bound(dtype, grad_dtype, tolerance, stage):
    recipe = recipe_of(dtype, 2, grad_dtype, adam=HALF)
    check(train(3, "llama", recipe, stage), "llama", recipe, tolerance, tolerance)


@stages
@pytest.mark.parametrize("P", [1, 4])
def test_an_overflow_is_skipped_by_all_ranks_and_the_float16_run_goes_on_as_on_one_device(P, stage):
    recipe = recipe_of("float16", 3, scale=LossScale(2.0**18, interval=2), adam=HALF)
    results = train(P, "gpt2", recipe, stage)
    check(results, "gpt2", recipe, 5e-3, 5e-3)
    skipped = [step.skipped for step in results[0][0]]
    assert any(skipped) and not all(skipped)
