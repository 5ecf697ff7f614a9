"""Dispatch and combine: every row reaches its expert and finds its way back, whatever the numbers."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl import Ledger, run
from refimpl.arrays import to_host
from refimpl.collectives import bounds
from refimpl.cost import moe as cost
from refimpl.parallel import dispatch

T, H = 4, 3
ROUTINGS = {                                   # choices of T tokens on every rank, of E experts; E: dropped
    "spread": (6, lambda rng, P: np.stack([rng.permutation(6)[:2] for _ in range(P * T)])),
    "some dropped": (5, lambda rng, P: np.where(rng.random((P * T, 2)) < 0.4, 5, rng.integers(0, 5, (P * T, 1)))),
    "one hot": (4, lambda rng, P: np.full((P * T, 1), 2)),
    "all dropped": (3, lambda rng, P: np.full((P * T, 2), 3)),
    "fewer experts than ranks": (2, lambda rng, P: rng.integers(0, 2, (P * T, 1))),
}


def tokens_of(rank, ranks):
    """Uneven: rank 0 of several has none, the last one twice as many."""
    return range(T * rank - T * (rank > 0), T * rank) if rank < ranks - 1 else range(T * max(rank - 1, 0), T * ranks)


def on_rank(comm, xp, choice, experts, dtype):
    mine = tokens_of(comm.rank, comm.size)
    k = choice.shape[1]
    plan = dispatch.plan(device_array(xp, choice[mine]), experts, comm)
    rows = np.array([[30 * t + 10 * j + f for f in range(H)] for t in mine for j in range(k)], dtype).reshape(-1, H)
    rows = device_array(xp, rows)
    there = dispatch.to_experts(xp.take(rows, plan.order, axis=0), plan, "dispatch")
    back = dispatch.from_experts([2 * mine for mine in there], plan, "combine", rows)
    return [to_host(x) for x in there], to_host(dispatch.placed(back, plan)), to_host(rows)


def check(P, xp, name, dtype="float64"):
    experts, draw = ROUTINGS[name]
    choice = draw(np.random.default_rng(P), P)
    log = Ledger()
    results = run(on_rank, P, xp, choice, experts, dtype, ledger=log)
    b, k = bounds(experts, P), choice.shape[1]
    counts = np.zeros((P, P), int)
    for rank, (there, back, rows) in enumerate(results):
        for e, got in zip(range(b[rank], b[rank + 1]), there, strict=True):
            want = [[30 * t + 10 * j + f for f in range(H)] for source in range(P) for t in tokens_of(source, P)
                    for j in range(k) if choice[t, j] == e]
            assert_array_equal(got, np.array(want).reshape(-1, H))             # by sender, then in the sender's order
            assert got.dtype == dtype
        kept = choice[tokens_of(rank, P)].reshape(-1, 1) < experts
        assert_array_equal(back, np.where(kept, 2 * rows, 0))
        for e in choice[tokens_of(rank, P)].ravel():
            if e < experts:
                counts[rank, np.searchsorted(b, e, side="right") - 1] += 1
    for rank in range(P):
        for phase, elements in list(cost.all_to_alls(counts.tolist(), rank, H).items())[:2]:
            assert log.bytes_sent(rank, phase) == np.dtype(dtype).itemsize * elements
        assert log.bytes_sent(rank, "expert counts") == 8 * cost.expert_counts(experts, P, rank)


@pytest.mark.parametrize("P", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint16"])
def test_rows_reach_their_experts_and_come_back_to_their_places(xp, P, name, dtype):
    check(P, xp, name, dtype)


@pytest.mark.parametrize("P", [2, 4])
@pytest.mark.parametrize("name", ROUTINGS)
def test_so_they_do_in_every_world(world, P, name):
    check(P, np, name)


@pytest.mark.parametrize("P", [1, 3])
def test_the_way_back_is_the_transpose_of_the_way_there(P):
    """sum of (rows there) y = sum of rows (y back): what makes one the backward of the other."""
    experts, draw = ROUTINGS["spread"]
    choice = draw(np.random.default_rng(1), P)

    def program(comm):
        plan = dispatch.plan(choice[tokens_of(comm.rank, P)], experts, comm)
        rows = comm.rng.standard_normal((len(plan.order), H))
        there = dispatch.to_experts(rows, plan, "dispatch")
        y = [comm.rng.standard_normal(mine.shape) for mine in there]
        back = dispatch.from_experts(y, plan, "combine", rows)
        return sum((a * b).sum() for a, b in zip(there, y, strict=True)), (rows * back).sum()

    there, back = np.array(run(program, P)).sum(axis=0)
    assert abs(there - back) < 1e-13 * abs(there)


@pytest.mark.parametrize(("choice", "says"), [
    ([[0], [-1]], "1 of 2 choices are no expert; expected whole numbers, 0 to 1, or 2 for none"),
    ([[3], [9]], "2 of 2 choices are no expert"), ([[0.5], [1]], "1 of 2 choices are no expert")])
def test_a_choice_of_no_expert_is_named_before_anything_is_sent(choice, says):
    log = Ledger()
    with pytest.raises(ValueError, match=says):
        run(lambda comm: dispatch.plan(np.array(choice), 2, comm), 2, ledger=log)
    assert log.messages() == 0


def test_rows_that_nobody_chose_are_not_cut_off_silently():
    with pytest.raises(ValueError, match="5 rows are given to send, and 2 choices count; expected a row for each"):
        dispatch.to_experts(np.zeros((5, 3)), dispatch.plan(np.array([[1, 0]]), 2, None), "dispatch")


def test_a_rank_alone_sends_nothing_and_needs_no_group(xp):
    choice = device_array(xp, np.array([[1], [0], [2], [1]]))
    plan = dispatch.plan(choice, 2, None)
    rows = device_array(xp, np.arange(12.0).reshape(4, 3))
    there = dispatch.to_experts(xp.take(rows, plan.order, axis=0), plan, "dispatch")
    assert [to_host(mine)[:, 0].tolist() for mine in there] == [[3], [0, 9]]
    back = dispatch.placed(dispatch.from_experts(there, plan, "combine", rows), plan)
    assert_array_equal(to_host(back), to_host(rows) * [[1], [1], [0], [1]])
