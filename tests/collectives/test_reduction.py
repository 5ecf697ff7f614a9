"""Reductions: sum, product, maximum, minimum, on every algorithm; NaN, booleans, overflow."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl import Ledger, run
from refimpl.arrays import to_host
from refimpl.collectives import all_reduce, reduce_scatter

WHOLE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
ALGORITHMS = ["ring", "doubling"]


def everywhere(xs, op, algorithm, xp=np):
    """All ranks' results of an all-reduce of xs[rank], as host arrays."""
    return run(lambda comm: to_host(all_reduce(device_array(xp, xs[comm.rank]), comm, op, algorithm)), len(xs))


@pytest.mark.parametrize("P", [1, 2, 3, 4])
@pytest.mark.parametrize("op", WHOLE)
def test_every_operation_is_numpys_own_over_the_ranks(P, op, world, xp):
    inputs = [np.random.default_rng(3).integers(-2, 3, (P, n)).astype(dtype)              # products: at most 2**4
              for n, dtype in [(5, "float64"), (2, "float16"), (7, "int8"), (3, "float32")]]

    def program(comm):
        results = []
        for xs in inputs:
            x = device_array(xp, xs[comm.rank])
            results.append([to_host(all_reduce(x, comm, op=op, algorithm=algorithm)) for algorithm in ALGORITHMS]
                           + [to_host(reduce_scatter(x, comm, op=op))])
        return results

    for case, xs in enumerate(inputs):
        whole, found = WHOLE[op].reduce(xs).astype(xs.dtype), [results[case] for results in run(program, P)]
        for ring, doubling, chunk in found:
            assert_array_equal(ring, whole)
            assert_array_equal(doubling, whole)
            assert chunk.dtype == ring.dtype == doubling.dtype == xs.dtype
        assert_array_equal(np.concatenate([chunk for _, _, chunk in found]), whole)


@pytest.mark.parametrize("P", [2, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("op", ["max", "min"])
def test_NaN_on_one_rank_is_NaN_on_all(P, op, algorithm, world, xp):
    xs = np.tile([1.0, 2.0, 3.0], (P, 1))
    xs[0, 0] = xs[P - 1, 2] = np.nan
    for y in everywhere(xs, op, algorithm, xp):
        assert_array_equal(np.isnan(y), [True, False, True])
        assert y[1] == 2


@pytest.mark.parametrize("P", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_max_of_booleans_is_any_and_min_is_all(P, algorithm, world, xp):
    xs = np.array([[True, False, rank == 0] for rank in range(P)])
    for y in everywhere(xs, "max", algorithm, xp):
        assert_array_equal(y, [True, False, True])
        assert y.dtype == bool
    for y in everywhere(xs, "min", algorithm, xp):
        assert_array_equal(y, [True, False, P == 1])


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype, addend, total", [
    ("int64", 2**62 - 1, 2**63 - 2), ("uint8", 100, 200), ("int8", 100, -56), ("float16", 60000, np.inf),
    ("complex64", 1 + 2j, 2 + 4j)])
def test_sums_stay_in_the_arrays_own_dtype_exact_or_overflowing_as_numpys_do(algorithm, dtype, addend, total):
    xs = np.full((2, 3), addend, dtype)
    for y in everywhere(xs, "sum", algorithm):
        assert_array_equal(y, np.full(3, total, dtype))
        assert y.dtype == dtype


@pytest.mark.parametrize("call", [all_reduce, reduce_scatter])
@pytest.mark.parametrize("x, op, says", [
    (1.5, "mean", "op='mean' is not a reduction: one of sum, prod, max, min .*'sum', then divide by comm.size"),
    (1.5, "add", "op='add' is not a reduction"),
    (1.5, "mx", "perhaps 'max'"),
    (1.5, ["sum"], "op=.'sum'. is not a reduction"),
    (1.5, None, "op=None is not a reduction"),
    (1.5, np.maximum, "is not a reduction: one of sum, prod, max, min .perhaps 'max'"),
    (True, "sum", "op='sum' of booleans: send x.astype.int., or use max"),
    (True, "prod", "op='prod' of booleans"),
    (1j, "max", "op='max' of complex numbers: they have no order"),
    (1j, "min", "op='min' of complex numbers"),
])
def test_an_operation_that_means_nothing_is_refused_before_anything_is_sent(call, x, op, says):
    log = Ledger()
    with pytest.raises(ValueError, match=says):
        run(lambda comm: call(np.full(3, x), comm, op=op), 2, ledger=log)
    assert log.messages() == 0
