"""One layer under tensor and sequence parallelism: values, gradients, bytes, what it keeps, what it drops."""

from dataclasses import replace

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal
from tp_models import GPT2, LLAMA, B, S, assert_same, block_example, on_device, on_host, whole_place, with_kv

from refimpl import Layout, Ledger, Mesh, run
from refimpl.arrays import to_host
from refimpl.cost import memory, traffic
from refimpl.measure.meter import held_bytes
from refimpl.model import block as single
from refimpl.parallel import block, heads, sequence, shards
from refimpl.precision import narrow, wide
from refimpl.testing import norm_of_all, relative_difference

RECOMPUTE = ["none", "selective", "full"]
both_ways = pytest.mark.parametrize("sequence_parallel", [False, True], ids=["tp", "tp+sp"])
SMALL = replace(GPT2, layers=1)


def on_one_device(config, dtype="float64"):
    x, dy, parameters = block_example(config, dtype)
    y, saved = single.forward(x, parameters, config, 1, whole_place(config))
    dx, gradients = single.backward(dy, saved)
    return {"y": y, "dx": dx} | {f"d{name}": g for name, g in gradients.items()}


def own_positions(comm, x, sequence_parallel):
    return x[:, sequence.own(x.shape[1], comm.rank, comm.size)] if sequence_parallel else x


def shard(parameters, config, comm):
    """One block's own parameters, by their short names."""
    named = shards.shard({f"blocks.0.{name}": p for name, p in parameters.items()}, config, comm.rank, comm.size)
    return {name.removeprefix("blocks.0."): p for name, p in named.items()}


def on_ranks(comm, xp, config, sequence_parallel, dtype="float64"):
    """{"y", "dx": the rank's own}, {gradients, finished}"""
    x, dy, parameters = block_example(config, dtype)
    x, dy = (device_array(xp, own_positions(comm, a, sequence_parallel)) for a in (x, dy))
    mine = shard(on_device(xp, parameters), config, comm)
    group = heads.sharing(comm, config)
    with comm.phase("forward"):
        y, saved = block.forward(x, mine, config, comm, 1, whole_place(config), sequence_parallel)
    with comm.phase("backward"):
        dx, pending = block.backward_input(dy, saved)
    with comm.phase("weight"):
        gradients = block.backward_weight(pending)
    with comm.phase("finish"):
        gradients = shards.finish(gradients, comm, group, sequence_parallel)
    return on_host({"y": y, "dx": dx}), on_host(gradients)


def check(xp, config, P, sequence_parallel, dtype="float64"):
    log = Ledger()
    results = run(on_ranks, P, xp, config, sequence_parallel, dtype, ledger=log)
    gradients = shards.unshard([{f"blocks.0.{n}": g for n, g in mine.items()} for _, mine in results], config)
    gradients = {name.replace("blocks.0.", "d"): g for name, g in gradients.items()}
    for rank, (alike, _) in enumerate(results):
        if sequence_parallel:
            alike = {name: np.concatenate([other[name] for other, _ in results], 1) for name in alike}
        assert_same(alike | gradients, on_one_device(config, dtype))
        item = np.dtype(dtype).itemsize
        for phase, elements in traffic.tensor_parallel_block(
                B, S, config.hidden, P, rank, sequence_parallel, config.recompute).items():
            assert log.bytes_sent(rank, phase) == item * elements, phase
    assert log.messages(phase="weight") == 0


@both_ways
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("config", [GPT2, replace(with_kv(LLAMA, 2), attention="blockwise")], ids=["gpt2", "llama"])
@pytest.mark.parametrize("P", [2, 4])
def test_a_layer_equals_the_single_device_and_sends_what_the_formula_says(xp, config, P, sequence_parallel, recompute):
    """Recomputation sends the forward once more, if full, and gives the same masks. The weight half sends nothing."""
    check(xp, replace(config, recompute=recompute), P, sequence_parallel)


@both_ways
@pytest.mark.parametrize(("config", "P"), [(GPT2, 2), (LLAMA, 3), (replace(GPT2, recompute="full"), 4)])
def test_so_it_does_in_every_world(world, config, P, sequence_parallel):
    check(np, config, P, sequence_parallel)


@both_ways
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_so_it_does_in_float32(xp, config, sequence_parallel):
    check(xp, config, 3, sequence_parallel, "float32")


@both_ways
@pytest.mark.parametrize(("dtype", "bound"), [("float16", 5e-3), ("bfloat16", 2e-2)])
def test_in_half_precision_it_is_near_the_single_device_in_float64(xp, sequence_parallel, dtype, bound):
    """What is sent and stored has 2 bytes; sums of bfloat16 travel as float32."""
    stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    x, dy, parameters = block_example(GPT2, "float32")
    rounded = {name: narrow(a, stored) for name, a in ({"x": x, "dy": dy} | parameters).items()}
    wide_ = {name: wide(a).astype("float64") for name, a in rounded.items()}
    y, saved = single.forward(wide_.pop("x"), wide_, GPT2, 1, whole_place(GPT2))
    dx, expected = single.backward(wide_.pop("dy"), saved)

    def program(comm):
        mine = shard(on_device(xp, {name: rounded[name] for name in parameters}), GPT2, comm)
        x, dy = (device_array(xp, own_positions(comm, rounded[name], sequence_parallel)) for name in ("x", "dy"))
        y, saved = block.forward(x, mine, GPT2, comm, 1, whole_place(GPT2), sequence_parallel)
        dx, gradients = block.backward(dy, saved)
        gradients = shards.finish(gradients, comm, None, sequence_parallel)
        return on_host({"y": y, "dx": dx}), on_host(gradients)

    results = run(program, 3)
    found = shards.unshard([{f"blocks.0.{n}": g for n, g in mine.items()} for _, mine in results], GPT2)
    found = {name.removeprefix("blocks.0."): g for name, g in found.items()}
    axis = [alike for alike, _ in results] if sequence_parallel else [results[0][0]]
    found |= {name: np.concatenate([alike[name] for alike in axis], 1) for name in ("y", "dx")}
    norm = norm_of_all(expected.values())
    for name, truth in (expected | {"y": y, "dx": dx}).items():
        assert found[name].dtype == stored
        assert relative_difference(wide(found[name]), truth, norm) < bound, name


def test_bytes_of_a_layer_are_eight_tenths_of_those_with_sequence_parallelism():
    """Korthikanti et al. 2022, section 4.2.2: 8 and 10 b s h (t-1)/t."""
    for t in (2, 3, 4):
        plain, sequential = (sum(traffic.tensor_parallel_block(B, S, 24, t, 0, sp).values()) for sp in (False, True))
        assert (plain * t, sequential * t) == (8 * B * S * 24 * (t - 1), 10 * B * S * 24 * (t - 1))


# -- what is kept -----------------------------------------------------------------------------------------------------

def kept(comm, config, sequence_parallel, dtype="float16"):
    """Bytes that one layer keeps from its forward, by kind; its parameters are not among them."""
    x, _, parameters = block_example(config, dtype)
    x, mine = own_positions(comm, x, sequence_parallel).copy(), shard(parameters, config, comm)
    _, saved = block.forward(x, mine, config, comm, 1, None, sequence_parallel)
    return held_bytes(parameters=mine, saved=saved)


def table_2(s, b, h, a, t, sequence_parallel, recompute):
    """Korthikanti et al. 2022, table 2: bytes of a layer in float16, norm statistics left out."""
    sbh, core = s * b * h, 5 * a * s * s * b // t
    if recompute == "full":
        return 2 * sbh // (t if sequence_parallel else 1)
    outside = 10 * sbh // t if sequence_parallel else 10 * sbh
    return outside + 24 * sbh // t + (core if recompute == "none" else 0)


@both_ways
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("t", [1, 2, 3, 4])
def test_saved_activations_equal_table_2_of_korthikanti_et_al(t, recompute, sequence_parallel):
    """GPT-2 style, float16, 4 h hidden features, dropout; counted on the arrays that are held."""
    config = replace(SMALL, ffn=None, recompute=recompute)
    h, a = config.hidden, config.heads
    for rank, sizes in enumerate(run(kept, t, config, sequence_parallel)):
        assert sizes["saved"] == table_2(S, B, h, a, t, sequence_parallel, recompute)
        assert sizes["saved"] == memory.layer_activations(S, B, h, a, t, sequence_parallel, recompute, rank=rank)
        assert sizes.get("statistics", 0) == memory.layer_statistics(S, B, t, sequence_parallel, recompute)


@both_ways
@pytest.mark.parametrize(("config", "t"), [
    (replace(SMALL, dropout=0.0), 2), (replace(SMALL, attention="blockwise"), 4), (with_kv(SMALL, 2), 4),
    (with_kv(replace(LLAMA, attention="blockwise"), 4), 2), (with_kv(LLAMA, 1), 3)])
def test_other_layers_keep_what_the_formula_of_memory_says(config, t, sequence_parallel):
    """Uneven hidden features, shared heads, no dropout, blockwise attention: per rank."""
    for rank, sizes in enumerate(run(kept, t, config, sequence_parallel, "float32")):
        assert sizes["saved"] == memory.layer_activations(
            S, B, config.hidden, config.heads, t, sequence_parallel, kv_heads=config.kv_heads, ffn=config.ffn,
            gated=config.family == "llama", dropout=config.dropout > 0, blockwise=config.attention == "blockwise",
            rank=rank, item=4)


# -- what is dropped --------------------------------------------------------------------------------------------------

def masks_in(saved):
    """All boolean arrays in nested tuples, in order: attention's, the projection's, the MLP's."""
    if isinstance(saved, tuple):
        return [mask for part in saved for mask in masks_in(part)]
    return [to_host(saved)] if getattr(saved, "dtype", "") == "bool" else []


@both_ways
def test_A15_masks_are_equal_where_activations_are_replicated_and_differ_where_they_are_cut(xp, sequence_parallel):
    """tenstorrent/tt-metal #55947, PaddlePaddle/PaddleFleetX PR #1005: dp2 x tp2, and together the single device's."""
    x, _, parameters = block_example(SMALL, b=4)
    x = x.copy()
    whole = masks_in(single.forward(x, parameters, SMALL, 1, whole_place(SMALL, b=4))[1])

    def program(comm, config=SMALL):
        mesh = Mesh(comm, Layout(dp=2, tp=2))
        sequences = slice(2 * mesh.dp.rank, 2 * mesh.dp.rank + 2)
        mine = own_positions(mesh.tp, x[sequences], sequence_parallel)
        place = replace(whole_place(config), sequences=range(4)[sequences])
        part = shard(on_device(xp, parameters), config, mesh.tp)
        return masks_in(block.forward(device_array(xp, mine), part, config, mesh.tp, 1, place, sequence_parallel)[1])

    results = run(program, 4)                                                    # ranks: tp fastest
    assert [mask.shape for mask in results[0]] == [(2, 6, 1, S, S), *[(2, S // (1 + sequence_parallel), 24)] * 2]
    for rank, masks in enumerate(results):
        dp, tp = divmod(rank, 2)
        batch, heads_, positions = slice(2 * dp, 2 * dp + 2), slice(6 * tp, 6 * tp + 6), slice(6 * tp, 6 * tp + 6)
        assert_array_equal(masks[0], whole[0][batch, heads_])
        for mask, all_ in zip(masks[1:], whole[1:], strict=True):
            assert_array_equal(mask, all_[batch, positions] if sequence_parallel else all_[batch])
    differ = lambda site, one, other: 0.2 < (results[one][site] != results[other][site]).mean() < 0.45   # 2 * .2 * .8
    assert differ(0, 0, 1) and differ(0, 0, 2) and differ(1, 0, 2)                # heads; sequences
    assert differ(1, 0, 1) if sequence_parallel else np.array_equal(results[0][1], results[1][1])
    assert run(program, 4, replace(SMALL, dropout=0.0)) == [[]] * 4


@both_ways
def test_A15_recomputation_drops_the_same_and_gives_the_same_bits(sequence_parallel):
    results = [run(on_ranks, 2, np, replace(GPT2, recompute=recompute), sequence_parallel) for recompute in RECOMPUTE]
    for rank in range(2):
        first, *others = [alike | gradients for alike, gradients in (result[rank] for result in results)]
        for other in others:
            for name in first:
                assert_array_equal(other[name], first[name])


@both_ways
def test_A15_dropout_of_0_is_no_dropout_exactly(sequence_parallel):
    """Another seed changes nothing then, to the last bit; with dropout it does."""
    x, _, parameters = block_example(SMALL)

    def program(comm, config, seed):
        mine = own_positions(comm, x, sequence_parallel)
        place = whole_place(config, seed=seed)
        return block.forward(mine, shard(parameters, config, comm), config, comm, 0, place, sequence_parallel)[0]

    for config, equal in ((replace(SMALL, dropout=0.0), True), (SMALL, False)):
        for one, other in zip(run(program, 2, config, 1), run(program, 2, config, 2), strict=True):
            assert np.array_equal(one, other) == equal


# -- bad input --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("config", "s", "options", "says"), [
    (replace(GPT2, heads=8, kv_heads=8), 12, {}, "heads=8 is not divisible by tp=3; tp may be 1, 2, 4 or 8"),
    (GPT2, 10, {"sequence_parallel": True, "place": whole_place(GPT2, s=10)}, "sequence=10 is not divisible by tp=3"),
    (GPT2, 4, {"sequence_parallel": True, "place": whole_place(GPT2, s=9)}, r"place has 9 positions, but x .* has 12"),
    (GPT2, 12, {"whole": True}, r"attention.wqkv is .*, but rank 0 of 3 holds \(24, 4, 3, 2\)"),
])
def test_what_cannot_be_cut_is_named_before_anything_is_sent(config, s, options, says):
    x, _, parameters = block_example(config, s=s)
    options = dict(options)
    whole = options.pop("whole", False)

    def program(comm):
        mine = parameters if whole or config.heads == 8 else shard(parameters, config, comm)
        return block.forward(x, mine, config, comm, **options)

    log = Ledger()
    with pytest.raises(ValueError, match=says):
        run(program, 3, ledger=log)
    assert log.messages() == 0
