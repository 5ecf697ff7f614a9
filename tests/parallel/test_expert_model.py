"""Whole models with experts on all axes of a layout at once: loss, gradients, bias, recomputation; and their shards."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from backends import device_array
from moe_worlds import BASE, B, Ranks, assert_same
from numpy.testing import assert_allclose, assert_array_equal
from tp_models import model_example, on_device, on_host

from refimpl import Layout, Ledger, Mesh, run
from refimpl.collectives import all_reduce
from refimpl.cost import moe as cost
from refimpl.model import block as single_block
from refimpl.model import moe, router
from refimpl.model import transformer as single
from refimpl.model.config import of_block, shapes
from refimpl.parallel import block, context, expert_groups, heads, shards, transformer

S = 8
MODELS = {
    "llama": replace(BASE, kv_heads=2, router="sigmoid", balance=0.2, bias_rate=0.1, shared_experts=1,
                     capacity_factor=1),
    "gpt2": replace(BASE, family="gpt2", context=9, dropout=0.2, balance=0.1, capacity_factor=0.75, drop="probability"),
    "no loss": replace(BASE, router="topk-softmax", top_k=3),
}
by_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
RANKS = [Ranks(Layout(**sizes), sp) for sizes, sp in [
    ({"dp": 2, "ep": 2}, False), ({"tp": 2}, False), ({"dp": 2, "tp": 2, "ep": 2}, False),
    ({"cp": 2, "dp": 2, "ep": 4}, False), ({"dp": 2, "tp": 2, "ep": 2}, True),
    ({"dp": 2, "tp": 2, "ep": 4, "expert_tp": 1}, True),
    ({"cp": 2, "tp": 2, "ep": 2, "expert_tp": 1}, True), ({"cp": 2, "tp": 2, "dp": 2, "ep": 4}, True)]]
by_ranks = pytest.mark.parametrize("ranks", RANKS, ids=str)


def example(config, dtype="float64", seed=1):
    """tokens, targets, parameters, buffers, on the host."""
    tokens, targets, parameters = model_example(config, dtype, B, S)
    rng, state = np.random.default_rng(seed), moe.buffers(parameters, config)
    return tokens, targets, parameters, {name: 0.1 * rng.standard_normal(a.shape) for name, a in state.items()}


def truth(config):
    tokens, targets, parameters, state = example(config)
    place = single_block.Place(range(B), range(S), range(config.heads), 3, 2)
    total, count, saved = single.loss(tokens, targets, parameters | state, config, place, smoothing=0.1)
    gradients = single.loss_backward(1 / count, saved)
    loads = {f"load {name}": report.load for name, report in single.routed(saved[0]).items()}
    return {"loss": total / count} | loads | {f"d{name}": g for name, g in gradients.items()}


def on_rank(comm, xp, ranks, config):
    """{"loss", loads, gradients} of the whole batch, as far as the rank has them, and its share of the experts."""
    tokens, targets, parameters, state = example(config)
    mesh, sp = Mesh(comm, ranks.layout), ranks.sequence_parallel
    groups, sharing = expert_groups.of_mesh(mesh), heads.sharing(mesh.tp, config)
    mine = shards.shard(parameters | state, config, mesh.tp.rank, mesh.tp.size, share=groups.share)
    place = single_block.Place(ranks.sequences(comm.rank), range(S), None, 3, 2, experts=groups)
    if mesh.cp.size > 1:
        place = context.on_rank(place, mesh.cp, context.core(mesh.cp))
        assert list(place.positions) == ranks.group_positions(comm.rank)
    part = np.ix_(ranks.sequences(comm.rank), ranks.group_positions(comm.rank))
    count = (targets != -1).sum()
    arrays = device_array(xp, tokens[part]), device_array(xp, targets[part]), on_device(xp, mine)
    with comm.phase("forward"):
        total, _, saved = transformer.loss(*arrays, config, mesh.tp, place, smoothing=0.1, sequence_parallel=sp)
    with comm.phase("backward"):
        gradients = transformer.loss_backward(1 / count, saved)
    with comm.phase("finish"):
        gradients = shards.finish(gradients, mesh.tp, sharing, sp)
    gradients = expert_groups.sum_over_replicas(gradients, mesh.dp_cp, mesh.expert_dp)
    loads = {f"load {name}": report.load for name, report in transformer.routed(saved[0]).items()}
    loads = expert_groups.global_load(loads, mesh.dp_cp, *([mesh.tp] if sp else []))
    return on_host({"loss": all_reduce(total, mesh.dp_cp) / count} | loads), on_host(gradients), groups.share


def whole_of(ranks, results, config):
    """The ranks' results as those of one device; what ranks have alike must agree to the last bit."""
    for alike, _, _ in results:
        for name, value in alike.items():
            assert_array_equal(value, results[0][0][name], err_msg=name)
    by_share, by_tp = {}, {}
    for rank, (_, gradients, share) in enumerate(results):
        first = by_share.setdefault(share, gradients)
        alike = by_tp.setdefault(ranks.layout.coordinates(rank)["tp"], gradients)
        for name, g in gradients.items():
            assert_array_equal(g, (first if expert_groups.is_expert(name) else alike)[name], err_msg=name)
    gradients = shards.unshard([by_tp[tp] for tp in range(ranks.layout.tp)], config, by_share)
    return results[0][0] | {f"d{name}": g for name, g in gradients.items()}


def check(xp, ranks, config):
    found = whole_of(ranks, run(on_rank, ranks.layout.world, xp, ranks, config), config)
    assert {name[1:] for name in found if name[0] == "d"} == shapes(config).keys()
    assert_same(found, truth(config))


@by_model
@by_ranks
def test_loss_loads_and_every_gradient_are_as_on_one_device(xp, ranks, config):
    """With dropout, ignored positions, label smoothing, shared key-value heads, zigzag positions, a bias per layer."""
    check(xp, ranks, config)


@pytest.mark.parametrize(("P", "number"), [(2, 0), (4, 5), (4, 6)])
def test_so_they_are_in_every_world(world, P, number):
    check(np, RANKS[number], MODELS["llama"])


@pytest.mark.parametrize("sp", [False, True], ids=["tp", "tp+sp"])
def test_gradients_do_not_depend_on_ep(sp):
    """Of dense parameters no less than of experts: what comes back from an expert does not depend on where it was."""
    config = MODELS["llama"]
    results = {}
    for ep in (1, 2):
        ranks = Ranks(Layout(dp=2, tp=2, ep=ep), sp)
        results[ep] = whole_of(ranks, run(on_rank, 4, np, ranks, config), config)
    assert_same(results[2], results[1])


@pytest.mark.parametrize("number", [4, 5, 2])
@pytest.mark.parametrize("name", ["gpt2", "no loss"])
def test_routers_are_summed_over_tp_with_the_norms_where_ranks_have_other_positions(number, name):
    log, ranks, config = Ledger(), RANKS[number], MODELS[name]
    run(on_rank, 4, np, ranks, config, ledger=log)
    gpt2 = config.family == "gpt2"
    for rank in range(4):
        elements = cost.sequence_parallel_gradients(12, 2, 5, 2, rank % 2, gpt2, config.context if gpt2 else 0)
        assert log.bytes_sent(rank, "finish") == 8 * elements * ranks.sequence_parallel


@by_model
@pytest.mark.parametrize("number", [2, 5, 6])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_routes_alike_gives_the_same_bits_and_counts_once(config, number, recompute):
    ranks = RANKS[number]
    logs = Ledger(), Ledger()
    for how, log in zip(("none", recompute), logs, strict=True):
        results = run(on_rank, 4, np, ranks, replace(config, recompute=how), ledger=log)
        if how == "none":
            first = results
    for (alike, gradients, _), (alike2, gradients2, _) in zip(first, results, strict=True):
        for name, value in (alike | gradients).items():
            assert_array_equal((alike2 | gradients2)[name], value)
    once, again = (log.messages(phase="dispatch") for log in logs)
    assert again == once * (2 if recompute == "full" else 1) > 0


def test_the_bias_moves_alike_on_every_rank_and_as_on_one_device():
    """The load of all ranks decides, not of one."""
    config, ranks = MODELS["llama"], RANKS[5]
    found = run(on_rank, 4, np, ranks, config)[0][0]
    _, _, _, state = example(config)
    expected = truth(config)
    for name, bias in state.items():
        load = f"load {name.removesuffix('.bias')}"
        assert found[load].sum() == B * S * config.top_k
        moved = router.update_bias(bias, found[load], config.bias_rate)
        assert_array_equal(moved, router.update_bias(bias, expected[load], config.bias_rate))
        assert (moved != bias).any()


# -- the layer alone --------------------------------------------------------------------------------------------------

def test_a_block_says_what_became_of_its_tokens_and_refuses_what_does_not_fit():
    config = replace(MODELS["llama"], capacity_factor=0.5)
    _, _, parameters, state = example(config)
    x = np.random.default_rng(0).standard_normal((B, S, config.hidden))
    _, saved = single_block.forward(x, of_block(parameters | state, 0), config)
    expected = single_block.routed(saved)

    def program(comm, share):
        mine = of_block(shards.shard(parameters | state, config, comm.rank, comm.size), 0)
        place = single_block.Place(range(B), range(S), None, experts=share and share(comm))
        _, saved = block.forward(x, mine, config, comm, place=place)
        return block.routed(saved)

    for found in run(program, 2, None):
        assert_allclose(found.balance, expected.balance, rtol=1e-13)
        assert_array_equal(found.load, expected.load)
        assert_array_equal(found.kept, expected.kept)
        assert (found.kept < found.load).any()
    log = Ledger()
    with pytest.raises(ValueError, match="expert_tp=1 with tp=2 and without sequence parallelism"):
        run(program, 2, lambda comm: expert_groups.Experts(), ledger=log)
    with pytest.raises(ValueError, match=r"moe.w1 is \(5, 12, 2, 2\), but rank 0 of 2 holds \(2, 12, 2, 2\): "
                                         r"shards.shard\(parameters, config, rank, size, share=share\)"):
        run(program, 2, lambda comm: expert_groups.Experts(comm, comm), ledger=log)
    assert log.messages() == 0


def test_under_context_parallelism_a_mixture_must_know_who_has_the_other_positions():
    """Else capacity and load would be those of a part of the sequence, silently."""
    config = MODELS["no loss"]
    _, _, parameters, _ = example(config)
    x = np.zeros((B, S // 2, config.hidden))

    def program(comm, forward):
        whole = single_block.Place(range(B), range(S), range(6))
        return forward(comm, context.on_rank(whole, comm, context.core(comm)))

    log = Ledger()
    with pytest.raises(ValueError, match=r"place.experts does not say which; expected experts=expert_groups.of_mesh"):
        run(program, 2, lambda comm, place: block.forward(
            x, of_block(parameters, 0), config, comm.split(comm.rank), place=place), ledger=log)
    with pytest.raises(ValueError, match="experts=5 on several ranks: .* expected parallel.block.forward, with"):
        run(program, 2, lambda comm, place: single_block.forward(
            x, of_block(parameters, 0), config, place=place), ledger=log)
    assert log.messages(phase="dispatch") == log.messages(collective="all_gather") == 0


# -- shards -----------------------------------------------------------------------------------------------------------

def shares(ep, tp):
    return [expert_groups.Share(r, ep, t, tp) for r in range(ep) for t in range(tp)]


@by_model
def test_shards_of_experts_join_to_the_whole_whatever_ep_and_expert_tp(xp, config):
    """5 experts of 5 features on 1, 2, 4 and 6 ranks, features whole or cut in 2; and from one layout to another."""
    _, _, parameters, state = example(config)
    whole = on_device(xp, parameters | state)
    for ep, tp, expert_tp in itertools.product((1, 2, 4, 6), (1, 2), (1, 2)):
        if expert_tp not in (1, tp):
            continue
        pieces = {share: shards.shard(whole, config, share.tp_rank, tp, share=share) for share in shares(ep, expert_tp)}
        dense = [shards.shard(whole, config, rank, tp, share=next(iter(pieces))) for rank in range(tp)]
        whole = shards.unshard(dense, config, pieces)
        assert list(whole) == list(parameters | state)
    for name, p in on_host(whole).items():
        assert_array_equal(p, (parameters | state)[name])
    whole = shards.unshard([shards.shard(whole, config, rank, 2) for rank in range(2)], config)
    for name, p in on_host(whole).items():
        assert_array_equal(p, (parameters | state)[name])


@by_model
def test_every_expert_is_on_one_rank_and_shapes_are_as_stated(config):
    _, _, parameters, _ = example(config)
    name = "blocks.1.moe.w2"
    numbered = parameters | {name: np.arange(parameters[name].size).reshape(parameters[name].shape)}
    for ep, expert_tp in ((1, 1), (3, 1), (2, 2), (6, 2)):
        seen = []
        for share in shares(ep, expert_tp):
            mine = of_block(shards.shard(numbered, config, share.tp_rank, 2, share=share), 1)
            assert {n: p.shape for n, p in mine.items()} == shards.block_shapes(config, share.tp_rank, 2, share)
            seen.append(mine["moe.w2"].ravel())
        assert_array_equal(np.sort(np.concatenate(seen)), np.arange(parameters[name].size))
    with pytest.raises(ValueError, match=r"experts are given for \[\(0, 2, 0, 1\)\]; expected \(rank, size, tp_rank, "):
        shards.unshard([parameters], config, {expert_groups.Share(0, 2): parameters})
    with pytest.raises(ValueError, match="rank=2 of size=2"):
        shards.shard(parameters, config, 0, 2, share=expert_groups.Share(2, 2))
