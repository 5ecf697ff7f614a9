"""The ring: values, bits, bytes and messages; uneven chunks, empty ones, in place and not."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl import Ledger, run
from refimpl.arrays import to_host
from refimpl.collectives import all_gather, all_reduce, reduce_scatter, ring
from refimpl.cost import traffic

RANKS = [1, 2, 3, 4, 7]
SIZES = [0, 1, 2, 5, 100, 101]                         # fewer elements than ranks; sizes that do not divide


def whole_numbers(n, rank, dtype="float64"):
    """What rank brings: small whole numbers, so that float16 holds every sum exactly; other ones on every rank."""
    return ((np.arange(n) * (rank + 3) + rank) % 7).astype(dtype)


def summed_around_the_ring(xs):
    """The sum in the ring's order, in one process: chunk k starts at rank k+1, and rank k's own addend comes last."""
    P, n = len(xs), len(xs[0])
    total = np.empty_like(xs[0])
    for k in range(P):
        chunk = slice(n * k // P, n * (k + 1) // P)
        total[chunk] = xs[(k + 1) % P][chunk]
        for stop in range(2, P + 1):
            total[chunk] += xs[(k + stop) % P][chunk]
    return total


# -- values -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", RANKS)
def test_all_three_are_exact_on_whole_numbers_and_leave_their_input_alone(P, world, xp):
    cases = [(0, "float64"), (1, "float32"), (2, "float16"), (5, "int64"), (100, "float64"), (101, "int8")]
    block_size = lambda n, rank: (n + rank) % 4            # another on every rank, sometimes none

    def program(comm):
        found = []
        for n, dtype in cases:
            x = device_array(xp, whole_numbers(n, comm.rank, dtype))
            block = device_array(xp, whole_numbers(block_size(n, comm.rank), comm.rank, dtype))
            found.append([to_host(a) for a in (all_reduce(x, comm, algorithm="ring"), reduce_scatter(x, comm),
                                               all_gather(block, comm), x, block)])
        return found

    results = run(program, P)
    for case, (n, dtype) in enumerate(cases):
        total = sum(whole_numbers(n, r, "int64") for r in range(P)).astype(dtype)
        blocks = [whole_numbers(block_size(n, r), r, dtype) for r in range(P)]
        for rank, result in enumerate(results):
            expected = (total, total[n * rank // P:n * (rank + 1) // P], np.concatenate(blocks),
                        whole_numbers(n, rank, dtype), blocks[rank])
            for mine, right in zip(result[case], expected, strict=True):
                assert_array_equal(mine, right)
                assert mine.dtype == dtype


@pytest.mark.parametrize("P", RANKS)
def test_random_floats_add_up_in_the_order_of_the_ring_to_the_same_bits_on_every_rank(P, world):
    inputs = [np.random.default_rng(n).standard_normal((P, n)) for n in (1, 2, 5, 101)]

    def program(comm):
        mine = [xs[comm.rank] for xs in inputs]
        return [(all_reduce(x, comm, algorithm="ring"), reduce_scatter(x, comm)) for x in mine]

    for xs, *results in zip(inputs, *run(program, P), strict=True):
        expected = summed_around_the_ring(xs)
        for total, _ in results:
            assert_array_equal(total, expected)
        assert_array_equal(np.concatenate([chunk for _, chunk in results]), expected)


@pytest.mark.parametrize("P", RANKS)
def test_any_axis_is_cut_and_joined(P, world, xp):
    cases = [((5, 3), 1), ((2, 7, 3), -2), ((2, 3, 4), 2), ((1, 0, 2), 0), ((4, 6), -2)]
    inputs = [np.random.default_rng(1).integers(-9, 9, (P, *shape)).astype("float64") for shape, _ in cases]

    def program(comm):
        found = []
        for xs, (_, axis) in zip(inputs, cases, strict=True):
            chunk = reduce_scatter(device_array(xp, xs[comm.rank]), comm, axis=axis)
            whole = all_gather(chunk, comm, axis=axis)
            assert chunk.flags.c_contiguous and whole.flags.c_contiguous
            found.append((to_host(chunk), to_host(whole)))
        return found

    for (shape, axis), xs, *results in zip(cases, inputs, *run(program, P), strict=True):
        b = [shape[axis] * k // P for k in range(P + 1)]
        for rank, (chunk, whole) in enumerate(results):
            assert_array_equal(chunk, np.take(xs.sum(0), range(b[rank], b[rank + 1]), axis))
            assert_array_equal(whole, xs.sum(0))


@pytest.mark.parametrize("P", [1, 2, 3, 4])
def test_the_steps_in_place_leave_each_rank_its_chunk_and_then_everything(P, world, xp):
    """The plain versions, which the calls are made of: they work on the array they are given."""
    def program(comm):
        x = device_array(xp, whole_numbers(10, comm.rank))
        chunk = ring.reduce_scatter_(x, comm)
        mine = to_host(chunk).copy()
        assert ring.all_gather_(x, comm) is x
        return mine, to_host(x)

    total = sum(whole_numbers(10, r) for r in range(P))
    results = run(program, P)
    assert_array_equal(np.concatenate([chunk for chunk, _ in results]), total)
    for _, x in results:
        assert_array_equal(x, total)


# -- A01 and A02 ------------------------------------------------------------------------------------------------------

def harmonic(n, rank):
    """A01's input of rank r: r, then 1/r."""
    return np.array([rank, 0 if rank == 0 else 1 / rank] * n, dtype="float64")[:n]


@pytest.mark.parametrize("P", [4])
@pytest.mark.parametrize("place", ["new", "in place", "out"])
def test_A01_fewer_elements_than_ranks_in_place_and_out_of_place(P, place, world, xp):
    """open-mpi/ompi #9385: a ring with empty chunks and an in-place buffer gave wrong sums."""
    sizes = [0, 1, 2, 5, 10]

    def program(comm):
        found = []
        for n in sizes:
            x = device_array(xp, harmonic(n, comm.rank))
            out = {"new": None, "in place": x, "out": xp.full(n, 7.0)}[place]
            y = all_reduce(x, comm, algorithm="ring", out=out)
            assert out is None or y is out
            found.append((to_host(y), to_host(x)))
        return found

    for n, *results in zip(sizes, *run(program, P), strict=True):
        for rank, (y, x) in enumerate(results):
            np.testing.assert_allclose(y, np.array([6, 1 + 1 / 2 + 1 / 3] * n)[:n], rtol=1e-15)
            assert_array_equal(x, y if place == "in place" else harmonic(n, rank))


@pytest.mark.parametrize("n, elements, steps", [(100, 150, 6), (10, 15, 6), (2, 3, 6), (0, 0, 6)])
def test_A01_a_ring_of_four_sends_this_many_elements_in_six_steps(n, elements, steps):
    """NVIDIA/nccl #457: for any n the total over ranks is 2 (P-1) n."""
    log = Ledger()
    run(lambda comm: all_reduce(np.ones(n), comm, algorithm="ring"), 4, ledger=log)
    assert [log.bytes_sent(rank=r) // 8 for r in range(4)] == [elements] * 4
    assert [log.messages(rank=r) for r in range(4)] == [steps] * 4
    assert log.bytes_sent() == 2 * 3 * n * 8


def test_A01_one_rank_sends_nothing():
    log = Ledger()
    run(lambda comm: [call(np.ones(5), comm) for call in (all_reduce, reduce_scatter, all_gather)], 1, ledger=log)
    assert log.messages() == 0


@pytest.mark.parametrize("P", [2, 3])
def test_A02_a_ring_does_not_rely_on_buffers(P):
    """NVIDIA/nccl #479: send-then-receive on every rank passes small tests and hangs on large messages."""
    results = run(lambda comm: all_reduce(np.full(1000, comm.rank + 1.0), comm, algorithm="ring"), P, rendezvous=True)
    for y in results:
        assert_array_equal(y, np.full(1000, P * (P + 1) / 2))


# -- what is sent -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", range(1, 10))
@pytest.mark.parametrize("n", SIZES)
def test_every_rank_sends_the_bytes_and_messages_of_the_formula(P, n):
    def program(comm):
        x = np.zeros(n, "float32")
        with comm.phase("all_reduce"):
            all_reduce(x, comm, algorithm="ring")
        with comm.phase("reduce_scatter"):
            chunk = reduce_scatter(x, comm)
        with comm.phase("all_gather"):
            all_gather(chunk, comm)

    log = Ledger(trace=True)
    run(program, P, ledger=log)
    for phase, formula, passes in (("all_reduce", traffic.ring_all_reduce, 2),
                                   ("reduce_scatter", traffic.ring_reduce_scatter, 1),
                                   ("all_gather", traffic.ring_all_gather, 1)):
        for rank in range(P):
            assert log.bytes_sent(rank=rank, phase=phase) == 4 * formula(n, P, rank)
            assert log.messages(rank=rank, phase=phase) == traffic.ring_messages(P, passes)
        assert log.bytes_sent(phase=phase) == passes * (P - 1) * n * 4
        assert log.bytes_sent(collective=phase) == log.bytes_sent(phase=phase)
    assert all(message.dst == (message.rank + 1) % P for message in log.trace)                   # to the right, only
    if n < P and P > 1:
        assert any(message.nbytes == 0 for message in log.trace)                                 # empty chunks go, too


@pytest.mark.parametrize("P", [2, 5])
def test_rows_are_cut_and_not_elements_where_an_array_has_more_axes(P):
    log = Ledger()
    run(lambda comm: reduce_scatter(np.zeros((4, 7), "int16"), comm, axis=1), P, ledger=log)
    for rank in range(P):
        assert log.bytes_sent(rank=rank) == 2 * 4 * traffic.ring_reduce_scatter(7, P, rank)
