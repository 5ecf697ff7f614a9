"""MPI's own collectives: the same results as ours, uncounted; elsewhere an error that says what to use."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from refimpl import Ledger, run
from refimpl.collectives import all_gather, all_reduce, bounds, native, reduce_scatter
from refimpl.cost import traffic


@pytest.mark.parametrize("P", [1, 2, 3])
def test_native_is_refused_in_the_local_world_before_anything_is_sent(P):
    log = Ledger()
    with pytest.raises(ValueError, match="algorithm='native' is MPI's own, and this is the local world: use 'ring'"):
        run(lambda comm: all_reduce(np.ones(3), comm, algorithm="native"), P, ledger=log)
    assert log.messages() == 0


@pytest.fixture(params=[pytest.param(P, marks=pytest.mark.mpi(P)) for P in (1, 2, 4)])
def ranks(request):
    """Number of ranks of the MPI job that the test runs in."""
    return request.param


def test_native_equals_the_ring_on_whole_numbers_and_counts_nothing(ranks):
    cases = [(0, "float64"), (5, "int8"), (101, "float64"), (4, "complex128")]
    inputs = [(np.arange(n) % 3).astype(dtype) for n, dtype in cases]

    def program(comm):
        for x in inputs:
            for op in ("sum", "prod") if x.dtype.kind == "c" else ("sum", "prod", "max", "min"):
                before = x + comm.rank
                mine = before.copy()
                with comm.phase("native"):
                    y = all_reduce(mine, comm, op=op, algorithm="native")
                assert_array_equal(y, all_reduce(mine, comm, op=op, algorithm="ring"))
                assert_array_equal(mine, before)
                assert y.dtype == x.dtype

    log = Ledger()
    run(program, ranks, ledger=log)
    assert log.messages(phase="native") == 0
    assert (log.messages() > 0) == (ranks > 1)                   # the ring's are counted


def test_native_knows_booleans_in_place_strides_and_pieces(ranks, monkeypatch):
    monkeypatch.setenv("REFIMPL_MPI_MAX_COUNT", "2")             # A04: more elements than one call may carry

    def program(comm):
        flags = np.array([True, False, comm.rank == 0])
        x = np.arange(6.0).reshape(2, 3)
        out = np.full((3, 2), -1.0).T                            # Fortran order: A03
        all_reduce(x, comm, algorithm="native", out=out)
        all_reduce(x, comm, algorithm="native", out=x)
        return (all_reduce(flags, comm, op="max", algorithm="native"),
                all_reduce(flags, comm, op="min", algorithm="native"), x, out)

    for any_, all_, x, out in run(program, ranks):
        assert_array_equal(any_, [True, False, True])
        assert_array_equal(all_, [True, False, ranks == 1])
        assert_array_equal(x, np.arange(6.0).reshape(2, 3) * ranks)
        assert_array_equal(out, x)


@pytest.mark.parametrize("shape", [(0,), (3,), (100_001,), (7, 2, 3)])
def test_native_reduce_scatter_and_all_gather_cut_the_array_as_ours_do(ranks, shape):
    def program(comm):
        x = np.arange(np.prod(shape, dtype=int)).reshape(shape) * (comm.rank + 1.0)
        b = bounds(shape[0], comm.size)
        chunk, whole = np.full_like(x[b[comm.rank]:b[comm.rank + 1]], -1), np.full_like(x, -1)
        with comm.phase("native"):
            assert native.reduce_scatter(x, comm, "sum", chunk) is chunk
            assert native.all_gather(chunk, comm, whole) is whole
        assert_array_equal(chunk, reduce_scatter(x, comm))
        assert_array_equal(whole, all_gather(chunk, comm))

    log = Ledger()
    run(program, ranks, ledger=log)
    assert log.messages(phase="native") == 0


def test_auto_never_picks_native_while_somebody_counts(ranks):
    """What is not counted would be missing from the ledger."""
    log = Ledger()
    run(lambda comm: all_reduce(np.ones(10), comm, algorithm="auto"), ranks, ledger=log)
    assert log.bytes_sent() == 8 * traffic.doubling_all_reduce(10, ranks)


def test_native_refuses_arrays_of_a_device(ranks):
    import fake_cupy

    with pytest.raises(ValueError, match="algorithm='native' takes arrays of the host: use 'ring'"):
        run(lambda comm: all_reduce(fake_cupy.ones(3), comm, algorithm="native"), ranks)
