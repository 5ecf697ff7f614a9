"""Attention by heads equals the single device; which heads a rank has, and who adds up the gradients of shared ones."""

from dataclasses import replace

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal
from tp_models import B, S, assert_same, drawn, on_device, on_host, whole_place

from refimpl import Ledger, run
from refimpl.cost import traffic
from refimpl.model import block as single
from refimpl.model.config import Config, block_shapes
from refimpl.model.layers import linear, linear_backward
from refimpl.parallel import heads, sequence, tensor

GPT2 = Config("gpt2", vocabulary=5, hidden=24, layers=1, heads=12, kv_heads=6, dropout=0.2)
LLAMA = Config("llama", vocabulary=5, hidden=16, layers=1, heads=8, kv_heads=2)


def with_heads(config, query, kv):
    return replace(config, hidden=2 * query, heads=query, kv_heads=kv)


def example(config, dtype):
    """x, dy and the attention's parameters, on the host."""
    shapes = {name.removeprefix("attention."): s for name, s in block_shapes(config).items() if "attention" in name}
    x, dy = drawn({"dx": (1, B * S * config.hidden), "dy": (1, B * S * config.hidden)}, dtype).values()
    return x.reshape(B, S, -1), dy.reshape(B, S, -1), drawn(shapes, dtype)


def on_one_device(config, x, dy, p):
    qkv, saved1 = linear(x, p["wqkv"], p.get("bqkv"))
    context, saved2 = single.attend(qkv, p["wqkv"].shape[1:], config, 1, whole_place(config))
    y, saved3 = linear(context, p["wo"], p.get("bo"))
    dcontext, dwo, dbo = linear_backward(dy, saved3)
    dx, dwqkv, dbqkv = linear_backward(single.attend_backward(dcontext, saved2), saved1)
    found = {"y": y, "dx": dx, "dwqkv": dwqkv, "dbqkv": dbqkv, "dwo": dwo, "dbo": dbo}
    return {name: a for name, a in found.items() if a is not None}


def on_ranks(comm, config, x, dy, parameters):
    group = heads.sharing(comm, config)
    mine = heads.shard_attention(parameters, config, comm.rank, comm.size)
    with comm.phase("forward"):
        y, saved = heads.attention_forward(x, mine, config, comm, 1, whole_place(config))
    with comm.phase("backward"):
        dx, pending = heads.attention_backward_input(dy, saved)
    with comm.phase("weight"):
        gradients = heads.attention_backward_weight(pending)
    with comm.phase("shared"):
        gradients = heads.sum_shared(gradients, group)
    return on_host({"y": y, "dx": dx}), on_host(gradients)


def check(xp, config, P, dtype="float64"):
    x, dy, parameters = example(config, dtype)
    log = Ledger()
    arrays = device_array(xp, x), device_array(xp, dy), on_device(xp, parameters)
    results = run(lambda comm: on_ranks(comm, config, *arrays), P, ledger=log)
    whole = heads.unshard_attention([gradients for _, gradients in results], config)
    for alike, gradients in results:
        if "bo" in gradients:
            whole["bo"] = gradients["bo"]
        assert_same(alike | {f"d{name}": g for name, g in whole.items()}, on_one_device(config, x, dy, parameters))
    item, n = np.dtype(dtype).itemsize, x.size
    for rank in range(P):
        counted = [log.bytes_sent(rank, phase) for phase in ("forward", "backward", "weight", "shared")]
        one, gpt2 = traffic.ring_all_reduce(n, P, rank), config.family == "gpt2"
        shared = traffic.shared_heads_gradients(config.hidden, 1, config.heads, config.kv_heads, P, rank, bias=gpt2)
        assert counted == [item * one, item * one, 0, item * shared]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("config", "P"), [(GPT2, 1), (GPT2, 2), (GPT2, 3), (with_heads(GPT2, 8, 4), 4), (LLAMA, 2),
                                           (with_heads(LLAMA, 3, 3), 3), (with_heads(LLAMA, 8, 8), 8)])
def test_attention_by_heads_equals_the_single_device_and_sends_one_all_reduce_each_way(xp, config, P, dtype):
    check(xp, config, P, dtype)


@pytest.mark.parametrize(("config", "P"), [(GPT2, 2), (with_heads(LLAMA, 3, 3), 3), (LLAMA, 4)])
def test_so_it_does_in_every_world(world, config, P):
    check(np, config, P)


# -- more ranks than key-value heads ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("kv", "P", "owners"), [
    (2, 4, [0, 0, 1, 1]), (1, 4, [0, 0, 0, 0]), (2, 8, [0, 0, 0, 0, 1, 1, 1, 1]), (4, 2, [0, 2]), (2, 1, [0])])
def test_A13_which_key_value_head_a_rank_has(kv, P, owners):
    config = with_heads(LLAMA, 8, kv)
    assert [heads.kv_heads(config, rank, P).start for rank in range(P)] == owners
    assert [len(heads.kv_heads(config, rank, P)) for rank in range(P)] == [max(kv // P, 1)] * P
    assert [i for rank in range(P) for i in heads.query_heads(config, rank, P)] == list(range(8))


@pytest.mark.parametrize(("config", "query", "kv", "P"), [
    (LLAMA, 8, 2, 4), (LLAMA, 8, 1, 2), (LLAMA, 6, 1, 3), (GPT2, 8, 1, 4), (GPT2, 6, 2, 6), (LLAMA, 8, 2, 8),
    (GPT2, 8, 4, 8)])
def test_A13_attention_with_shared_heads_equals_the_single_device(xp, config, query, kv, P):
    """huggingface/transformers #48307. Gradients of copies are summed among the ranks that share: traffic says so."""
    check(xp, with_heads(config, query, kv), P)


def test_A13_without_the_sum_each_copy_has_an_addend_only(xp):
    """And the ranks 2, 3 have nothing to add to the head of 0, 1."""
    x, dy, parameters = example(LLAMA, "float64")
    arrays = device_array(xp, x), device_array(xp, dy), on_device(xp, parameters)

    def program(comm):
        mine = heads.shard_attention(arrays[2], LLAMA, comm.rank, comm.size)
        _, saved = heads.attention_forward(arrays[0], mine, LLAMA, comm, 1, whole_place(LLAMA))
        return on_host(heads.attention_backward(arrays[1], saved)[1])["wqkv"][:, 0, -2:]

    copies, whole = run(program, 4), on_one_device(LLAMA, x, dy, parameters)["dwqkv"]
    for group in (0, 1):
        first, second = copies[2 * group:2 * group + 2]
        assert_same({"dkv": first + second}, {"dkv": whole[:, group, -2:]})
        assert np.linalg.norm(first - second) > 0.1 * np.linalg.norm(first)


# -- what cannot be cut -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("query", "kv", "P", "says"), [
    (12, 12, 8, r"heads=12 is not divisible by tp=8; tp may be 1, 2, 3, 4, 6 or 12"),
    (12, 3, 4, "kv_heads=3 of heads=12 are neither divided nor shared evenly by tp=4; tp may be 1, 3, 6 or 12"),  # A13
    (12, 4, 3, r"kv_heads=4 of heads=12 .* tp=3; tp may be 1, 2, 4 or 12"),
    (1, 1, 2, r"heads=1 is not divisible by tp=2; tp may be 1\n"),
])
def test_heads_that_cannot_be_cut_are_named_before_anything_is_sent(query, kv, P, says):
    config = with_heads(GPT2, query, kv)
    x, _, parameters = example(config, "float64")
    for program in (lambda comm: heads.attention_forward(x, parameters, config, comm),
                    lambda comm: heads.sharing(comm, config),
                    lambda comm: heads.shard_attention(parameters, config, comm.rank, comm.size)):
        log = Ledger()
        with pytest.raises(ValueError, match=says):
            run(program, P, ledger=log)
        assert log.messages() == 0


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(("broken", "says"), [
    (lambda _: example(GPT2, "float64")[2], r"wqkv is \(24, 6, 4, 2\), but rank . of 2 holds \(24, 3, 4, 2\)"),
    (lambda p: p | {"wo": np.zeros((24, 24))}, r"wo is \(24, 24\), but rank . of 2 holds \(12, 24\)"),
    (lambda p: {"wqkv": p["wqkv"]}, r"wo is missing, but rank . of 2 holds \(12, 24\)")])
def test_parameters_of_another_cut_are_named_before_anything_is_sent(broken, says, sequence_parallel):
    """The whole ones would fit each other, and be added up twice."""
    x, _, parameters = example(GPT2, "float64")

    def program(comm):
        mine = broken(heads.shard_attention(parameters, GPT2, comm.rank, comm.size))
        heads.attention_forward(x, mine, GPT2, comm, linear=sequence if sequence_parallel else tensor)

    log = Ledger()
    with pytest.raises(ValueError, match=says):
        run(program, 2, ledger=log)
    assert log.messages() == 0


def test_shards_that_are_not_all_there_do_not_join():
    _, _, parameters = example(GPT2, "float64")
    shards = [heads.shard_attention(parameters, GPT2, rank, 3) for rank in range(3)]
    with pytest.raises(ValueError, match=r"wqkv is \(24, 2, 4, 2\), but rank 0 of 2 holds \(24, 3, 4, 2\)"):
        heads.unshard_attention(shards[:2], GPT2)


@pytest.mark.parametrize("size", [0, -1])
def test_no_ranks_are_named(size):
    for call in (heads.check_heads, heads.sharers):
        with pytest.raises(ValueError, match=f"tp={size}: expected 1 or more ranks; nearest 1"):
            call(GPT2, size)


def test_a_rank_that_is_none_is_named():
    for call in (heads.query_heads, heads.kv_heads):
        with pytest.raises(ValueError, match="rank=2 of size=2: expected 0 to 1"):
            call(LLAMA, 2, 2)


# -- what a rank holds ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [1, 2, 4])
def test_A14_fused_qkv_is_cut_by_groups(xp, P):
    """4 query heads, 2 key-value heads: on 2 ranks rank 0 owns q0 q1 k0 v0, and not q0 q1 q2 q3."""
    config = Config("gpt2", vocabulary=5, hidden=8, layers=1, heads=4, kv_heads=2)
    named = np.array([["q0", "q1", "k0", "v0"], ["q2", "q3", "k1", "v1"]])
    numbers = np.arange(8.0).reshape(2, 4)                             # which of them, in place of their columns
    parameters = {"wqkv": np.tile(numbers[..., None], (8, 1, 1, 2)), "bqkv": np.tile(numbers[..., None], (1, 1, 2)),
                  "wo": np.arange(64.0).reshape(8, 8), "bo": np.arange(8.0)}
    shards = [heads.shard_attention(on_device(xp, parameters), config, rank, P) for rank in range(P)]
    expected = {1: ["q0 q1 k0 v0 q2 q3 k1 v1"], 2: ["q0 q1 k0 v0", "q2 q3 k1 v1"],
                4: ["q0 k0 v0", "q1 k0 v0", "q2 k1 v1", "q3 k1 v1"]}[P]
    for rank, shard in enumerate(map(on_host, shards)):
        for columns in (shard["wqkv"][5, ..., 1], shard["bqkv"][..., 0]):
            assert " ".join(named.reshape(8)[columns.astype(int).reshape(-1)]) == expected[rank]
        assert_array_equal(shard["wo"], parameters["wo"][8 // P * rank:8 // P * (rank + 1)])
        assert_array_equal(shard["bo"], parameters["bo"])
    joined = on_host(heads.unshard_attention(shards, config))
    assert joined.keys() == parameters.keys()
    for name in parameters:
        assert_array_equal(joined[name], parameters[name])
