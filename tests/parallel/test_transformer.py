"""The whole model under tensor and sequence parallelism: loss, every gradient, every byte, as on one device."""

from dataclasses import replace

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal
from tp_models import (
    GPT2,
    LLAMA,
    B,
    S,
    assert_same,
    joined,
    loss_on_one_device,
    loss_on_ranks,
    model_example,
    on_device,
    whole_place,
    with_kv,
)

from refimpl import Ledger, run
from refimpl.cost import traffic
from refimpl.parallel import shards, transformer

MODELS = [("gpt2", GPT2, [1, 2, 3, 4]), ("llama", LLAMA, [2, 3, 4]), ("llama 4 kv", with_kv(LLAMA, 4), [2, 4]),
          ("gpt2 3 kv", with_kv(GPT2, 3), [3]), ("llama 1 kv", with_kv(LLAMA, 1), [3, 4]),
          ("gpt2 2 kv", with_kv(GPT2, 2), [4])]
CASES = [pytest.param(config, P, id=f"{name} on {P}") for name, config, ranks in MODELS for P in ranks]


def results_on_ranks(xp, config, P, sequence_parallel, dtype="float64", ledger=None):
    tokens, targets, parameters = model_example(config, dtype)
    arrays = device_array(xp, tokens), device_array(xp, targets), on_device(xp, parameters)
    return run(lambda comm: loss_on_ranks(comm, config, *arrays, sequence_parallel), P, ledger=ledger)


def truth(config, dtype="float64"):
    return loss_on_one_device(config, *model_example(config, dtype))


both_ways = pytest.mark.parametrize("sequence_parallel", [False, True], ids=["tp", "tp+sp"])
both_families = pytest.mark.parametrize("config", [GPT2, with_kv(LLAMA, 2)], ids=["gpt2", "llama"])


def check(xp, config, P, sequence_parallel):
    """Loss and gradients against the truth, bytes of each rank and phase against the formulas."""
    log, expected = Ledger(), truth(config)
    results = results_on_ranks(xp, config, P, sequence_parallel, ledger=log)
    assert results[0].keys() == expected.keys()
    assert_same(joined(results, config), expected)
    for rank in range(P):
        for phase, elements in everything_sent(config, P, rank, sequence_parallel).items():
            assert log.bytes_sent(rank, phase) == 8 * elements, (phase, rank)


def everything_sent(config, P, rank, sequence_parallel):
    """Elements by phase; the loss travels in the dtype of the logits, float32 or wider."""
    h, L, sp = config.hidden, config.layers, sequence_parallel
    parts = [traffic.vocabulary_parallel_embedding(B, S, h, P, rank, sp),
             *[traffic.tensor_parallel_block(B, S, h, P, rank, sp)] * L,
             traffic.vocabulary_parallel_head(B, S, h, P, rank, sp)]
    gpt2 = config.family == "gpt2"
    found = {phase: sum(part[phase] for part in parts) for phase in ("forward", "backward")}
    found["forward"] += traffic.vocabulary_parallel_loss(B * S, P, rank, smoothing=True)
    found["finish"] = traffic.shared_heads_gradients(h, L, config.heads, config.kv_heads, P, rank, bias=gpt2)
    if sp:
        found["finish"] += traffic.sequence_parallel_gradients(h, L, P, rank, gpt2, config.context if gpt2 else 0)
    return found


@both_ways
@pytest.mark.parametrize(("config", "P"), CASES)
def test_loss_every_gradient_and_every_byte_are_as_they_should_be(xp, config, P, sequence_parallel):
    """With dropout, ignored positions, label smoothing, a padded vocabulary and shared key-value heads (A13, A15)."""
    check(xp, config, P, sequence_parallel)


@both_ways
@pytest.mark.parametrize(("config", "P"), [(GPT2, 2), (with_kv(LLAMA, 3), 3), (with_kv(GPT2, 2), 4)])
def test_so_they_are_in_every_world(world, config, P, sequence_parallel):
    check(np, config, P, sequence_parallel)


@both_ways
@both_families
def test_so_the_gradients_are_in_float32(xp, config, sequence_parallel):
    results = results_on_ranks(xp, config, 4, sequence_parallel, "float32")
    assert {g.dtype.name for name, g in results[0].items() if name != "loss"} == {"float32"}
    expected = {name: np.asarray(g, "float32") for name, g in truth(config, "float32").items()}
    found = joined(results, config)
    assert_same(found | {"loss": np.float32(found["loss"])}, expected)


@both_ways
def test_another_number_may_stand_for_ignored_positions(sequence_parallel):
    tokens, targets, whole = model_example(GPT2)
    assert (targets == -1).any()

    def program(comm, targets, ignored):
        mine = shards.shard(whole, GPT2, comm.rank, comm.size)
        return transformer.loss(tokens, targets, mine, GPT2, comm, None, ignored, 0.1, sequence_parallel)[:2]

    assert run(program, 2, targets, -1) == run(program, 2, np.where(targets == -1, 99, targets), 99)


@both_ways
@both_families
def test_what_ranks_have_alike_gets_gradients_of_the_same_bits(config, sequence_parallel):
    """Else the copies would drift apart, step by step (A11: NVIDIA/Megatron-LM #1446)."""
    results = results_on_ranks(np, config, 4, sequence_parallel)
    alike = [name for name in results[0] if "norm" in name or name.endswith((".bo", ".b2", "positions"))]
    assert len(alike) == (15 if config is GPT2 else 5)
    for name in alike:
        for result in results:
            assert_array_equal(result[name], results[0][name])
    if config.kv_heads == 2:
        for first, second in ((0, 1), (2, 3)):
            name = "dblocks.1.attention.wqkv"
            assert_array_equal(results[first][name][..., -2:, :], results[second][name][..., -2:, :])


@both_ways
def test_padding_ids_get_gradient_0(sequence_parallel):
    """11 ids on 4 ranks are padded to 12: the last row of the last shard, of both tables."""
    for config, tables in ((GPT2, ["embedding.tokens"]), (LLAMA, ["embedding.tokens", "head.tokens"])):
        last = results_on_ranks(np, config, 4, sequence_parallel)[-1]
        for table in tables:
            gradient = last[f"d{table}"]
            assert gradient.shape == (3, config.hidden) and gradient[:2].any() and not gradient[2].any()


# -- bad input, before anything is sent -------------------------------------------------------------------------------

@pytest.mark.parametrize(("changes", "tokens", "targets", "P", "says"), [
    ({"heads": 8, "kv_heads": 8}, (B, S), (B, S), 3, "heads=8 is not divisible by tp=3; tp may be 1, 2, 4 or 8"),
    ({"kv_heads": 3}, (B, S), (B, S), 2, "kv_heads=3 of heads=12 are neither divided nor shared evenly by tp=2; "
                                         "tp may be 1, 3, 6 or 12"),
    ({}, (B, 10), (B, 10), 4, "sequence=10 is not divisible by tp=4"),
    ({}, (B, 16), (B, 16), 4, "position 15 is beyond context=13"),
    ({}, (B, S), (B, S - 1), 2, "targets .* do not fit"),
    ({"vocabulary": 3}, (B, S), (B, S), 2, "contains 10; expected 0..2"),
])
def test_what_cannot_be_cut_or_does_not_fit_is_named_before_anything_is_sent(changes, tokens, targets, P, says):
    config = replace(GPT2, **changes)
    _, _, parameters = model_example(config)
    tokens, targets = (np.arange(np.prod(shape)).reshape(shape) % 11 for shape in (tokens, targets))
    log, loss = Ledger(), transformer.loss
    with pytest.raises(ValueError, match=says):
        run(lambda comm: loss(tokens, targets, parameters, config, comm, sequence_parallel=True), P, ledger=log)
    assert log.messages() == 0


def test_a_target_out_of_range_is_named_before_the_forward():
    tokens, targets, parameters = model_example(LLAMA)
    targets[1, 1] = 11
    log = Ledger()
    with pytest.raises(ValueError, match="targets contains 11; expected 0..10, nearest 10"):
        run(lambda comm: transformer.loss(tokens, targets, parameters, LLAMA, comm), 2, ledger=log)
    assert log.messages() == 0


@both_ways
@pytest.mark.parametrize(("changed", "says"), [
    (lambda whole, mine: whole, r"attention.wqkv is \(24, 12, 3, 2\), but rank . of 2 holds \(24, 6, 3, 2\)"),
    (lambda whole, mine: mine | {"embedding.tokens": whole["embedding.tokens"][:4]}, "4 ids on each of 2 ranks do not"),
    (lambda whole, mine: mine | {"norm.w": whole["norm.w"][:5]}, r"norm.w is \(5,\), but rank . of 2 holds \(24,\)"),
    (lambda whole, mine: {name: p for name, p in mine.items() if name != "norm.b"}, "norm.b is missing"),   # RMSNorm's
    (lambda whole, mine: {name: p for name, p in mine.items() if "positions" not in name}, "positions is missing"),
    (lambda whole, mine: mine | {"blocks.1.mlp.b2": whole["blocks.1.mlp.b2"].astype(int)}, "b2 has dtype int64"),
    (lambda whole, mine: {name: p for name, p in mine.items() if name != "blocks.1.mlp.b2"}, "mlp.b2 is missing")])
def test_parameters_of_another_model_or_cut_are_named_before_anything_is_sent(changed, says, sequence_parallel):
    tokens, targets, whole = model_example(GPT2)

    def program(comm):
        mine = changed(whole, shards.shard(whole, GPT2, comm.rank, comm.size))
        transformer.loss(tokens, targets, mine, GPT2, comm, sequence_parallel=sequence_parallel)

    log = Ledger()
    with pytest.raises(ValueError, match=says):
        run(program, 2, ledger=log)
    assert log.messages() == 0


@both_ways
@pytest.mark.parametrize(("changes", "says"), [
    ({"sequences": range(1)}, r"place numbers 1 sequences and 12 positions, but tokens are \(2, 12\)"),   # broadcasts
    ({"positions": range(6)}, "place numbers 2 sequences and 6 positions"),
    ({"positions": range(-1, 11)}, "position -1: expected 0 or more"),
    ({"positions": [0.5] * 12}, "whole numbers expected, not float64")])
def test_a_place_that_is_none_is_named_before_anything_is_sent(changes, says, sequence_parallel):
    tokens, targets, whole = model_example(GPT2)
    place, log = replace(whole_place(GPT2), **changes), Ledger()

    def program(comm):
        mine = shards.shard(whole, GPT2, comm.rank, comm.size)
        transformer.loss(tokens, targets, mine, GPT2, comm, place, sequence_parallel=sequence_parallel)

    with pytest.raises(ValueError, match=says):
        run(program, 2, ledger=log)
    assert log.messages() == 0
