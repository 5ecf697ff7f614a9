"""All ways to cut a run: listed once, sampled so that every pair is in it; each one the run of one device, or not."""

import itertools

import fake_cupy
import pytest

from refimpl.model import text
from refimpl.pipeline import FAMILIES
from refimpl.train import verify
from refimpl.train.setup import CP_KINDS
from refimpl.train.trainer import Trainer

DATA = text.load()


def pairs_of(cases):
    return {pair for case in cases for pair in itertools.combinations(zip(verify.AXES, case.values), 2)}


def test_every_case_has_as_many_ranks_as_asked_for_and_none_is_listed_twice():
    for ranks in (1, 2, 4):
        cases = verify.cases(ranks)
        assert len(set(cases)) == len(cases) and {case.dp * case.pp * case.cp * case.tp for case in cases} == {ranks}
        assert cases == verify.cases(ranks)                                          # in the same order each time


def test_every_value_of_every_axis_is_among_the_cases_of_eight_ranks_that_fit():
    fit, refused = verify.valid(8)
    for axis, values in (("dp", {1, 2, 4, 8}), ("tp", {1, 2, 4, 8}), ("zero", set(range(4))),
                         ("schedule", set(FAMILIES)),
                         ("cp_kind", set(CP_KINDS)), ("sp", {False, True}), ("model", set(verify.MODELS)),
                         ("ep", {1, 2, 4, 8}), ("recompute", set(verify.RECOMPUTE)), ("order", set(verify.ORDERS))):
        assert {getattr(case, axis) for case in fit} >= values, axis
    assert sum(refused.values()) + len(fit) == len(verify.cases(8))
    assert all(reason for reason in refused)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_sample_has_every_pair_of_values_of_two_axes_and_is_small(ranks):
    fit, _ = verify.valid(ranks)
    chosen = verify.sample(fit)
    assert pairs_of(chosen) == pairs_of(fit) and set(chosen) <= set(fit)
    assert len(set(chosen)) == len(chosen) < len(fit) / 3
    assert chosen == verify.sample(fit)


def test_the_parts_together_are_all_of_them():
    fit = list(range(101))
    parts = [verify.part(fit, which, 7) for which in range(1, 8)]
    assert sorted(one for part in parts for one in part) == fit and {len(part) for part in parts} <= {14, 15}
    with pytest.raises(ValueError, match="part 0/7: expected 1/7 to 7/7"):
        verify.part(fit, 0, 7)


def some(ranks, count, start=0):
    """Cases of the sample, spread over it."""
    chosen = verify.sample(verify.valid(ranks)[0])
    return chosen[start::len(chosen) // count][:count]


@pytest.mark.parametrize("case", [*some(2, 4), *some(4, 6), *some(8, 4)], ids=str)
def test_a_case_is_the_run_of_one_device(case):
    assert verify.verify(case, DATA)["passed"]


@pytest.mark.parametrize("case", some(4, 4, start=3), ids=str)
def test_on_device_arrays_too(case):
    assert verify.verify(case, DATA, like=fake_cupy.zeros(0))["passed"]


# -- broken: seen by the cases that it matters to ---------------------------------------------------------------------

PLAIN = {"dp": 1, "pp": 1, "cp": 1, "tp": 1, "ep": 1, "expert_tp": 1, "order": verify.ORDERS[0], "zero": 0,
         "schedule": "1f1b", "sp": False, "cp_kind": "zigzag", "recompute": "none", "model": "gpt2"}


def case_of(**values):
    return verify.Case(tuple((PLAIN | values)[axis] for axis in verify.AXES))


def no_tied_exchange(patch):
    patch.setattr(Trainer, "tie", lambda self: None)


def no_finish_over_tp(patch):
    patch.setattr(Trainer, "finish", lambda self, gradients: gradients)


def mean_of_means(patch):
    patch.setattr(Trainer, "_valid", lambda self, targets: max(
        sum(int((t >= 0).sum()) for t in targets) * self.mesh.dp_cp.size, 1))


def experts_never_reduced(patch):
    from refimpl.parallel import reducing

    whole = reducing.all_reduce_
    patch.setattr(reducing, "all_reduce_", lambda flat, comm, key: flat if comm.name == "expert_dp" else whole(
        flat, comm, key))


def contiguous_positions(patch):
    from refimpl.train.setup import Setup

    whole = Setup.positions
    patch.setattr(Setup, "positions", lambda self, cp: list(reversed(whole(self, cp))))


def every_norm_counted_on_every_rank(patch):
    from refimpl.train import trainer

    patch.setattr(trainer, "counted", lambda views, *_: list(views.values()))


BROKEN = [
    (no_tied_exchange, {"pp": 2}), (no_finish_over_tp, {"tp": 2, "sp": True, "expert_tp": 2}),
    (no_finish_over_tp, {"tp": 8, "expert_tp": 8, "model": "llama"}), (mean_of_means, {"dp": 3}),
    (experts_never_reduced, {"dp": 2, "model": "moe"}), (contiguous_positions, {"cp": 2}),
    (every_norm_counted_on_every_rank, {"tp": 2, "expert_tp": 2})]


@pytest.mark.parametrize("harm, values", BROKEN, ids=lambda value: getattr(value, "__name__", str(value)))
def test_what_is_broken_is_seen(harm, values, monkeypatch):
    case = case_of(**values)
    assert verify.verify(case, DATA)["passed"]
    harm(monkeypatch)
    try:
        found = verify.verify(case, DATA)
    except ValueError as error:                       # contiguous positions: the operator itself notices
        assert harm is contiguous_positions and "positions" in str(error)
    else:
        assert not found["passed"] and found["worst"]


def test_a_case_is_called_by_what_is_not_plain_about_it():
    assert str(case_of(dp=2, zero=3)) == "dp=2 zero=3 model=gpt2"
    assert str(case_of(pp=2, schedule="zbv", model="llama")) == "pp=2 zero=0 schedule=zbv model=llama"
