"""Trees: broadcast, gather and scatter for every root, any blocks, and P-1 messages whatever P."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl import Ledger, run
from refimpl.arrays import to_host
from refimpl.collectives import broadcast, chunk_sizes, gather, scatter
from refimpl.cost import traffic


def cut(x, rank, P, axis=0):
    n = x.shape[axis]
    return np.take(x, range(n * rank // P, n * (rank + 1) // P), axis)


# -- on every world and library ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [1, 2, 3, 4, 7])
def test_broadcast_brings_the_roots_array_to_everybody(P, world, xp):
    cases = [(0, (2, 3), "float64"), (P - 1, (), "int32"), (P // 2, (0, 4), "float16"), (0, (5,), "bool")]
    wholes = [np.arange(np.prod(shape)).reshape(shape).astype(dtype) for _, shape, dtype in cases]

    def program(comm):
        return [to_host(broadcast(device_array(xp, whole) if comm.rank == root else None, comm, root))
                for (root, _, _), whole in zip(cases, wholes, strict=True)]

    for results in run(program, P):
        for whole, y in zip(wholes, results, strict=True):
            assert_array_equal(y, whole)
            assert (y.shape, y.dtype) == (whole.shape, whole.dtype)


@pytest.mark.parametrize("P", [1, 3, 4])
def test_what_one_rank_does_to_its_copy_no_other_rank_sees(P, world):
    def program(comm):
        x = np.zeros(3)
        y = broadcast(x, comm, root=P - 1)                     # others may give an array, too, if it is alike
        comm.barrier()
        y += comm.rank + 1
        comm.barrier()
        return x, y

    for rank, (x, y) in enumerate(run(program, P)):
        assert_array_equal(x, np.zeros(3))
        assert_array_equal(y, np.full(3, rank + 1.0))


@pytest.mark.parametrize("P", [1, 2, 3, 4, 7])
def test_gather_joins_uneven_and_empty_blocks_on_the_root_alone(P, world, xp):
    cases = [(0, 0, "float64"), (P - 1, 1, "int32"), (P // 2, -2, "float16")]           # root, axis, dtype
    sizes = [(3 * r + 2) % 4 for r in range(P)]                                         # 2, 1, 0, 3, ...

    def block(rank, axis, dtype):
        shape = [3, 3]
        shape[axis] = sizes[rank]
        return (np.arange(np.prod(shape)).reshape(shape) + 10 * rank).astype(dtype)

    def program(comm):
        blocks = [device_array(xp, block(comm.rank, axis, dtype)) for _, axis, dtype in cases]
        results = [gather(x, comm, root, axis) for x, (root, axis, _) in zip(blocks, cases, strict=True)]
        return [None if y is None else to_host(y) for y in results]

    for rank, results in enumerate(run(program, P)):
        for (root, axis, dtype), y in zip(cases, results, strict=True):
            if rank != root:
                assert y is None
            else:
                assert_array_equal(y, np.concatenate([block(r, axis, dtype) for r in range(P)], axis))
                assert y.dtype == dtype


@pytest.mark.parametrize("P", [1, 2, 3, 4, 7])
def test_scatter_cuts_the_roots_array_into_chunks(P, world, xp):
    cases = [(0, 0, (10, 2), "float64"), (P - 1, 1, (2, 5), "int32"), (P // 2, -1, (3, 2), "bool"),
             (0, 0, (0, 2), "float16")]                                                  # root, axis, shape, dtype
    wholes = [np.random.default_rng(0).integers(0, 2, shape).astype(dtype) for _, _, shape, dtype in cases]

    def program(comm):
        return [to_host(scatter(device_array(xp, whole) if comm.rank == root else None, comm, root, axis))
                for (root, axis, _, _), whole in zip(cases, wholes, strict=True)]

    for rank, results in enumerate(run(program, P)):
        for (_, axis, _, dtype), whole, y in zip(cases, wholes, results, strict=True):
            assert_array_equal(y, cut(whole, rank, P, axis))
            assert y.dtype == dtype and y.flags.c_contiguous


@pytest.mark.parametrize("P", [1, 2, 4])
def test_what_gather_and_scatter_return_shares_no_memory_with_the_input(P):
    def program(comm):
        x = np.ones((4, 2))
        found = scatter(x, comm), gather(x, comm), broadcast(x, comm)
        return [np.shares_memory(x, y) for y in found if y is not None]

    assert not any(sum(run(program, P), []))


# -- every root -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", range(1, 10))
def test_every_root_reaches_everybody_with_one_message_to_each_and_few_in_a_row(P):
    for root in range(P):
        def program(comm, root=root):
            x = np.arange(5.0) + root
            with comm.phase("broadcast"):
                everywhere = broadcast(x if comm.rank == root else None, comm, root)
            with comm.phase("gather"):
                joined = gather(np.full(comm.rank % 3, comm.rank), comm, root)
            with comm.phase("scatter"):
                mine = scatter(np.arange(2 * P + 1) if comm.rank == root else None, comm, root)
            return everywhere, joined, mine

        log = Ledger()
        results = run(program, P, ledger=log)
        for rank, (everywhere, joined, mine) in enumerate(results):
            assert_array_equal(everywhere, np.arange(5.0) + root)
            assert_array_equal(mine, cut(np.arange(2 * P + 1), rank, P))
            assert (joined is None) == (rank != root)
        assert_array_equal(results[root][1], np.repeat(range(P), [r % 3 for r in range(P)]))
        for phase in ("broadcast", "gather", "scatter"):
            assert log.messages(phase=phase) == P - 1
        for rank in range(P):
            assert log.messages(rank=rank, phase="gather") == (rank != root)                  # its block, once
            assert log.messages(dst=rank, phase="scatter") == (rank != root)
            assert log.messages(dst=rank, phase="broadcast") == (rank != root)
            assert log.messages(rank=rank, phase="broadcast") <= (P - 1).bit_length()      # as many as there are levels
            assert log.messages(dst=rank, phase="gather") <= (P - 1).bit_length()


# -- what is sent -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", range(1, 10))
@pytest.mark.parametrize("n", [0, 1, 5, 100])
def test_what_is_sent_equals_the_formula(P, n):
    def program(comm):
        x = np.zeros((n, 3), "float32")
        with comm.phase("broadcast"):
            broadcast(x, comm)
        with comm.phase("scatter"):
            mine = scatter(x if comm.rank == 0 else None, comm)
        with comm.phase("gather"):
            gather(mine, comm)

    log = Ledger()
    run(program, P, ledger=log)
    assert log.bytes_sent(phase="broadcast") == 12 * traffic.tree_broadcast(n, P)
    assert log.bytes_sent(phase="scatter") == log.bytes_sent(phase="gather") == 12 * traffic.tree_gather(n, P)


@pytest.mark.parametrize("n", [5, 16])
def test_a_gather_over_six_ranks_sends_what_can_be_counted_by_hand(n):
    """Root 0: ranks 1, 3 and 5 send a block, 2 sends those of 2 and 3, 4 those of 4 and 5."""
    log = Ledger()
    run(lambda comm: gather(np.zeros(chunk_sizes(n, 6)[comm.rank], "int8"), comm), 6, ledger=log)
    size = chunk_sizes(n, 6)
    sent = [0, size[1], size[2] + size[3], size[3], size[4] + size[5], size[5]]
    assert [log.bytes_sent(rank=r) for r in range(6)] == sent
