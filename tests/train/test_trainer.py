"""One trainer, any layout: the run of one device, loss by loss, gradient by gradient, weight by weight."""

import fake_cupy
import numpy as np
import pytest
from trainer_models import (
    CONFIGS,
    DATA,
    SCALE,
    assert_equals_one_device,
    compared,
    on_ranks,
    setup_of,
    train,
    truth_of,
)

from refimpl import Ledger, run
from refimpl.model.adam import Adam
from refimpl.pipeline import FAMILIES
from refimpl.pipeline.tied import TIED
from refimpl.precision import LossScale
from refimpl.train.clipping import NORM
from refimpl.train.pieces import whole
from refimpl.train.run import ALLOWED, largest
from refimpl.train.trainer import COUNT, LOSS, OVERFLOW, TABLE, Trainer, first_parameters

# -- it is the run of one device --------------------------------------------------------------------------------------

AXES = [{"dp": 2}, {"dp": 3}, {"pp": 2}, {"pp": 3}, {"cp": 2}, {"tp": 2}, {"tp": 2, "sequence_parallel": True},
        {"tp": 4}]
PAIRS = [{"dp": 2, "pp": 2}, {"dp": 2, "cp": 2}, {"dp": 2, "tp": 2}, {"pp": 2, "cp": 2}, {"pp": 2, "tp": 2},
         {"cp": 2, "tp": 2, "sequence_parallel": True}]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("how", [{}, *AXES, *PAIRS], ids=str)
def test_a_dense_model_under_every_axis_and_pair_of_axes(family, how):
    assert_equals_one_device(setup_of(family, **how), steps=3)


@pytest.mark.parametrize("family", ["moe", "biased"])
@pytest.mark.parametrize("how", [
    {}, {"dp": 2, "ep": 2}, {"cp": 2, "ep": 2}, {"tp": 2}, {"dp": 2, "tp": 2, "ep": 2}, {"dp": 4, "ep": 2},
    {"tp": 2, "ep": 2, "expert_tp": 1, "sequence_parallel": True}, {"dp": 2, "pp": 2, "ep": 2, "zero": 3},
    {"dp": 2, "cp": 2, "ep": 4, "zero": 2}], ids=str)
def test_a_mixture_of_experts_with_dropped_tokens_auxiliary_losses_and_biases(family, how):
    assert_equals_one_device(setup_of(family, **how), steps=3)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("how", [{"dp": 3}, {"dp": 2, "pp": 2}, {"cp": 2, "tp": 2}, {"dp": 9}], ids=str)
def test_every_zero_stage_with_more_ranks_than_sequences_too(zero, how):
    assert_equals_one_device(setup_of(zero=zero, **how))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_schedule(name):
    family = FAMILIES[name]
    chunks = 2 if family.any_chunks else family.chunks
    assert_equals_one_device(setup_of("gpt2", layers=5, pp=2, dp=2, tp=1, schedule=name, chunks=chunks))


@pytest.mark.parametrize("kind, ulysses", [("ring", None), ("zigzag", None), ("striped", None), ("gather", None),
                                           ("ulysses", None), ("hybrid", 2)])
def test_every_kind_of_context_parallelism(kind, ulysses):
    assert_equals_one_device(setup_of("llama", cp=4, cp_kind=kind, ulysses=ulysses))


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "moe"])
def test_recomputing_changes_nothing(recompute, family):
    found = compared(setup_of(family, dp=2, tp=2, zero=3, recompute=recompute))
    assert found["passed"]
    plain = truth_of(setup_of(family))
    assert [step.loss for step in plain.steps] == pytest.approx(found["losses"], rel=1e-13)


def test_blockwise_attention_too():
    assert_equals_one_device(setup_of(attention="blockwise", dp=2, tp=2))


@pytest.mark.parametrize("P, how", [
    (1, {}), (2, {"dp": 2, "zero": 3}), (2, {"pp": 2, "schedule": "zb_h1"}),
    (4, {"dp": 2, "tp": 2, "sequence_parallel": True, "zero": 1}), (4, {"pp": 2, "cp": 2})], ids=str)
def test_in_every_world(P, how, world):
    """Rendezvous and eager sends in one process, and processes under MPI."""
    assert_equals_one_device(setup_of(**how))


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-cp-pp-dp", "pp-dp-cp-tp"])
def test_a29_sixteen_ranks_every_axis_of_size_two_in_any_order(order):
    setup = setup_of(dp=2, pp=2, cp=2, tp=2, order=order, sequence_parallel=True, zero=1)
    assert setup.layout.world == 16
    fastest = [axis for axis in ("tp", "cp", "dp", "pp") if list(setup.layout.group(axis, 0)) == [0, 1]]
    assert fastest == [order[:2]]
    assert_equals_one_device(setup)


@pytest.mark.parametrize("dtype, grad_dtype", [
    ("float64", "float32"), ("float32", None), ("float32", "float64"), ("float16", None), ("float16", "float32"),
    ("bfloat16", None), ("bfloat16", "float32")])
@pytest.mark.parametrize("family, how", [
    ("gpt2", {"pp": 2, "dp": 2}), ("gpt2", {"tp": 2, "sequence_parallel": True}),
    ("llama", {"cp": 2, "tp": 2, "zero": 1}),
    ("llama", {"tp": 8}), ("moe", {"dp": 2, "ep": 2, "zero": 3}), ("biased", {"tp": 2, "dp": 2, "ep": 2})], ids=str)
def test_every_precision_within_its_bounds(dtype, grad_dtype, family, how):
    """llama on 8 ranks of tp: key and value heads are shared, their gradients addends."""
    found = assert_equals_one_device(setup_of(family, dtype, grad_dtype, **how))
    first, last = found["allowed"]["first"], found["allowed"]["last"]
    assert (first, last) == tuple(max(pair) for pair in zip(ALLOWED[dtype], ALLOWED[grad_dtype or dtype]))


@pytest.mark.parametrize("family, how", [
    ("gpt2", {"dp": 2, "pp": 2}), ("llama", {"tp": 2, "cp": 2, "sequence_parallel": True, "zero": 3}),
    ("moe", {"dp": 2, "tp": 2, "ep": 2, "zero": 2}), ("biased", {"dp": 2, "zero": 3})], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_on_device_arrays_without_a_hidden_wait(family, how, dtype):
    """The stand-in for CuPy refuses what CuPy would do behind one's back."""
    assert_equals_one_device(setup_of(family, dtype, **how), like=fake_cupy.zeros(0))


def test_it_learns():
    losses = train(setup_of("gpt2", dp=2, tp=2, batch=16, adam=Adam(rate=0.02)), steps=25)[0].losses
    assert losses[-1] < losses[0] - 1.5


# -- whole arrays, from one layout to another -------------------------------------------------------------------------

@pytest.mark.parametrize("family", CONFIGS)
def test_a_trainer_goes_on_from_given_parameters(family):
    setup = setup_of(family, dp=2, tp=2)
    given = {name: p + 0.25 for name, p in first_parameters(setup).items()}
    program = lambda comm: Trainer(comm, setup, DATA, parameters=given).held("parameter")
    found = whole(setup.config, setup.layout, run(program, setup.layout.world))
    assert found.keys() == given.keys()
    for name, p in given.items():
        np.testing.assert_array_equal(found[name], p)


# -- tied tables (A22) ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("schedule, dtype", [("1f1b", "float64"), ("1f1b", "bfloat16"), ("zbv", "float64")])
def test_a22_copies_of_a_tied_table_stay_equal_bit_by_bit_and_are_exchanged_once(zero, schedule, dtype):
    """Replicas first, each with its shard, then the two ends, shard by shard; with zbv one rank has the only copy."""
    chunks = 2 if schedule == "zbv" else None
    setup = setup_of("gpt2", dtype, layers=5, dp=2, pp=2, schedule=schedule, chunks=chunks, zero=zero)
    log, steps = Ledger(), 3

    def program(trainer):
        for _ in range(steps):
            trainer.step()
        return {name: held for zero in trainer.zeros for name, held in zero.state().items() if name == TABLE}

    held = on_ranks(setup, program, ledger=log)
    for first in range(setup.layout.world):
        ends = [held[rank][TABLE] for rank in setup.layout.group("pp", first) if held[rank]]
        assert len(ends) == (1 if schedule == "zbv" else 2)
        for copy in ends[1:]:
            assert all(a.tobytes() == b.tobytes() for a, b in zip(copy[3:], ends[0][3:]))
    shard = setup.config.vocabulary * setup.config.hidden // (1 if zero == 0 else 2)
    size = shard * np.dtype("float64" if dtype == "float64" else "uint16").itemsize
    sent = 0 if schedule == "zbv" else size * steps
    assert [log.bytes_sent(rank=rank, phase=TIED) for rank in range(4)] == [sent] * 4


def test_a22_tied_over_two_stages_equals_tied_on_one():
    one, two = (compared(setup_of("gpt2", pp=pp, dp=2)) for pp in (1, 2))
    assert one["passed"] and two["passed"]


# -- the norm (A24) and overflow (A25) over all ranks -----------------------------------------------------------------

LAYOUTS = [{}, {"dp": 3}, {"pp": 3}, {"tp": 2}, {"tp": 8}, {"cp": 2}, {"tp": 2, "sequence_parallel": True},
           {"dp": 2, "zero": 1}, {"dp": 2, "zero": 2}, {"dp": 2, "zero": 3}, {"dp": 2, "pp": 2, "tp": 2, "zero": 1}]


@pytest.mark.parametrize("family", ["gpt2", "llama", "moe"])
def test_a24_the_norm_is_the_same_for_every_layout_on_every_rank(family):
    """Over all stages, tied tables once, what tp ranks have whole once; clipped, so that it matters."""
    wanted = truth_of(setup_of(family, clip=0.1)).steps
    for how in LAYOUTS:
        if family == "llama" or how.get("tp", 1) < 8:
            setup = setup_of(family, clip=0.1, **how)
            for history in train(setup):
                assert [step.norm for step in history.steps] == pytest.approx([step.norm for step in wanted], rel=1e-12)


@pytest.mark.parametrize("how", [
    {"dp": 2, "zero": 2}, {"pp": 2}, {"tp": 2}, {"cp": 2}, {"dp": 2, "pp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("rank", [0, -1])
def test_a25_an_overflow_on_one_rank_is_skipped_by_all(how, rank):
    """Only one rank's part is infinite. All skip, all halve the scale; parameters, moments, count: untouched."""
    setup = setup_of("gpt2", "float16", scale=LossScale(8.0), **how)
    guilty = rank % setup.layout.world

    def program(trainer):
        before = states(trainer)
        loss = trainer.gradients()
        if trainer.comm.rank == guilty:
            trainer.zeros[0].sums(next(iter(trainer.zeros[0].units)))[:1] = np.inf
        step = trainer.update(loss)
        assert states(trainer) == before and trainer.steps == 0 and trainer.number == 1
        following = trainer.step()
        assert trainer.steps == 1 and states(trainer) != before
        return step.skipped, trainer.scale.value, following.skipped

    assert set(on_ranks(setup, program)) == {(True, 4.0, False)}


def states(trainer):
    return {(name, k): array.tobytes() for zero in trainer.zeros for name, held in zero.state().items()
            for k, array in enumerate(held[3:])} | {name: b.tobytes() for name, b in trainer.buffers.items()}


@pytest.mark.parametrize("how", [{}, {"dp": 2}, {"pp": 2, "tp": 2}, {"dp": 2, "zero": 3}], ids=str)
def test_a_loss_scale_that_is_too_large_is_halved_as_on_one_device_until_it_fits(how):
    setup = setup_of("gpt2", "float16", scale=LossScale(2.0**24), **how)
    found = compared(setup, steps=8)
    assert found["skipped_alike"] and found["passed"]
    skipped = [step.skipped for step in truth_of(setup, 8).steps]
    assert skipped[0] and not skipped[-1]


# -- messages beside those of the operators ---------------------------------------------------------------------------

def test_a_step_agrees_on_few_numbers_and_says_which():
    setup, log = setup_of("gpt2", "float16", scale=SCALE, dp=2, pp=2, tp=2), Ledger()
    on_ranks(setup, lambda trainer: trainer.step(), ledger=log)
    assert {phase: log.messages(rank=0, phase=phase) for phase in (COUNT, LOSS, OVERFLOW, NORM)} == \
        {COUNT: 1, LOSS: 2, OVERFLOW: 3, NORM: 3}
    assert log.bytes_sent(rank=0, phase=NORM) == 3 * 8


# -- differences are found --------------------------------------------------------------------------------------------

def test_the_furthest_array_is_named_nan_before_all_and_missing_ones_are_errors():
    truth = {"a": np.ones(3), "b": np.ones(3)}
    assert largest(truth, truth) == ("a", 0.0)
    assert largest(truth | {"b": np.array([1, 1, 1.3])}, truth) == ("b", pytest.approx(0.3 / 3**0.5))
    assert largest({"a": 2 * np.ones(3), "b": np.array([1, 1, np.nan])}, truth) == ("b", np.inf)
    assert largest({"a": 2 * np.ones(3), "b": np.ones(3)}, truth, together=True) == ("a", pytest.approx(0.5**0.5))
    with pytest.raises(ValueError, match="the ranks have b more or less than one device"):
        largest({"a": np.ones(3)}, truth)


def test_bfloat16_is_compared_as_numbers_not_as_the_integers_it_is_stored_as():
    almost = {"a": np.array([0x3F80], np.uint16)}, {"a": np.array([0x3F81], np.uint16)}
    assert largest(*almost)[1] == pytest.approx(2**-7, rel=0.02)
