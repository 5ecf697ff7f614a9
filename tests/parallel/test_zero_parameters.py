"""How ZeRO holds parameters: gathered when wanted, once; never out of date; the master with all its digits."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl import Ledger, run
from refimpl.arrays import to_host
from refimpl.model.adam import Adam
from refimpl.parallel.zero import Zero
from refimpl.precision import Precision, narrow, wide

stages = pytest.mark.parametrize("stage", [0, 1, 2, 3])
MODEL = {"w": np.linspace(-1, 1, 10).reshape(2, 5), "b": np.linspace(0, 1, 3), "v": np.linspace(2, 3, 4)}
UNITS = {"first": ["w", "b"], "second": ["v"]}


@stages
@pytest.mark.parametrize("P", [1, 2, 3, 4, 20])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_rank_gets_the_whole_parameters_as_they_are_stored(xp, P, dtype, stage):
    def program(comm):
        zero = Zero({name: device_array(xp, p) for name, p in MODEL.items()}, UNITS, comm, stage, Adam(),
                    Precision(dtype))
        return {name: to_host(p) for key in UNITS for name, p in zero.parameters(key).items()}

    for result in run(program, P):
        for name, p in MODEL.items():
            stored = narrow(p.astype(Precision(dtype).master), np.dtype(Precision(dtype).stored))
            assert result[name].dtype == stored.dtype
            assert_array_equal(result[name], stored)


@stages
def test_what_lies_in_fortran_order_is_the_same_parameter_and_gradient(xp, stage):
    def program(comm, order):
        arrays = {name: device_array(xp, np.asarray(p, order=order)) for name, p in MODEL.items()}
        zero = Zero(arrays, UNITS, comm, stage, Adam(rate=0.1))
        for key in ("second", "first"):
            zero.reduce(key, {name: arrays[name] for name in UNITS[key]})
        zero.step()
        return {name: to_host(p).copy() for key in UNITS for name, p in zero.parameters(key).items()}

    for one, other in zip(run(program, 3, "C"), run(program, 3, "F")):
        for name in MODEL:
            assert_array_equal(one[name], other[name])
            assert (np.abs(one[name] - MODEL[name]) > 0.05).sum() >= one[name].size - 1       # one gradient is 0


@stages
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_master_begins_with_digits_that_the_parameter_cannot_store(dtype, stage):
    def program(comm):
        zero = Zero(MODEL, UNITS, comm, stage, Adam(), Precision(dtype))
        return {name: (held.start, held.stop, held.parameter.copy()) for name, held in zero.state().items()}

    for result in run(program, 3):
        for name, (start, stop, master) in result.items():
            assert master.dtype == np.float32
            assert_array_equal(master, MODEL[name].astype(np.float32).ravel()[start:stop])


@stages
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("P", [2])
def test_after_a_step_nobody_sees_old_parameters(world, P, dtype, stage):
    """Not even of a unit that was not released, or that was on its way."""
    def program(comm):
        given = {name: p.copy() for name, p in MODEL.items()}
        zero = Zero(given, UNITS, comm, stage, Adam(rate=0.5, epsilon=1e-30), Precision(dtype))
        zero.parameters("first")
        zero.prefetch("second")
        for key in ("second", "first"):
            zero.reduce(key, {name: np.full(MODEL[name].shape, 1 / P, np.float32) for name in UNITS[key]})
        zero.step()
        for name, p in given.items():
            assert_array_equal(p, MODEL[name])                                    # the caller's own stay as they are
        return {name: wide(p).copy() for key in UNITS for name, p in zero.parameters(key).items()}

    for result in run(program, P):
        for name, p in MODEL.items():
            assert np.abs(result[name] - (p - 0.5)).max() < (1e-2 if dtype == "bfloat16" else 1e-12)


def test_stage_3_gathers_a_unit_once_until_it_is_released():
    def program(comm):
        zero = Zero(MODEL, UNITS, comm, 3, Adam())
        for label, calls in (("asked twice", ["parameters", "parameters"]), ("on its way", ["prefetch", "prefetch"]),
                             ("here", ["parameters", "prefetch"]), ("twice", ["parameters", "release", "parameters"]),
                             ("for nothing", ["prefetch", "release"]), ("only given back", ["release"])):
            with comm.phase(label):
                for call in calls:
                    getattr(zero, call)("first")
            zero.release("first")
            assert not zero.held.whole and not zero.held.coming

    log = Ledger()
    run(program, 2, ledger=log)
    for label, times in (("asked twice", 1), ("on its way", 1), ("here", 1), ("twice", 2), ("for nothing", 1),
                         ("only given back", 0)):
        assert log.bytes_sent(0, label) == times * 7 * 8                          # 13 elements, padded to 14


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_below_stage_3_parameters_stay_where_they_are(stage):
    def program(comm):
        zero = Zero(MODEL, UNITS, comm, stage, Adam())
        views = zero.parameters("first")
        zero.reduce("first", {"w": np.ones((2, 5))})
        zero.release("first")
        zero.step()
        return all(np.shares_memory(p, views[name]) for name, p in zero.parameters("first").items())

    log = Ledger()
    assert run(program, 2, ledger=log) == [True, True]
    assert (log.bytes_sent(phase="zero gather") == 0) == (stage == 0)
