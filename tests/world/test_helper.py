"""Work in the background, and the helper thread that does it under MPI: order, errors, politeness."""

import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from refimpl import UndeliveredMessageError, WorldError, run
from refimpl.collectives import all_reduce_start

LARGE = 300_000                                        # elements: more than any MPI keeps on the way by itself
mpi = pytest.mark.mpi


def ring(comm):
    """The right and the left neighbour."""
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


# -- order ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [2])
def test_starting_waits_for_nobody(P, world):
    """Rank 1 starts its work only after a message that rank 0 sends after starting its own."""
    def program(comm):
        if comm.rank == 0:
            request = all_reduce_start(np.ones(2), comm)
            comm.send(np.ones(LARGE), 1)
        else:
            comm.recv(0)
            request = all_reduce_start(np.ones(2), comm)
        return request.wait()

    for y in run(program, P):
        assert_array_equal(y, [2, 2])


@pytest.mark.parametrize("P", [2, 3])
def test_works_run_one_after_the_other_in_the_order_of_their_start(P, world):
    def program(comm):
        log = []

        def work(name):
            def run_it(twin):
                log.append(f"{name} begins")
                twin.sendrecv(0, *ring(twin))
                log.append(f"{name} ends")
            return run_it

        requests = [comm.background(work(name)) for name in "abc"]
        assert [request.wait() for request in requests] == [None] * 3
        return log

    assert run(program, P) == [[f"{name} {what}" for name in "abc" for what in ("begins", "ends")]] * P


@pytest.mark.parametrize("P", [4])
def test_groups_work_in_the_background_each_on_their_own(P, world):
    def program(comm):
        half = comm.split(comm.rank % 2, name="half")
        requests = [all_reduce_start(np.full(3, comm.rank), group) for group in (half, comm, half)]
        return [request.wait()[0] for request in reversed(requests)]

    assert run(program, P) == [[2, 6, 2], [4, 6, 4]] * 2


@pytest.mark.parametrize("P", [2])
def test_messages_of_the_program_and_of_its_work_do_not_meet(P, world):
    def program(comm):
        right, left = ring(comm)
        request = comm.background(lambda twin: int(twin.sendrecv(comm.rank, right, left, tag=5)))
        return int(comm.sendrecv(10 + comm.rank, right, left, tag=5)), request.wait()

    assert run(program, P) == [(11, 1), (10, 0)]


@pytest.mark.parametrize("P", [2])
@pytest.mark.parametrize("headers", ["0", "1"])
def test_a_receive_asked_for_before_is_looked_after_while_the_work_is_waited_for(P, headers, world, monkeypatch):
    """Rank 0 comes to the second all-reduce only when its message has been taken in."""
    monkeypatch.setenv("REFIMPL_CHECK", headers)

    def program(comm):
        x = np.ones(LARGE)
        all_reduce_start(x, comm).wait()
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            message = comm.irecv(0)
        y = all_reduce_start(x, comm).wait()
        return y[-1] if comm.rank == 0 else message.wait()[-1] + 1

    assert run(program, P) == [2, 2]


# -- errors -----------------------------------------------------------------------------------------------------------

@mpi(2)
def test_an_error_is_raised_where_the_work_is_waited_for_every_time():
    def program(comm):
        request = all_reduce_start(np.ones(3), comm, op="mean")
        after = all_reduce_start(np.ones(3), comm)     # the next work does not mind
        for _ in range(2):
            with pytest.raises(ValueError, match="op='mean' is not a reduction"):
                request.wait()
        return after.wait()

    for y in run(program, 2):
        assert_array_equal(y, [2, 2, 2])


@mpi(1)
def test_an_error_that_nobody_waits_for_is_raised_at_the_end_with_its_rank():
    def fails(twin):
        raise ArithmeticError("in the background")

    with pytest.raises(ArithmeticError, match="in the background") as caught:
        run(lambda comm: comm.background(fails) and None, 1)
    assert caught.value.__notes__ == ["(raised on rank 0 of 1)"]


@mpi(2)
def test_a_message_of_the_work_that_nobody_receives_is_named():
    with pytest.raises(UndeliveredMessageError, match="rank 1 did not receive 2 messages of rank 0"):
        run(lambda comm: comm.background(lambda twin: comm.rank == 0 and [twin.isend(k, 1) for k in range(2)]), 2,
            gather=False)


@pytest.mark.parametrize("P", [2])
def test_work_cannot_start_more_work(P, world):
    def work(twin):
        for comm in (twin, twin.split(0)):
            with pytest.raises(WorldError, match="start it from the rank's program"):
                comm.background(print)

    run(lambda comm: comm.background(work).wait(), P)


# -- politeness -------------------------------------------------------------------------------------------------------

@mpi(2)
def test_a_helper_that_waits_sleeps():
    """Rank 1's message comes after 0.4 seconds. To spin so long would take 0.4 seconds of a core."""
    def work(twin):
        before = time.thread_time()
        twin.recv(1 - twin.rank)
        return time.thread_time() - before

    def program(comm):
        if comm.rank == 0:
            return comm.background(work).wait()
        comm.background(lambda twin: time.sleep(0.4) or twin.send(1, 0)).wait()

    assert run(program, 2)[0] < 0.2


@mpi(2)
def test_no_thread_is_left_when_the_run_ends():
    from refimpl.world.mpi_job import watchdog

    run(lambda comm: None, 2)                          # the first run begins the watchdog
    before = threading.active_count(), len(watchdog().watched)
    for _ in range(3):
        run(lambda comm: all_reduce_start(np.ones(3), comm).wait(), 2)
    assert (threading.active_count(), len(watchdog().watched)) == before
