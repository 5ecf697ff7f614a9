"""Where weights come from and gradients go: units, views that do not keep a unit alive, one reduction for each."""

import numpy as np
import pytest
from trainer_models import CONFIGS, SCALE, assert_equals_one_device, on_ranks, setup_of

from refimpl import Ledger
from refimpl.measure.meter import Meter, held_bytes
from refimpl.model.config import shapes
from refimpl.train.weights import View, replaced, units_for, units_of


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("tp", [1, 2])
def test_every_parameter_is_in_one_unit_and_each_unit_is_used_by_some_part(family, tp):
    config = CONFIGS[family]
    units = units_of(shapes(config), tp)
    assert sorted(name for names in units.values() for name in names) == sorted(shapes(config))
    parts = ["embedding", *(f"blocks.{layer}" for layer in range(config.layers)), "head"]
    assert units.keys() <= {unit for part in parts for unit in units_for(part, config)}
    assert ("tokens" in units_for("head", config)) is config.tied


def test_nested_containers_are_copied_leaf_by_leaf_named_tuples_as_such():
    thing = {"a": (1, [2, None]), "b": SCALE, "c": View(0, "u", 1, (2,), (8,))}
    found = replaced(thing, lambda leaf: leaf + 1 if isinstance(leaf, int) else leaf)
    assert found == {"a": (2, [3, None]), "b": SCALE, "c": View(0, "u", 1, (2,), (8,))}
    assert type(found["c"]) is View and found["a"][1] is not thing["a"][1]


def test_what_was_put_away_keeps_no_unit_alive_and_comes_back_bit_by_bit():
    """Views of every kind: whole, sliced along a middle axis, transposed, of one element; and what is no view."""
    def program(trainer):
        weights, apart = trainer.weights, np.ones(3)
        with weights.lent("blocks.1") as parameters:
            p = parameters["blocks.1.attention.wqkv"]
            saved = (p, p[:, 1:], [p[..., -2:, :], p.T], {"one": p[:1, :1]}, apart, None, 3)
            expected = replaced(saved, lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf)
            away = weights.put_away(saved)
        assert weights.zeros[0].held.whole == {} and held_bytes(saved=away)["saved"] == apart.nbytes
        assert away[4] is apart                                                   # it lies in no unit
        with weights.lent("blocks.1"):
            back = weights.fetched(away)
            for mine, theirs in zip(flat(back), flat(expected), strict=True):
                np.testing.assert_array_equal(mine, theirs)

    on_ranks(setup_of("llama", dp=2, zero=3), program)


def flat(thing):
    if isinstance(thing, dict):
        thing = list(thing.values())
    return [leaf for part in thing for leaf in flat(part)] if isinstance(thing, (tuple, list)) else [thing]


@pytest.mark.parametrize("family, how", [
    ("gpt2", {"dp": 3}), ("moe", {"dp": 2, "pp": 2}), ("llama", {"cp": 2, "pp": 2})], ids=str)
def test_under_zero_3_no_unit_stays_between_uses_and_at_most_two_parts_are_there_at_once(family, how):
    """The one that computes and the one that is on its way. Weights that backward remembers are `View`s."""
    setup = setup_of(family, zero=3, **how)

    def program(trainer):
        most, kept = 0, []

        def look():
            nonlocal most
            units = {unit.partition(",")[0] for zero in trainer.zeros for unit in zero.held.whole}
            most = max(most, len(units - {"tokens", "positions"}))
            kept.append(held_bytes(whole=[zero.held.whole for zero in trainer.zeros], saved=trainer.resident["saved"]))

        trainer.observe(look)
        trainer.step()
        assert all(zero.held.whole == {} for zero in trainer.zeros)               # at rest there is none
        meter = Meter(**trainer.resident).sample()
        shards = sum(unit.shard * 8 for zero in trainer.zeros for unit in zero.units.values())
        assert meter["parameters"] == meter["gradients"] == shards and meter["optimizer"] == 2 * shards
        return most, len(kept)

    for most, looks in on_ranks(setup, program):
        assert 1 <= most <= 2 and looks > 0


# -- case A07 ---------------------------------------------------------------------------------------------------------

def reductions(setup):
    """How many messages each rank sent to reduce gradients in one step, by phase and group."""
    log = Ledger()

    def program(trainer):
        trainer.step()
        return [len(zero.units) for zero in trainer.zeros]

    return log, on_ranks(setup, program, ledger=log)


@pytest.mark.parametrize("schedule, chunks", [("1f1b", 1), ("gpipe", 1), ("zb_h1", 1), ("interleaved", 2), ("zbv", 2)])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a07_each_parameter_takes_part_in_one_reduction_a_step_or_one_a_micro_batch(schedule, chunks, zero):
    """On every stage, the last one included, which has no warm-up. dp = 2: a reduction is one message of a rank."""
    setup = setup_of("llama", layers=5, dp=2, pp=2, schedule=schedule, chunks=chunks, zero=zero)
    log, units = reductions(setup)
    each = 2 if zero == 0 else 1                                 # an all-reduce is a reduce-scatter and an all-gather
    times = setup.microbatches if zero >= 2 else 1
    for rank, (number,) in enumerate(units):
        assert log.messages(rank=rank, phase="zero reduce") == each * times * number


def test_a07_experts_are_reduced_once_too_over_their_own_replicas():
    log, units = reductions(setup_of("moe", dp=4, ep=2, pp=1))
    for rank, (dense, experts) in enumerate(units):
        assert log.messages(rank=rank, phase="zero reduce", group="dp_cp") == 2 * 3 * dense
        assert log.messages(rank=rank, phase="zero reduce", group="expert_dp") == 2 * experts


def test_a07_replicas_end_with_the_same_bits_the_sum_over_micro_batches_and_ranks():
    setup = setup_of("gpt2", dp=2, pp=2, micro_batch=2)
    assert setup.microbatches == 2

    def program(trainer):
        trainer.step()
        return {name: held.parameter.tobytes() for zero in trainer.zeros for name, held in zero.state().items()}

    bits = on_ranks(setup, program)
    for rank in range(setup.layout.world):
        assert all(bits[other] == bits[rank] for other in setup.layout.group("dp", rank))
    assert_equals_one_device(setup)
