"""A mixture of experts on many ranks equals the one on a single device: values, every gradient, every byte."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from moe_worlds import (
    BASE,
    LIMITS,
    LOSSES,
    B,
    Ranks,
    S,
    assert_same,
    by_ranks,
    check_bytes,
    example,
    mixture,
    on_one_device,
    on_rank,
    whole_of,
)
from numpy.testing import assert_array_equal

from refimpl import Layout, Ledger, Mesh, run
from refimpl.arrays import to_host
from refimpl.collectives import bounds
from refimpl.cost import moe as cost
from refimpl.model import router
from refimpl.parallel import dispatch, expert, expert_groups

RANKS = [Ranks(Layout(**sizes), sp) for sizes, sp in [
    ({}, False), ({"dp": 2}, False), ({"cp": 2}, False), ({"tp": 2}, False),
    ({"dp": 2, "ep": 2}, False), ({"cp": 2, "ep": 2}, False), ({"dp": 3, "ep": 3}, False),
    ({"dp": 4, "ep": 2}, False), ({"dp": 4, "ep": 4}, False), ({"dp": 2, "cp": 2, "ep": 2}, False),
    ({"dp": 2, "cp": 2, "ep": 4}, False), ({"dp": 2, "tp": 2, "ep": 2}, False), ({"cp": 2, "tp": 2, "ep": 2}, False),
    ({"tp": 2}, True), ({"dp": 2, "tp": 2, "ep": 2}, True), ({"cp": 2, "tp": 2, "ep": 2}, True),
    ({"tp": 2, "expert_tp": 1}, True), ({"tp": 2, "expert_tp": 1, "ep": 2}, True),
    ({"dp": 2, "tp": 2, "expert_tp": 1, "ep": 4}, True), ({"cp": 2, "tp": 2, "expert_tp": 1, "ep": 4}, True),
    ({"dp": 2, "tp": 2, "expert_tp": 1, "ep": 2}, True), ({"dp": 2, "cp": 2, "tp": 2, "ep": 4}, False),
    ({"dp": 2, "cp": 2, "tp": 2, "expert_tp": 1, "ep": 8}, True)]]



def every_case():
    """Each ranks with 9 of the 27 mixtures: every value of each axis, and every pair of values of two axes."""
    for number, ranks in enumerate(RANKS):
        for (i, kind), (j, limit) in itertools.product(enumerate(router.ROUTERS), enumerate(LIMITS)):
            loss = list(LOSSES)[(i + j + number) % 3]
            yield pytest.param(ranks, kind, limit, loss, id=f"{ranks} {kind} {limit} {loss}")


CASES = list(every_case())


def check(ranks, config, xp=np, dtype="float64", **sizes):
    """Values, gradients and the bytes of every rank and phase."""
    x, dy, p = example(config, dtype, **sizes)
    expected, saved = on_one_device(config, x, dy, p)
    log = Ledger()
    results = run(on_rank, ranks.layout.world, xp, ranks, config, x, dy, p, ledger=log)
    assert_same(whole_of(ranks, results, config, *x.shape[:2]), expected)
    check_bytes(ranks, config, log, saved.choice, np.dtype(dtype).itemsize)
    return results, expected


@pytest.mark.parametrize(("ranks", "kind", "limit", "loss"), CASES)
def test_values_gradients_and_bytes_are_as_they_should_be(ranks, kind, limit, loss):
    check(ranks, mixture(kind, limit, loss))


def test_every_pair_of_axes_is_among_them():
    seen = set()
    for case in CASES:
        ranks, kind, limit, loss = case.values
        layout = ranks.layout
        etp = "tp" if layout.expert_tp == layout.tp else 1
        values = [("ep", min(layout.ep, 4)), ("expert_tp", etp), ("cp", layout.cp), ("router", kind), ("limit", limit),
                  ("loss", loss)]
        seen |= {frozenset(pair) for pair in itertools.combinations(values, 2)}
    axes = {"ep": (1, 2, 4), "expert_tp": (1, "tp"), "cp": (1, 2), "router": router.ROUTERS, "limit": LIMITS,
            "loss": LOSSES}
    for (one, mine), (other, theirs) in itertools.combinations(axes.items(), 2):
        for pair in itertools.product(mine, theirs):
            assert frozenset([(one, pair[0]), (other, pair[1])]) in seen, (one, other, pair)


@by_ranks([RANKS[i] for i in (3, 9, 15, 19)])
@pytest.mark.parametrize(("kind", "limit", "loss"), [("softmax-topk", "position", "auxiliary"),
                                                     ("sigmoid", "probability", "bias")])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_so_they_are_on_every_library(xp, ranks, kind, limit, loss, dtype):
    check(ranks, mixture(kind, limit, loss), xp, dtype)


@pytest.mark.parametrize(("P", "sizes", "sp"), [(2, {"dp": 2, "ep": 2}, False), (4, {"cp": 2, "tp": 2, "ep": 2}, False),
                                                (4, {"cp": 2, "tp": 2, "expert_tp": 1, "ep": 4}, True),
                                                (3, {"dp": 3, "ep": 3}, False)])
def test_so_they_are_in_every_world(world, P, sizes, sp):
    check(Ranks(Layout(**sizes), sp), mixture("sigmoid", "probability", "bias", balance=0.2))


# -- nothing to do ----------------------------------------------------------------------------------------------------

@by_ranks([Ranks(Layout(dp=4, ep=4)), Ranks(Layout(dp=2, tp=2, ep=2)),
           Ranks(Layout(dp=2, tp=2, ep=4, expert_tp=1), True)])
@pytest.mark.parametrize(("changes", "b"), [({}, 1), ({"experts": 2, "top_k": 1}, 3), ({"experts": 1, "top_k": 1}, 2),
                                            ({"top_k": 5}, 2), ({}, 0)],
                         ids=["ranks without tokens", "ranks without experts", "one expert", "all experts", "nothing"])
@pytest.mark.parametrize("limit", ["dropless", "position"])
def test_ranks_may_have_no_tokens_no_experts_or_nothing_to_compute(xp, ranks, changes, b, limit):
    check(ranks, mixture("softmax-topk", limit, "auxiliary", **changes), xp, b=b)


@by_ranks([Ranks(Layout(dp=2, ep=2)), Ranks(Layout(cp=2, tp=2, ep=2), True)])
@pytest.mark.parametrize("chosen", [(0, 1), (3, 4)], ids=["first rank", "last rank"])
def test_experts_without_tokens_have_a_gradient_of_0(ranks, chosen):
    """Not none: their weight decay and moments go on. A bias of 9 gives all tokens to two of the experts."""
    config = mixture("softmax-topk", "dropless", "no loss", bias_rate=0.1)
    x, dy, p = example(config)
    p["bias"] = np.where(np.isin(np.arange(5), chosen), 9.0, 0)
    expected, _ = on_one_device(config, x, dy, p)
    results = run(on_rank, ranks.layout.world, np, ranks, config, x, dy, p)
    assert_same(whole_of(ranks, results, config), expected)
    assert expected["load"].tolist() == [B * S if e in chosen else 0 for e in range(5)]
    for _, gradients, share in results:
        mine = range(*bounds(5, share.size)[share.rank:share.rank + 2])
        for name in ("blocks.0.moe.w1", "blocks.0.moe.w2"):
            assert [g.any() for g in gradients[name]] == [e in chosen for e in mine]


# -- the gradient of an expert counts every token once ----------------------------------------------------------------

@pytest.mark.parametrize("P", [2])
@pytest.mark.parametrize("ep", [1, 2])
def test_A27_expert_gradients_do_not_grow_with_ep(xp, world, P, ep):
    """deepspeedai/DeepSpeed #6545, #5618, pytorch/pytorch #160285: y = w x, tokens 1 and 3 to one expert, 2 and 5 to
    the other, the mean over 4 tokens: 1.0 and 1.75, not 2.0 and 3.5. Through dispatch, as the layer does."""
    tokens, choices = np.array([[1.0, 2], [3, 5]]), np.array([[0, 1], [0, 1]])

    def program(comm):
        mesh = Mesh(comm, Layout(dp=2, ep=ep))
        x, choice = (xp.asarray(a[comm.rank][:, None].copy()) for a in (tokens, choices))
        plan = dispatch.plan(choice, 2, mesh.ep)
        rows = dispatch.to_experts(xp.take(x, plan.order, axis=0), plan, "dispatch")
        dy = xp.take(xp.full((2, 1), 1 / 4), plan.order, axis=0)
        douts = dispatch.to_experts(dy, plan, "combine backward")
        dw = xp.stack([(mine * dout).sum() for mine, dout in zip(rows, douts, strict=True)])
        first = bounds(2, ep)[mesh.ep.rank]
        summed = expert_groups.sum_over_replicas({"moe.w1": dw, "norm.w": xp.full(1, 0.5)}, mesh.dp_cp, mesh.expert_dp)
        return first, to_host(summed["moe.w1"]), to_host(summed["norm.w"])

    for first, dw, dense in run(program, P):
        assert_array_equal(dw, [1.0, 1.75][first:first + 2 // ep])
        assert_array_equal(dense, [1.0])


# -- the bytes of equal loads -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("ep", [1, 2, 4])
def test_with_equal_loads_a_rank_sends_tokens_k_h_times_ep_minus_1_over_ep(ep):
    """8 experts, k = 2; token t of each rank prefers t and t + 4: every rank's 8 tokens load all alike."""
    config = replace(BASE, hidden=12, experts=8, expert_ffn=3)
    x, dy, p = example(config, b=ep)
    p["router"] = np.zeros((12, 8))
    p["router"][:8] = np.eye(8) + 0.5 * np.roll(np.eye(8), 4, axis=1)
    x[...] = np.eye(12)[:8]
    log = Ledger()
    run(on_rank, ep, np, Ranks(Layout(dp=ep, ep=ep)), config, x, dy, p, ledger=log)
    for rank, phase in itertools.product(range(ep), ("dispatch", "combine", "combine backward", "dispatch backward")):
        assert log.bytes_sent(rank, phase) == 8 * cost.balanced_all_to_all(8, 2, 12, ep)
    assert log.messages(group="ep", phase="forward") == 3 * ep * (ep - 1)                      # counts, there and back
    assert log.messages(group="ep", phase="backward") == 2 * ep * (ep - 1)


def test_dropless_without_an_auxiliary_loss_a_sequence_need_not_know_itself():
    log = Ledger()
    config = mixture("topk-softmax", "dropless", "bias")
    run(on_rank, 2, np, Ranks(Layout(cp=2)), config, *example(config), ledger=log)
    assert log.messages(phase=expert.STATISTICS) == 0
