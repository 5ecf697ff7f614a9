"""Collectives in the background: the same results, in the order of their start; on the clock, beside computation."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from refimpl import CollectiveMismatchError, DeadlockError, Ledger, Link, Network, run
from refimpl.collectives import (
    all_gather_start,
    all_reduce,
    all_reduce_start,
    all_to_all_start,
    broadcast_start,
    gather_start,
    reduce_scatter_start,
    scatter_start,
)
from refimpl.cost import alpha_beta, traffic

ALPHA, BETA = 1e-5, 1e-9


@pytest.mark.parametrize("P", [1, 2, 3, 4])
def test_results_are_those_of_the_foreground_in_whatever_order_they_are_waited_for(P, world):
    def program(comm):
        x = np.arange(10.0) * (comm.rank + 1)
        requests = [
            all_reduce_start(x, comm), reduce_scatter_start(x, comm), all_gather_start(x[:comm.rank], comm),
            broadcast_start(x, comm, root=comm.size - 1),
            all_to_all_start(parts=[x[:k] for k in range(comm.size)], comm=comm),
            gather_start(x[:1], comm, 0), scatter_start(x if comm.rank == 0 else None, comm)]
        foreground = all_reduce(x, comm, algorithm="ring")
        results = [request.wait() for request in reversed(requests)][::-1]
        return foreground, [request.wait() for request in requests], results

    total = P * (P + 1) / 2
    for rank, (foreground, again, results) in enumerate(run(program, P)):
        reduced, chunk, gathered, root, parts, at_root, scattered = results
        x = np.arange(10.0)
        assert_array_equal(foreground, total * x)
        assert_array_equal(reduced, total * x)
        assert_array_equal(chunk, total * x[10 * rank // P:10 * (rank + 1) // P])
        assert_array_equal(gathered, np.concatenate([(r + 1) * x[:r] for r in range(P)]))
        assert_array_equal(root, P * x)
        for r, part in enumerate(parts):
            assert_array_equal(part, (r + 1) * x[:rank])
        assert_array_equal(at_root, np.zeros(P) if rank == 0 else None)
        assert_array_equal(scattered, x[10 * rank // P:10 * (rank + 1) // P])
        assert again[0] is reduced


def test_a_call_with_wrong_arguments_fails_where_it_is_made():
    def program(comm):
        for wrong in (lambda: all_reduce_start(np.ones(3)), lambda: all_reduce_start(np.ones(3), comm, by="ring")):
            with pytest.raises(TypeError, match="missing a required argument: 'comm'|unexpected keyword argument 'by'"):
                wrong()

    run(program, 2)


def test_it_says_what_it_starts():
    assert all_reduce_start.__name__ == "all_reduce_start" and "in the background" in all_reduce_start.__doc__
    assert all_reduce.__doc__ in all_reduce_start.__doc__


@pytest.mark.parametrize("P", [2, 4])
def test_what_runs_in_the_background_is_counted_under_the_phase_of_its_start(P, world):
    def program(comm):
        with comm.phase("backward"):
            request = all_reduce_start(np.ones(12), comm, algorithm="ring")
        with comm.phase("program"):
            all_reduce(np.ones(7), comm, algorithm="ring")
        with comm.phase("elsewhere"):
            return request.wait()

    log = Ledger()
    for runs in (1, 2):                                # once for each run, not again with what came before
        run(program, P, ledger=log)
        for rank in range(P):
            for phase, n in (("backward", 12), ("program", 7)):
                assert log.bytes_sent(rank=rank, phase=phase) == runs * 8 * traffic.ring_all_reduce(n, P, rank)
                assert log.messages(rank=rank, phase=phase) == runs * traffic.ring_messages(P, passes=2)
    assert log.bytes_sent(phase="elsewhere") == 0
    assert log.bytes_sent(group="world", collective="all_reduce") == log.bytes_sent()


@pytest.mark.parametrize("rendezvous", [False, True])
@pytest.mark.parametrize("P", [2, 3, 8])
@pytest.mark.parametrize("compute", [0.0, 1e-5, 5e-4, 1e-1])
def test_compute_and_an_all_reduce_in_the_background_take_the_longer_of_the_two(P, compute, rendezvous):
    n = 1000 * P

    def program(comm):
        request = all_reduce_start(np.ones(n), comm, algorithm="ring")
        comm.elapse(compute)
        request.wait()
        return comm.clock

    communicate = alpha_beta.ring_all_reduce(P, ALPHA, n * 8 * BETA)
    for clock in run(program, P, network=Network(Link(ALPHA, BETA)), rendezvous=rendezvous):
        assert clock == pytest.approx(max(compute, communicate), rel=1e-12)


@pytest.mark.parametrize("P", [2, 4])
def test_buckets_that_become_ready_one_by_one_hide_all_but_what_follows_the_last(P):
    """Three buckets, ready at c, 2c, 3c; each takes T. One after the other, as in a queue with one server."""
    n, c = 600 * P, 2e-5
    T = alpha_beta.ring_all_reduce(P, ALPHA, n * 8 * BETA)

    def program(comm):
        requests = []
        for _ in range(3):
            comm.elapse(c, "backward")
            requests.append(all_reduce_start(np.ones(n), comm, algorithm="ring"))
        for request in requests:
            request.wait()
        return comm.clock

    end = 0.0
    for ready in (c, 2 * c, 3 * c):
        end = max(ready, end) + T
    for clock in run(program, P, network=Network(Link(ALPHA, BETA))):
        assert clock == pytest.approx(end, rel=1e-12)


def test_background_and_foreground_share_the_port():
    """A message of the rank itself leaves after the one that the background sent first."""
    n = 10_000

    def program(comm):
        other = 1 - comm.rank
        request = all_reduce_start(np.ones(n), comm, algorithm="doubling")
        comm.elapse(1e-7)
        comm.sendrecv(np.ones(n), other, other)
        clock = comm.clock
        request.wait()
        return clock

    t = n * 8 * BETA
    assert max(run(program, 2, network=Network(Link(ALPHA, BETA)))) == pytest.approx(ALPHA + 2 * t, rel=1e-12)


def test_an_error_in_the_background_is_raised_with_its_rank():
    def program(comm):
        return all_reduce_start(np.ones(3), comm, op="mean").wait()

    with pytest.raises(ValueError, match="op='mean' is not a reduction") as caught:
        run(program, 2)
    assert "raised on rank" in "".join(caught.value.__notes__)


def test_ranks_that_start_different_works_are_told():
    def program(comm):
        start = all_reduce_start if comm.rank else broadcast_start
        return start(np.ones(3), comm).wait()

    with pytest.raises(CollectiveMismatchError, match="all_reduce call 0") as caught:
        run(program, 2)
    assert "broadcast call 0" in str(caught.value)


def test_a_rank_that_starts_nothing_is_a_deadlock_that_names_the_background():
    def program(comm):
        if comm.rank == 0:
            all_reduce_start(np.ones(3), comm).wait()

    with pytest.raises(DeadlockError, match="in the background") as caught:
        run(program, 2)
    assert "in all_reduce call 0" in str(caught.value)


def test_a_thousand_works_leave_nothing_behind():
    def program(comm):
        for k in range(1000):
            request = all_reduce_start(np.ones(2) * k, comm)
        return request.wait()[0]

    assert run(program, 2) == [1998.0, 1998.0]


@pytest.mark.parametrize("P", [3])
def test_work_that_nobody_waits_for_is_finished_before_the_run_ends(P, world):
    log = Ledger()
    run(lambda comm: all_reduce_start(np.ones(6), comm, algorithm="ring") and None, P, ledger=log)
    assert log.bytes_sent() == 2 * (P - 1) * 6 * 8
