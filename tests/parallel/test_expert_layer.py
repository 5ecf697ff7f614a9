"""A mixture of experts on many ranks: precision, halves of backward, what is kept, what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from moe_worlds import SCALE, B, Ranks, S, by_ranks, check_bytes, example, mixture, on_one_device, on_rank, whole_of
from numpy.testing import assert_array_equal
from tp_models import on_host

from refimpl import Layout, Ledger, Mesh, run
from refimpl.cost import moe as cost
from refimpl.measure.meter import held_bytes
from refimpl.parallel import expert, expert_groups, shards
from refimpl.parallel.expert_groups import Experts
from refimpl.precision import narrow, wide


@by_ranks([Ranks(Layout(cp=2, tp=2, ep=2)), Ranks(Layout(tp=2, ep=2, expert_tp=1), True),
           Ranks(Layout(dp=2, tp=2, ep=2), True)])
@pytest.mark.parametrize(("dtype", "bound"), [("float16", 5e-3), ("bfloat16", 2e-2)])
def test_in_half_precision_it_is_near_the_single_device_in_float64(xp, ranks, dtype, bound):
    """Rows travel in 2 bytes, sums of bfloat16 in 4; the scores that choose are never rounded to 2."""
    stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    config = mixture("topk-softmax", "probability", "auxiliary", shared_experts=1)
    x, dy, p = example(config, "float32")
    rounded = {name: narrow(a, stored) for name, a in ({"x": x, "dy": dy} | p).items()}
    exact = {name: wide(a).astype("float64") for name, a in rounded.items()}
    expected, saved = on_one_device(config, exact.pop("x"), exact.pop("dy"), exact)
    log = Ledger()
    arrays = rounded.pop("x"), rounded.pop("dy"), rounded
    results = run(on_rank, ranks.layout.world, xp, ranks, config, *arrays, ledger=log)
    results = [({name: wide(a) if a.dtype == stored else a for name, a in on_host(alike).items()},
                {name: wide(g) for name, g in gradients.items() if g.dtype == stored}, share)
               for alike, gradients, share in results]
    found = whole_of(ranks, results, config)
    norm = np.sqrt(sum(np.linalg.norm(g) ** 2 for name, g in expected.items() if name[0] == "d"))
    assert found.keys() == expected.keys()
    for name, truth in expected.items():
        scale = max(np.linalg.norm(truth), 1e-3 * norm * (name[0] == "d"))
        assert np.linalg.norm(np.asarray(found[name], float) - truth) < bound * scale, name
    if dtype == "float16":
        check_bytes(ranks, config, log, saved.choice, item=2, weight_item=4)


@pytest.mark.parametrize("sp", [False, True], ids=["tp", "tp+sp"])
def test_the_composed_backward_gives_the_same_bits_as_its_halves(sp):
    config = mixture("sigmoid", "position", "auxiliary", shared_experts=1)
    x, dy, p = example(config)
    ranks = Ranks(Layout(tp=2), sp)

    def program(comm):
        mine = shard(p, config, comm, expert_groups.Share(0, 1, comm.rank, 2))
        part, dpart = (ranks.part(a, comm.rank) for a in (x, dy))
        _, saved = expert.forward(part, mine, config, comm, None, ranks.positions(comm.rank), sp)
        dx, pending = expert.backward_input(dpart, saved, SCALE)
        _, saved = expert.forward(part, mine, config, comm, None, ranks.positions(comm.rank), sp)
        other, gradients = expert.backward(dpart, saved, SCALE)
        halves = expert.backward_weight(pending)
        assert halves.keys() == gradients.keys() == p.keys()
        return [(dx, other), *((halves[name], gradients[name]) for name in gradients)]

    for pairs in run(program, 2):
        for one, other in pairs:
            assert_array_equal(one, other)


def shard(parameters, config, comm, share):
    """One mixture's own parameters, by their short names."""
    whole = {f"blocks.0.moe.{name}": p for name, p in parameters.items()}
    return {name.removeprefix("blocks.0.moe."): p
            for name, p in shards.shard(whole, config, comm.rank, comm.size, share=share).items()}


@by_ranks([Ranks(Layout()), Ranks(Layout(dp=3, ep=3)), Ranks(Layout(dp=2, tp=2, ep=2)),
           Ranks(Layout(dp=2, tp=2, ep=2), True), Ranks(Layout(tp=2, ep=2, expert_tp=1), True)])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("limit", ["dropless", "position"])
def test_what_is_kept_is_what_the_formula_of_memory_says(ranks, family, limit):
    config = replace(mixture("softmax-topk", limit, "auxiliary"), family=family)
    x, dy, p = example(config, "float32")

    def program(comm):
        mesh = Mesh(comm, ranks.layout)
        groups = expert_groups.of_mesh(mesh)
        mine, part = shard(p, config, mesh.tp, groups.share), ranks.part(x, comm.rank)
        place = ranks.positions(comm.rank)
        _, saved = expert.forward(part, mine, config, mesh.tp, groups, place, ranks.sequence_parallel)
        received = sum(map(sum, saved.decided.plan.received))
        tokens, dispatched, ffn = (math.prod(sizes) for sizes in (part.shape[:2], saved.outputs.shape[:2],
                                                                  mine["w2"].shape[1:2]))
        assert held_bytes(parameters=mine, saved=saved)["saved"] == cost.layer_activations(
            tokens, dispatched, received, config.hidden, ffn, config.top_k, family == "llama", item=4)
        return dispatched

    assert sum(run(program, ranks.layout.world)) == B * S * ranks.layout.expert_tp


# -- bad input, before anything is sent -------------------------------------------------------------------------------

@pytest.mark.parametrize(("groups", "sp", "says"), [
    (lambda comm: Experts(), False, "expert_tp=1 with tp=2 and without sequence parallelism: all 2 tp ranks would "
     "dispatch the same tokens; expected sequence_parallel=True, or expert_tp=2"),
    (lambda comm: Experts(ep=comm, expert_tp=comm.split(comm.rank, 0)), False, "expert_tp=1 with tp=2 and"),
    (lambda comm: Experts(expert_tp=comm, ep=comm), True, None),
])
def test_experts_of_one_rank_need_sequence_parallelism(groups, sp, says):
    """Else every tp rank would dispatch duplicates, and an expert's gradient would count them."""
    config = mixture("softmax-topk", "dropless", "no loss")
    x, _, p = example(config)

    def program(comm):
        made = groups(comm)
        with comm.phase("layer"):
            return expert.forward(x[:, :4], shard(p, config, comm, made.share), config, comm, made, None, sp)[0].shape

    log = Ledger()
    if says is None:
        assert run(program, 2, ledger=log) == [(B, 4, 12)] * 2
        return
    with pytest.raises(ValueError, match=says):
        run(program, 2, ledger=log)
    assert log.messages(phase="layer") == 0


@pytest.mark.parametrize(("positions", "experts", "says"), [
    (None, slice(0, 3), "positions=None with capacity_factor=0.75, where other ranks have a part of the sequence"),
    (range(3), slice(0, 3), "x has 4 tokens a sequence, and positions are 3 numbers, 3 of them different"),
    ([0, 1, 2, 2], slice(0, 3), "4 numbers, 3 of them different"),
    (range(4), slice(0, 5), r"w1 has 5 experts, but rank \d of 2 in ep holds \d of 5: shards.shard"),
    (range(4), slice(0, 0), "w1 has 0 experts, but rank"),
])
def test_positions_and_experts_that_are_not_the_ranks_are_refused(positions, experts, says):
    """Of one ep group, and of ranks with parts of one sequence. What was held too much would be left out silently."""
    config = mixture("softmax-topk", "position", "no loss")
    x, _, p = example(config)

    def program(comm):
        mesh = Mesh(comm, Layout(cp=2, ep=2))
        mine = p | {name: p[name][experts] for name in ("w1", "w2")}
        with comm.phase("layer"):
            expert.forward(x[:, :4], mine, config, mesh.tp, expert_groups.of_mesh(mesh), positions)

    log = Ledger()
    with pytest.raises(ValueError, match=says):
        run(program, 2, ledger=log)
    assert log.messages(phase="layer") == 0


def test_groups_that_do_not_fit_and_a_missing_scale_are_named():
    config = mixture("softmax-topk", "dropless", "auxiliary", family="gpt2", heads=4, kv_heads=4)
    x, _, p = example(config)

    def program(comm):
        pair = comm.split(comm.rank // 2, comm.rank)
        with pytest.raises(ValueError, match="expert_tp=2 with tp=4: expected 4 or 1"):
            expert_groups.check_groups(Experts(expert_tp=pair), comm, True)
        _, saved = expert.forward(x, shard(p, config, comm, expert_groups.Share(0, 1, comm.rank, 4)), config, comm)
        with comm.phase("refused"), pytest.raises(ValueError, match="no scale, but balance=0.3 makes an auxiliary"):
            expert.backward_input(x, saved)
        return True

    log = Ledger()
    assert all(run(program, 4, ledger=log)) and log.messages(phase="refused") == 0
