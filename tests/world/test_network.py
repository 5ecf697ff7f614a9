"""The virtual clock: one message, busy ports, shared NICs, and whole collectives against their textbook formulas."""

import time
from math import inf, log2, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refimpl import Ledger, Link, Network, run
from refimpl.collectives import all_reduce, broadcast
from refimpl.world.network import Port, Ports

ALPHA, BETA = 5e-6, 2e-9                               # seconds; seconds per byte
ONE = Network(Link(ALPHA, BETA))
NODES = Network(Link(1, 2), Link(10, 20), node_size=2)                      # whole numbers: sums of them are exact


def clocks(program, P, network, rendezvous=False):
    """Each rank's clock after the program."""
    return run(lambda comm: (program(comm), float(comm.clock))[1], P, network=network, rendezvous=rendezvous)


def message(n, src, dst):
    """A program: n bytes from one rank to another."""
    def program(comm):
        if comm.rank == src:
            comm.send(np.zeros(n, np.uint8), dst)
        if comm.rank == dst:
            comm.recv(src)

    return program


# -- one message ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("rendezvous", [False, True])
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_a_message_arrives_alpha_and_n_beta_after_it_was_sent_and_the_senders_clock_stands_still(n, rendezvous):
    assert clocks(message(n, 0, 1), 2, ONE, rendezvous) == [0.0, ALPHA + n * BETA]


@pytest.mark.parametrize("src, dst, arrives", [(0, 1, 1 + 3 * 2), (1, 2, 10 + 3 * 20), (5, 0, 10 + 3 * 20), (4, 5, 7)])
def test_a_message_between_nodes_takes_the_inter_link(src, dst, arrives):
    assert clocks(message(3, src, dst), 6, NODES)[dst] == arrives


def test_a_message_waited_for_late_costs_no_time():
    def program(comm):
        if comm.rank == 0:
            comm.send(np.zeros(3, np.uint8), 1)
        else:
            request = comm.irecv(0)
            comm.elapse(100)
            request.wait()

    assert clocks(program, 2, NODES) == [0, 100]


def test_compute_takes_flops_over_the_machines_flops_and_nothing_where_those_are_not_given():
    def program(comm):
        comm.compute(6e9)
        comm.elapse(1.5)
        comm.compute(0)

    assert clocks(program, 1, Network(Link(0, 0), flops=2e9)) == [4.5]
    assert clocks(program, 1, Network(Link(0, 0))) == [1.5]
    assert run(lambda comm: (program(comm), comm.clock)[1], 1) == [0.0]


def test_clock_is_the_ranks_whatever_the_group():
    def program(comm):
        sub = comm.split(0)
        sub.elapse(comm.rank + 1)
        return comm.clock, sub.clock

    assert run(program, 2, network=ONE) == [(1, 1), (2, 2)]


# -- ports ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("rendezvous", [False, True])
def test_two_messages_of_one_sender_leave_one_after_the_other(rendezvous):
    def program(comm):
        if comm.rank == 0:
            requests = [comm.isend(np.zeros(n, np.uint8), n) for n in (1, 2)]
            assert comm.clock == 0 and [r.wait() for r in requests] == [None, None] and comm.clock == 0
        else:
            comm.recv(0)

    assert clocks(program, 3, Network(Link(1, 10)), rendezvous) == [0, 11, 10 + 1 + 20]


@pytest.mark.parametrize("rendezvous", [False, True])
def test_two_messages_to_one_receiver_arrive_one_after_the_other(rendezvous):
    def program(comm):
        if comm.rank:
            return comm.send(np.zeros(comm.rank, np.uint8), 0)
        comm.recv(1)
        first = comm.clock
        comm.recv(2)
        assert (first, comm.clock) == (1 + 10, 1 + 10 + 20)

    run(program, 3, network=Network(Link(1, 10)), rendezvous=rendezvous)


def test_a_message_that_came_later_may_pass_where_there_is_a_gap():
    """Rank 0 asks first for the message that comes last; the other came in the meantime, and the port was free then."""
    def program(comm):
        if comm.rank == 0:
            comm.recv(1)
            before = comm.clock
            comm.recv(2)
            assert before == comm.clock == 100 + 1 + 10
        else:
            comm.elapse(100 if comm.rank == 1 else 0)
            comm.send(np.zeros(1, np.uint8), 0)

    run(program, 3, network=Network(Link(1, 10)))


def test_a_rank_sends_and_receives_at_once_and_within_and_beyond_its_node_at_once():
    def program(comm):
        for partner in (comm.rank ^ 1, comm.rank ^ 2):
            request = comm.irecv(partner)
            comm.isend(np.zeros(3, np.uint8), partner)
            request.wait()

    assert clocks(program, 4, NODES) == [1 + 6 + 10 + 60] * 4                # the second leaves after the first came

    def both(comm):
        requests = [comm.irecv(comm.rank ^ bit) for bit in (1, 2)]
        for bit in (1, 2):
            comm.isend(np.zeros(3, np.uint8), comm.rank ^ bit)
        for request in requests:
            request.wait()

    assert clocks(both, 4, NODES) == [10 + 60] * 4


@pytest.mark.parametrize("nics, arrivals", [(None, [30] * 3), (3, [30] * 3), (2, [30, 30, 50]), (1, [30, 50, 70])])
def test_the_ranks_of_a_node_share_its_nics(nics, arrivals):
    """Three ranks of node 0 send one byte each, at once, to ranks of three other nodes."""
    def program(comm):
        if comm.rank < 3:
            comm.send(b_one, 3 * (comm.rank + 1))
        elif comm.rank % 3 == 0:
            comm.recv(comm.rank // 3 - 1)

    b_one = np.zeros(1, np.uint8)
    got = clocks(program, 12, Network(Link(1, 2), Link(10, 20), node_size=3, nics_per_node=nics))
    assert sorted(got[3::3]) == arrivals


def test_a_shared_nic_serves_who_comes_first_in_virtual_time_not_who_ran_first():
    def program(comm):
        if comm.rank < 2:
            comm.elapse((5, 1)[comm.rank])
            comm.send(np.zeros(1, np.uint8), comm.rank + 2)
        else:
            comm.recv(comm.rank - 2)

    network = Network(Link(0, 0), Link(0, 10), node_size=2, nics_per_node=1)
    assert clocks(program, 4, network)[2:] == [1 + 10 + 10, 1 + 10]


def test_a_shared_nic_takes_messages_in_in_the_order_in_which_they_come():
    """Rank 4 asks first, but its message comes at 10, behind another; that for rank 5, of the same node, comes at 4."""
    def program(comm):
        if comm.rank == 0:
            for n, dst in ((10, 6), (8, 4)):
                comm.isend(np.zeros(n, np.uint8), dst)
        elif comm.rank == 2:
            comm.elapse(4)
            comm.send(np.zeros(8, np.uint8), 5)
        elif comm.rank > 3:
            comm.recv((0, 2, 0)[comm.rank - 4])

    network = Network(Link(0, 0), Link(0, 1), node_size=2, nics_per_node=1)
    assert clocks(program, 7, network)[4:] == [12 + 8, 4 + 8, 10]


# -- the time is a property of the program ----------------------------------------------------------------------------

RANKS = 4
EVENTS = st.lists(st.one_of(
    st.tuples(st.just("elapse"), st.integers(0, RANKS - 1), st.integers(0, 5)),
    st.tuples(st.just("message"), st.integers(0, RANKS - 1), st.integers(1, RANKS - 1),                  # from, how far
              st.integers(0, 4), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))),  # bytes; posted, waited for
    max_size=12)


def act(comm, events):
    """A rank's part of the events, in their order: no circles, so it ends with rendezvous, too. Its clock all along."""
    plan = [[] for _ in range(len(events) + 4)]
    for i, (kind, who, what, *rest) in enumerate(events):
        if kind == "elapse":
            plan[i] += [("elapse", what)] * (who == comm.rank)
        else:
            nbytes, early, received_by, sent_by = rest
            to = (who + what) % RANKS
            if comm.rank == who:
                plan[i].append(("isend", i, to, nbytes))
                plan[i + sent_by].append(("wait", i))
            if comm.rank == to:
                plan[max(0, i - early)].insert(0, ("irecv", i, who))
                plan[i + received_by].append(("wait", i))
    requests, times = {}, []
    for verb, i, *rest in (action for actions in plan for action in actions):
        if verb == "elapse":
            comm.elapse(i)
        elif verb == "isend":
            requests[i] = comm.isend(np.zeros(rest[1], np.uint8), rest[0], tag=i)
        elif verb == "irecv":
            requests[i] = comm.irecv(rest[0], tag=i)
        else:
            requests[i].wait()
        times.append(comm.clock)
    return times


@pytest.mark.parametrize("network", [
    Network(Link(1, 1)), NODES, Network(Link(1, 2), Link(3, 4), node_size=2, nics_per_node=1),
    Network(Link(0, 1), Link(0, 3), node_size=3, nics_per_node=2)])
@settings(max_examples=100, deadline=None, derandomize=True)
@given(events=EVENTS)
def test_rendezvous_changes_who_blocks_and_never_the_time(network, events):
    eager, again = (run(act, RANKS, events, network=network, rendezvous=False) for _ in range(2))
    assert eager == again == run(act, RANKS, events, network=network, rendezvous=True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(gaps=st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=3, max_size=3), nics=st.integers(1, 3))
def test_shared_nics_serve_first_come_first_served(gaps, nics):
    """Three ranks send messages that take 4 s each, over shared NICs, to ranks that have nodes to themselves."""
    def program(comm):
        if comm.rank < 3:
            for k, gap in enumerate(gaps[comm.rank]):
                comm.elapse(gap)
                comm.isend(np.zeros(4, np.uint8), 3 + 3 * comm.rank, tag=k)
        elif comm.rank % 3 == 0:
            for k in range(len(gaps[comm.rank // 3 - 1])):
                comm.recv(comm.rank // 3 - 1, tag=k)

    log = Ledger(trace=True)
    run(program, 12, network=Network(Link(0, 0), Link(0, 1), node_size=3, nics_per_node=nics), ledger=log)
    free, starts = [0] * nics, []
    for asked in sorted(sum(times[:k + 1]) for times in gaps for k in range(len(times))):
        starts.append(max(asked, min(free)))
        free[free.index(min(free))] = starts[-1] + 4
    assert sorted(m.start for m in log.trace) == starts


# -- collectives against the textbook ---------------------------------------------------------------------------------

@pytest.mark.parametrize("P", range(1, 10))
@pytest.mark.parametrize("k, dtype", [(1, "float64"), (1000, "float32")])
def test_the_ring_takes_2_P_minus_1_steps_of_alpha_and_a_chunk(P, k, dtype):
    n, itemsize = k * P, np.dtype(dtype).itemsize
    seconds = 2 * (P - 1) * (ALPHA + n / P * itemsize * BETA)
    got = clocks(lambda comm: all_reduce(np.ones(n, dtype), comm, algorithm="ring"), P, ONE)
    assert got == pytest.approx([seconds] * P, rel=1e-12)


@pytest.mark.parametrize("P", [1, 2, 4, 8])
def test_recursive_doubling_takes_lg_P_steps_of_alpha_and_everything(P):
    got = clocks(lambda comm: all_reduce(np.ones(100), comm, algorithm="doubling"), P, ONE)
    assert got == pytest.approx([log2(P) * (ALPHA + 800 * BETA)] * P, rel=1e-12)


@pytest.mark.parametrize("P", [1, 2, 4, 8])
def test_a_tree_broadcast_takes_lg_P_steps_of_alpha_and_everything(P):
    got = clocks(lambda comm: broadcast(np.ones(100), comm), P, Network(Link(ALPHA, 0)))
    assert max(got) == pytest.approx(log2(P) * ALPHA, rel=1e-12)
    got = clocks(lambda comm: broadcast(np.ones(100), comm), P, ONE)
    assert max(got) == pytest.approx(log2(P) * (ALPHA + 800 * BETA), rel=1e-12)


def test_three_ranks_take_what_can_be_counted_by_hand():
    t, a = 800 * BETA, ALPHA
    doubling = clocks(lambda comm: all_reduce(np.ones(100), comm, algorithm="doubling"), 3, ONE)
    tree = clocks(lambda comm: broadcast(np.ones(100), comm), 3, ONE)
    assert max(doubling) == pytest.approx(2 * a + 3 * t, rel=1e-12)
    assert max(tree) == pytest.approx(a + 2 * t, rel=1e-12)


def test_a_thousand_and_twenty_four_ranks_are_simulated_in_less_than_30_seconds():
    """2.1 million messages: one element in each rank's chunk."""
    P = 1024
    began = time.process_time()                        # of this process: the machine may be busy with other things
    got = clocks(lambda comm: all_reduce(np.ones(P), comm, algorithm="ring"), P, ONE)
    assert time.process_time() - began < 30
    assert got == pytest.approx([2 * (P - 1) * (ALPHA + 8 * BETA)] * P, rel=1e-12)


# -- ports alone ------------------------------------------------------------------------------------------------------

def naive(busy, earliest, duration):
    """The first time from `earliest` on at which an interval fits: one of the ends, tried in order."""
    for start in sorted({earliest, *(end for _, end in busy if end > earliest)}):
        if all(start + duration <= s or e <= start for s, e in busy):
            return start


REQUESTS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), max_size=40)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(requests=REQUESTS)
def test_a_port_finds_the_first_gap_that_fits(requests):
    port, busy = Port(), []
    for earliest, duration in requests:
        expected = naive(busy, earliest, duration)
        assert port.free_at(earliest, duration) == expected == port.reserve(earliest, duration)
        busy.append((expected, expected + duration))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(requests=REQUESTS)
def test_a_port_that_forgets_never_does_two_things_at_once(requests):
    port, busy = Port(), []
    port.REMEMBERED = 3
    for earliest, duration in requests:
        start = port.reserve(earliest, duration)
        assert start >= max(naive(busy, earliest, duration), earliest)
        assert all(start + duration <= s or e <= start for s, e in busy)
        busy.append((start, start + duration))
        assert len(port.ends) <= 6


def test_a_message_without_bytes_waits_for_no_port_and_occupies_none():
    ports = Ports(Network(Link(1, 0)))
    assert [ports.reserve(0, False, 3.0, seconds) for seconds in (0.0, 5.0, 0.0, 1.0)] == [3, 3, 3, 8]


# -- what a network is made of ----------------------------------------------------------------------------------------

def test_nodes_are_consecutive_ranks():
    assert [NODES.node(r) for r in range(5)] == [0, 0, 1, 1, 2] and [ONE.node(r) for r in range(3)] == [0, 0, 0]
    assert NODES.link(0, 1) is NODES.intra and NODES.link(1, 2) is NODES.inter and ONE.link(0, 9) is ONE.intra


@pytest.mark.parametrize("number", [np.float64, np.float32, np.int64])
def test_numpys_numbers_are_numbers(number):
    links = Link(number(1), number(2)), Link(number(3), 4)
    network = Network(*links, node_size=np.int64(2), nics_per_node=np.int32(1), flops=number(8))
    assert clocks(message(3, 0, 1), 2, network) == [0, 7]
    assert type(network.intra.alpha) is float
    late = lambda comm: [comm.elapse(number(8)), comm.elapse(2.0**-30), comm.compute(number(8))]
    assert clocks(late, 1, network) == [9 + 2.0**-30]


@pytest.mark.parametrize("alpha, beta, says", [
    (-1, 0, "alpha=-1: a link needs a finite number of seconds, 0 or more"), (0, -1e-9, "beta=-1e-09: .* per byte"),
    (nan, 0, "alpha=nan"), (0, inf, "beta=inf"), ("1", 0, "alpha='1'"), (0, None, "beta=None")])
def test_a_link_needs_finite_numbers(alpha, beta, says):
    with pytest.raises(ValueError, match=says):
        Link(alpha, beta)


@pytest.mark.parametrize("arguments, says", [
    ({"intra": 1e-6}, "intra=1e-06.*made of Link"), ({"inter": 3, "node_size": 2}, "inter=3"),
    ({"inter": Link(0, 0)}, "give both"), ({"node_size": 4}, "give both"),
    ({"inter": Link(0, 0), "node_size": 0}, "node_size=0: must be a whole number, 1 or more"),
    ({"inter": Link(0, 0), "node_size": 2.0}, "node_size=2.0"),
    ({"inter": Link(0, 0), "node_size": 2, "nics_per_node": 0}, "nics_per_node=0"),
    ({"nics_per_node": 1}, "nics_per_node=1 without an inter link"),
    ({"flops": 0}, "flops=0: must be operations per second"), ({"flops": nan}, "flops=nan"),
    ({"flops": "fast"}, "flops='fast'")])
def test_a_network_that_does_not_fit_together_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        Network(**{"intra": Link(1, 1), **arguments})
