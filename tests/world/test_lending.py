"""Arrays that are lent, not copied, from rank to rank of the local world: nobody sees a difference but the clock."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from refimpl import CollectiveMismatchError, DeadlockError, Link, Network, run
from refimpl.collectives import all_gather, all_reduce, all_reduce_start, reduce_scatter
from refimpl.world import local

EDGE = local.LENT_BYTES // 8                           # float64 elements from which on an array is lent
LARGE = 20 * EDGE


@pytest.fixture(params=[True, False], ids=["rendezvous", "eager"])
def rendezvous(request):
    return request.param


def mine(n, rank):
    """Whole numbers, other ones on every rank: sums are exact."""
    return (np.arange(n) * (rank + 3) + rank) % 11.0


# -- values -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [2, 3, 4, 5])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_chunks_of_which_only_some_are_long_enough_to_be_lent(P, missing, rendezvous):
    """Of 3 EDGE - 1 elements over 3 ranks one chunk is copied and two are lent: both sides must know how to end it."""
    n = EDGE * P - missing

    def program(comm):
        x, out = mine(n, comm.rank), np.empty(n)
        sums = [all_reduce(x, comm, algorithm=name) for name in ("ring", "rabenseifner", "doubling", "hierarchical")]
        chunk = reduce_scatter(x, comm)
        all_gather(chunk, comm, out=out)
        return [*sums, all_gather(chunk, comm), out, all_reduce(x, comm, algorithm="ring", out=x)]

    total = sum(mine(n, rank) for rank in range(P))
    for found in run(program, P, rendezvous=rendezvous):
        for y in found:
            assert_array_equal(y, total)


@pytest.mark.parametrize("P", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ["ring", "rabenseifner", "doubling", "hierarchical"])
def test_a_rank_that_changes_its_arrays_as_soon_as_the_call_returns_disturbs_nobody(P, algorithm, rendezvous):
    def program(comm):
        x, out, kept = mine(LARGE, comm.rank), np.empty(LARGE), []
        for _ in range(3):
            y = all_reduce(x, comm, algorithm=algorithm)
            kept.append(y.copy())
            y[:] = np.nan
            chunk = reduce_scatter(x, comm)
            all_gather(chunk, comm, out=out)
            chunk[:] = np.nan
            kept.append(out.copy())
            out[:] = np.nan
        return kept

    total = sum(mine(LARGE, rank) for rank in range(P))
    for kept in run(program, P, rendezvous=rendezvous):
        for y in kept:
            assert_array_equal(y, total)


def test_no_two_ranks_hold_the_same_memory_afterwards():
    results = run(lambda comm: all_gather(mine(LARGE, comm.rank), comm, out=np.empty(3 * LARGE)), 3)
    for rank, y in enumerate(results):
        assert not any(np.may_share_memory(y, other) for other in results[:rank])


def test_a_sender_waits_until_its_array_was_read_and_not_only_until_somebody_asks_for_it():
    """Rank 1 takes its time between asking and reading; by then rank 0 must not have gone on."""
    def program(comm):
        x, y, other = mine(LARGE, comm.rank), np.empty(LARGE), 1 - comm.rank
        with comm.collective("exchange"):
            if comm.rank == 0:
                comm.sendrecv(x, other, other, out=y)
                x[:] = np.nan
            else:
                asked = comm.irecv(other, out=y)
                comm.send(x, other)
                comm.sendrecv(0, comm.rank, comm.rank)                 # lets others run
                asked.wait()
        return y

    for rank, y in enumerate(run(program, 2)):
        assert_array_equal(y, mine(LARGE, 1 - rank))


def test_what_is_received_without_out_is_the_receivers_own_although_it_was_lent():
    def program(comm):
        x, other = mine(LARGE, comm.rank), 1 - comm.rank
        with comm.collective("exchange"):
            if comm.rank == 0:
                y = comm.sendrecv(x, other, other, out=np.empty(LARGE))
                x[:] = np.nan
            else:
                comm.send(x, other)
                y = comm.recv(other)
        comm.barrier()
        return y

    for rank, y in enumerate(run(program, 2, rendezvous=False)):
        assert_array_equal(y, mine(LARGE, 1 - rank))


# -- what goes wrong --------------------------------------------------------------------------------------------------

def test_a_rank_that_stays_away_is_a_deadlock_that_says_who_waits_for_whom():
    def program(comm):
        if comm.rank != 2:
            all_reduce(mine(LARGE, 0), comm, algorithm="ring")

    with pytest.raises(DeadlockError) as caught:
        run(program, 3, rendezvous=False)
    lines = str(caught.value).splitlines()
    assert lines[0] == "no rank can go on: 2 of 3 ranks wait for ever"
    for line, says in zip(lines[1:], ("0 waits for a message from", "1 waits to be received by"), strict=False):
        assert line.startswith(f"  rank {says} rank 2, in all_reduce call 0 (op=sum, algorithm=ring,")
    assert lines[3:] == ["  rank 2 has returned"]


def test_a_lent_array_that_nobody_reads_is_a_deadlock_that_names_the_reader():
    def program(comm):
        other = 1 - comm.rank
        with comm.collective("exchange"):
            if comm.rank == 0:
                comm.sendrecv(mine(LARGE, 0), other, other, out=np.empty(LARGE))
            else:
                comm.send(mine(LARGE, 1), other)

    with pytest.raises(DeadlockError, match="rank 0 waits to be received by rank 1, in exchange call 0 of world, at"):
        run(program, 2, rendezvous=False)


def test_ranks_that_disagree_find_out():
    with pytest.raises(CollectiveMismatchError, match="op=sum.*op=max|op=max.*op=sum"):
        run(lambda comm: all_reduce(mine(LARGE, 0), comm, op=["sum", "max"][comm.rank], algorithm="ring"), 2)


def test_a_rank_that_fails_while_others_wait_for_its_array_stops_them():
    left = []

    def program(comm):
        try:
            if comm.rank == 1:
                all_reduce(mine(LARGE, 1), comm.split(None) or comm, op="mean")
            all_reduce(mine(LARGE, comm.rank), comm, algorithm="ring")
        finally:
            left.append(comm.rank)

    with pytest.raises(ValueError, match="op='mean' is not a reduction"):
        run(lambda comm: program(comm) if comm.rank == 1 else (comm.split(0), program(comm)), 3)
    assert sorted(left) == [0, 1, 2]


# -- time -------------------------------------------------------------------------------------------------------------

def test_a_message_sent_before_the_first_work_begins_does_not_block_its_sender_either():
    """Rank 1 asks for it last. Were rank 0 held up so long, its second message would come after the work's."""
    def program(comm):
        if comm.rank == 0:
            first = comm.isend(np.zeros(10, np.uint8), 1, tag=1)
            work = comm.background(lambda twin: (twin.elapse(50), twin.send(np.zeros(10, np.uint8), 1)))
            first.wait()
            comm.elapse(45)
            comm.send(np.zeros(10, np.uint8), 1, tag=2)                    # at 45, so that the work waits from 50 to 55
        else:
            work = comm.background(lambda twin: (twin.recv(0), twin.clock)[1])
            arrived = work.wait()
            comm.recv(0, tag=1)
            comm.recv(0, tag=2)
            return arrived

    for rendezvous in (False, True):
        assert run(program, 2, network=Network(Link(0, 1)), rendezvous=rendezvous)[1] == 65


NETWORKS = [Network(Link(1, 1)), Network(Link(1, 2), Link(3, 4), node_size=2),
            Network(Link(1, 2), Link(3, 4), node_size=2, nics_per_node=1),
            Network(Link(0, 1), Link(0, 3), node_size=3, nics_per_node=2)]
STEPS = st.lists(st.tuples(st.sampled_from(["ring", "rabenseifner", "doubling", "tree", "hierarchical"]), st.booleans(),
                           st.lists(st.integers(0, 99), min_size=12, max_size=12)), min_size=1, max_size=3)


def act(comm, steps):
    """All-reduces in the foreground and in the background, uneven computation between them; the clock all along."""
    times = []
    for algorithm, beside, seconds in steps:
        comm.elapse(seconds[comm.rank])
        if beside:
            request = all_reduce_start(np.ones(13), comm, algorithm=algorithm)
            comm.elapse(seconds[comm.rank + 6])
            comm.sendrecv(np.ones(3), (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
            request.wait()
        else:
            all_reduce(np.ones(13), comm, algorithm=algorithm)
        times.append(comm.clock)
    return times


@pytest.mark.parametrize("network", NETWORKS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(P=st.sampled_from([2, 4, 6]), steps=STEPS)
@example(P=4, steps=[("ring", False, [0] * 12)] * 2 + [("ring", True, [0, 61, 37, 0, 0, 0, 0, 51, 0, 0, 0, 0])])
def test_lending_and_rendezvous_change_who_blocks_and_never_the_time(network, P, steps):
    if network.node_size == 3:
        P = 6                                          # hierarchical wants nodes of one size
    times = []
    with pytest.MonkeyPatch.context() as patch:
        for lent_from in (0, 1000):                    # all arrays, if any; none
            patch.setattr(local, "LENT_BYTES", lent_from)
            times += [run(act, P, steps, network=network, rendezvous=rendezvous) for rendezvous in (False, True)]
    assert times[1:] == times[:1] * 3
