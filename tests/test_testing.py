"""`assert_sharded_equal` itself: right programs pass, wrong ones and wrong calls do not."""

import numpy as np
import pytest
from backends import device_array

from refimpl import DeadlockError, Ledger
from refimpl.collectives import all_gather, all_reduce
from refimpl.cost import traffic
from refimpl.testing import assert_sharded_equal, compare, norm_of_all, relative_difference

NAN, INF = np.nan, np.inf
SHARD = {"x": 1, "w": 0, "b": "replicated", "dy": "replicated", "y": "replicated"}


def inputs(dtype="float64", rows=5, features=7, outputs=3, xp=np):
    rng = np.random.default_rng(0)
    shapes = {"x": (rows, features), "w": (features, outputs), "b": (outputs,), "dy": (rows, outputs)}
    return {name: device_array(xp, rng.standard_normal(shape).astype(dtype)) for name, shape in shapes.items()}


def reference(x, w, b, dy):
    """y = x w + b, as on one device."""
    return {"y": x @ w + b, "dx": dy @ w.T, "dw": x.T @ dy, "db": dy.sum(0)}


def program(comm, x, w, b, dy):
    """The same with the features cut: a row-parallel linear layer."""
    return {"y": all_reduce(x @ w, comm, algorithm="ring") + b, "dx": dy @ w.T, "dw": x.T @ dy, "db": dy.sum(0)}


def complaint(program, ranks=3, **options):
    """What assert_sharded_equal says about a wrong program."""
    with pytest.raises(AssertionError) as caught:
        assert_sharded_equal(program, reference, inputs(), ranks=(ranks,), **({"shard": SHARD} | options))
    return str(caught.value)


# -- right programs ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [1, 2, 3, 4, 9])                # 9 ranks, 7 features: empty shards
def test_a_right_program_passes_in_every_world_and_library(P, world, xp):
    for dtype in ("float64", "float32"):
        assert_sharded_equal(program, reference, inputs(dtype, xp=xp), ranks=(P,), shard=SHARD)


def test_all_ways_to_cut_negative_axes_none_and_numbers_included():
    def whole(x, p, mask, scale):
        return {"joined": x, "total": p, "mask": ~mask, "last": x * scale, "dx": 2 * x, "dp": 0 * p}

    def on_ranks(comm, x, p, mask, scale):
        assert mask.dtype == bool and scale == 3
        return {"joined": all_gather(x, comm, axis=1), "total": all_reduce(p, comm), "mask": ~mask, "last": x * scale,
                "dx": 2 * x, "dp": 0 * p}

    given = {"x": np.arange(10.0).reshape(2, 5), "p": np.arange(6.0), "mask": np.arange(7) % 2 == 0}
    assert_sharded_equal(on_ranks, whole, given | {"scale": 3}, ranks=range(1, 8), shard={
        "x": -1, "p": "partial", "mask": 0, "last": -1, "joined": "replicated", "total": "replicated",
        "dp": "replicated"})


@pytest.mark.parametrize("dtype", ["int64", "int8", "float64"])
def test_the_parts_of_a_partial_array_add_up_to_it_and_differ(dtype):
    seen = []

    def on_ranks(comm, x):
        seen.append(x)
        return {"y": x}                                        # left as addends: compared as their sum

    assert_sharded_equal(on_ranks, lambda x: {"y": x}, {"x": np.arange(1, 6).astype(dtype)}, ranks=3,
                         shard={"x": "partial", "y": "partial"}, gradients=False)
    assert not np.array_equal(seen[0], seen[1])


def test_neither_side_can_spoil_the_inputs_of_the_other():
    x = np.ones(4)

    def in_place(comm=None, *, x):
        x *= 2
        return {"y": x}

    assert_sharded_equal(in_place, in_place, {"x": x}, shard={"x": 0, "y": 0}, gradients=False)
    assert np.array_equal(x, np.ones(4))


def test_a_gradient_that_is_zero_in_truth_is_measured_against_all_gradients():
    """The key bias of softmax attention: rounding leaves 1e-16 where the truth is 0."""
    def noisy(comm, x):
        return {"y": x, "dx": x, "db": np.full(3, 1e-16)}

    given, shard = {"x": np.arange(5.0), "b": np.zeros(3)}, {"x": 0, "b": "replicated", "y": 0}
    truth = lambda x, b: {"y": x, "dx": x, "db": 0 * b}
    assert_sharded_equal(lambda comm, x, b: noisy(comm, x), truth, given, shard=shard)
    with pytest.raises(AssertionError, match="^db of rank 0 of 1 is wrong"):
        assert_sharded_equal(lambda comm, x, b: noisy(comm, x) | {"db": np.full(3, 1e-8)}, truth, given, shard=shard)


# -- wrong ones (why they are wrong: test_diagnosis.py) ---------------------------------------------------------------

def test_a_missing_and_a_surplus_name_are_errors():
    without = lambda comm, **local: {name: y for name, y in program(comm, **local).items() if name != "dw"}
    assert "dw: rank 0 of 3 returned y, dx, db, but not dw" in complaint(without)
    assert "dz: rank 0 of 3 returned it, and the reference did not: it would go unchecked" in complaint(
        lambda comm, **local: program(comm, **local) | {"dz": 0})
    for value, words in ((None, "None"), ((1, 2), "a tuple"), (np.ones(2), "a ndarray")):
        assert f"program returned {words}: expected a dict of arrays by name: y, dx, dw, db" in complaint(
            lambda comm, value=value, **_: value)


# -- traffic ----------------------------------------------------------------------------------------------------------

RING = lambda P, rank: 8 * traffic.ring_all_reduce(5 * 3, P, rank)


def in_phases(comm, **local):
    with comm.phase("forward"):
        return program(comm, **local)


def greedy(comm, x, w, b, dy):
    """Right values, wrong traffic: everybody sends everything to everybody."""
    with comm.phase("forward"):
        y = sum(all_gather((x @ w)[None], comm)) + b
    return program(comm, x, w, b, dy) | {"y": y}


def test_traffic_is_compared_as_a_function_or_by_phase_and_merged_into_the_ledger():
    log = Ledger()
    assert_sharded_equal(in_phases, reference, inputs(), shard=SHARD, ledger=log, traffic=RING)
    assert_sharded_equal(in_phases, reference, inputs(), shard=SHARD,
                         traffic={"forward": RING, "backward": lambda P, rank: 0})
    assert log.bytes_sent(rank=0) == sum(RING(P, 0) for P in (1, 2, 3, 4))


def test_right_values_with_wrong_traffic_fail_and_name_rank_bytes_and_phase():
    stated = RING(3, 0)
    text = complaint(greedy, traffic=RING)
    assert text == (f"values are right, traffic is not: rank 0 of 3 sent {stated + 240} bytes in 6 messages, "
                    f"the formula says {stated}")
    text = complaint(greedy, traffic={"forward": RING})
    assert f"rank 0 of 3 sent 240 bytes in 2 messages of phase 'forward', the formula says {stated}" in text


# -- wrong calls ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("says, options", [
    ("reference returns no gradient .it returns y.: compare d . an input's name, or say gradients=False",
     {"reference": lambda **_: {"y": 0.0}}),
    ("shard.'y'. = None: say how y is cut: an axis from 0 to 1, 'replicated' or 'partial'",
     {"shard": {**SHARD, "y": None}}),
    ("shard.'x'. = 2: say how x is cut: an axis from 0 to 1", {"shard": {**SHARD, "x": 2}}),
    ("shard.'x'. = 'cut'", {"shard": {**SHARD, "x": "cut"}}),
    ("shard.'x'. = True", {"shard": {**SHARD, "x": True}}),
    ("reference returned None: expected a dict", {"reference": lambda **_: None}),
    ("reference returned an empty dict: expected", {"reference": lambda **_: {}, "gradients": False}),
    ("ranks=.*: give at least one number of ranks", {"ranks": ()}),
    ("size=0: a world has a whole number of ranks", {"ranks": (0,)}),
])
def test_a_wrong_call_is_a_ValueError(says, options):
    arguments = {"program": program, "reference": reference, "inputs": inputs(), "shard": SHARD} | options
    with pytest.raises(ValueError, match=says):
        assert_sharded_equal(**arguments)


def test_a_deadlock_and_an_error_of_the_program_pass_through():
    with pytest.raises(DeadlockError, match="rank 0 waits for a message from rank 1"):
        assert_sharded_equal(lambda comm, **_: comm.recv(1 - comm.rank), reference, inputs(), ranks=(2,), shard=SHARD)
    with pytest.raises(ZeroDivisionError) as caught:
        assert_sharded_equal(lambda comm, **_: {"y": 1 // (comm.rank - 1)}, reference, inputs(), ranks=2, shard=SHARD)
    assert caught.value.__notes__ == ["(raised on rank 1 of 2)"]


# -- the measure ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actual, expected, of_kind, difference", [
    ([3.0, 4.0], [3.0, 4.0], 0, 0), ([0.0], [0.0], 0, 0), ([], [], 0, 0), (2.0, 1.0, 0, 1.0),
    ([3.0, 4.5], [3.0, 4.0], 0, 0.1), ([1e-3], [0.0], 10, 0.1), ([1e-3], [0.0], 0, INF),
    ([NAN], [NAN], 0, INF), ([NAN], [1.0], 0, INF), ([1.0], [NAN], 0, INF),            # A32: NaN equals nothing
    ([INF, 1.0], [INF, 1.0], 0, 0), ([-INF, 1.0], [INF, 1.0], 0, INF), ([1.0], [INF], 0, INF),
    ([-INF, 3.0], [-INF, 2.0], 0, 0.5), ([2.0], [1.0], INF * 0 + 0, 1.0),
    ([2e-200], [1e-200], 0, 1.0), ([2e200], [1e200], 0, 1.0), ([-1e308], [1e308], 0, INF),      # squares would not fit
    ([3j], [4j], 0, 0.25), (np.array([True]), np.array([False]), 0, INF),
])
def test_the_relative_difference(actual, expected, of_kind, difference):
    assert relative_difference(actual, expected, of_kind) == pytest.approx(difference, rel=1e-12)


def test_integers_are_compared_exactly_however_large():
    a = np.array([2**53, 1])
    assert relative_difference(a + [1, 0], a) > 0 == relative_difference(a, a.copy())


def test_one_infinite_output_does_not_excuse_the_others():
    """Scores of masked positions are -inf: the norm of all outputs must not become inf, and every difference 0."""
    expected = {"scores": np.array([1.0, -INF]), "y": np.array([1.0])}
    shard = {"scores": "replicated", "y": "replicated"}
    compare([dict(expected)], expected, shard)
    with pytest.raises(AssertionError, match="y of rank 0 of 1 is wrong"):
        compare([expected | {"y": np.array([2.0])}], expected, shard)
    assert norm_of_all(expected.values()) == pytest.approx(2**0.5)
