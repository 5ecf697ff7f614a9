"""Recursive doubling: values, the same bits everywhere, and messages for any number of ranks."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl import Ledger, run
from refimpl.arrays import to_host
from refimpl.collectives import all_reduce
from refimpl.cost import traffic

RANKS = [1, 2, 3, 4, 6, 7]
CASES = [((0,), "float64"), ((1,), "int64"), ((2, 3), "float32"), ((), "float16"), ((101,), "float64"), ((5,), "c8")]


def added_pairwise(xs):
    """The sum in doubling's order, in one process: the first pairs fold, then neighbours add, then their sums."""
    P = len(xs)
    rem = P - 2 ** (P.bit_length() - 1)
    sums = [xs[2 * k] + xs[2 * k + 1] for k in range(rem)] + list(xs[2 * rem:])
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


@pytest.mark.parametrize("P", RANKS)
def test_doubling_is_exact_on_whole_numbers_and_leaves_its_input_alone(P, world, xp):
    inputs = [np.random.default_rng(0).integers(-9, 9, (P, *shape)).astype(dtype) for shape, dtype in CASES]

    def program(comm):
        mine = [device_array(xp, xs[comm.rank]) for xs in inputs]
        sums = [to_host(all_reduce(x, comm, algorithm="doubling")) for x in mine]
        return sums, [to_host(x) for x in mine]

    for rank, (sums, mine) in enumerate(run(program, P)):
        for xs, total, x in zip(inputs, sums, mine, strict=True):
            assert_array_equal(total, xs.sum(0))
            assert (total.shape, total.dtype) == (xs.shape[1:], xs.dtype)
            assert_array_equal(x, xs[rank])


@pytest.mark.parametrize("P", RANKS)
def test_random_floats_add_up_pairwise_to_the_same_bits_on_every_rank(P, world):
    xs = np.random.default_rng(1).standard_normal((P, 101))
    for y in run(lambda comm: all_reduce(xs[comm.rank], comm, algorithm="doubling"), P):
        assert y.tobytes() == added_pairwise(xs).tobytes()


@pytest.mark.parametrize("P", [2, 3, 4])
@pytest.mark.parametrize("op, values", [
    ("max", [0.0, -0.0, 0.0, -0.0]), ("min", [-0.0, 0.0, -0.0, 0.0]), ("sum", [np.nan, -np.nan, 1.0, -np.nan])])
def test_even_the_signs_of_zero_and_nan_are_the_same_on_every_rank(P, op, values, world):
    """Which of 0.0 and -0.0 is the larger depends on the order of operands: it must be one order for both partners."""
    results = run(lambda comm: all_reduce(np.full(9, values[comm.rank]), comm, op=op, algorithm="doubling"), P)
    assert len({y.tobytes() for y in results}) == 1


@pytest.mark.parametrize("P", [1, 2, 3, 4])
def test_in_place_and_into_an_array_of_ones_own(P, world, xp):
    def program(comm):
        x = xp.full((2, 3), comm.rank + 1.0)
        out = xp.full((2, 6), -1.0)[:, ::2]                  # not contiguous
        assert all_reduce(x, comm, algorithm="doubling", out=out) is out
        assert all_reduce(x, comm, algorithm="doubling", out=x) is x
        return to_host(out), to_host(x)

    for out, x in run(program, P):
        assert_array_equal(out, np.full((2, 3), P * (P + 1) / 2))
        assert_array_equal(x, out)


@pytest.mark.parametrize("P", range(1, 10))
@pytest.mark.parametrize("n", [0, 1, 5])
def test_what_is_sent_equals_the_formula(P, n):
    log = Ledger()
    run(lambda comm: all_reduce(np.zeros(n, "float32"), comm, algorithm="doubling"), P, ledger=log)
    assert log.bytes_sent() == 4 * traffic.doubling_all_reduce(n, P)
    assert log.messages() == traffic.doubling_messages(P)


@pytest.mark.parametrize("P, messages", [
    (1, [0]), (2, [1, 1]), (4, [2] * 4), (8, [3] * 8), (3, [1, 2, 1]), (6, [1, 3, 1, 3, 2, 2])])
def test_the_messages_of_each_rank_where_they_can_be_counted_by_hand(P, messages):
    """Of 6 ranks, 0 and 2 hand over and sit out; 1, 3, 4 and 5 exchange twice; 1 and 3 then hand the result back."""
    log = Ledger()
    run(lambda comm: all_reduce(np.zeros(3), comm, algorithm="doubling"), P, ledger=log)
    assert [log.messages(rank=r) for r in range(P)] == messages
    assert [log.bytes_sent(rank=r) for r in range(P)] == [24 * m for m in messages]
