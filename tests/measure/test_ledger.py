"""The ledger counts what was sent, by whom, to whom, in which phase: the same in every world."""

import pickle

import numpy as np
import pytest

from refimpl import Layout, Ledger, Link, Mesh, Network, run
from refimpl.collectives import all_reduce, reduce_scatter


def step(comm):
    """Rank r sends r + 1 bytes to the next rank, in nested phases, and takes part in an all-reduce of two halves."""
    half = comm.split(comm.rank % 2, name="half")
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with comm.phase("forward"):
        comm.sendrecv(np.zeros(comm.rank + 1, np.uint8), right, left)
        with half.phase("tp"):                                           # phases belong to the rank, not to the group
            all_reduce(np.zeros(10), half, algorithm="ring")
    with comm.phase("backward"), comm.phase("tp"):
        all_reduce(np.zeros(20), half, algorithm="ring")
        comm.compute(1e6 * (comm.rank + 1), "matmul")
    comm.sendrecv(np.zeros(3), right, left, tag=1)


@pytest.mark.parametrize("P", [4])
def test_the_ledger_has_the_messages_of_all_ranks_by_any_filter(P, world):
    log = Ledger()
    run(step, P, ledger=log)
    ring = 8 * (10 + 20)                                                 # two ranks each send n elements: half, twice
    assert log.bytes_sent() == (1 + 2 + 3 + 4) + 4 * 24 + 4 * ring
    assert [log.bytes_sent(rank=r) for r in range(P)] == [r + 1 + 24 + ring for r in range(P)]
    assert log.bytes_sent(phase="forward") == 10 + 4 * 80
    assert log.bytes_sent(phase="tp") == log.bytes_sent(group="half") == 4 * ring
    assert log.bytes_sent(collective="all_reduce") == 4 * ring
    assert log.bytes_sent(phase="tp", rank=2) == ring and log.bytes_sent(phase="backward", group="world") == 0
    assert [log.bytes_sent(rank=1, dst=dst) for dst in range(P)] == [0, 0, 2 + 24, ring]
    assert log.bytes_received(rank=2) == 2 + 24 + ring
    assert log.bytes_received(rank=2, phase="forward", group="world") == 2
    assert log.bytes_received() == log.bytes_sent()
    assert log.messages() == 4 * (1 + 2 + 2 + 1) and log.messages(rank=0, group="half") == 4
    assert log.bytes_sent(rank=P) == log.bytes_sent(phase="no such") == log.messages(group="no such") == 0
    assert log.phases() == ["backward", "forward", "tp"]
    assert log.flops() == 1e6 * (1 + 2 + 3 + 4) and log.flops(rank=1, phase="backward", kind="matmul") == 2e6
    assert log.flops(phase="forward") == log.flops(kind="other") == 0


@pytest.mark.parametrize("P", [1, 2, 4])
def test_a_message_without_payload_counts_as_a_message(P, world):
    log = Ledger()
    run(lambda comm: reduce_scatter(np.zeros(1), comm), P, ledger=log)
    assert log.messages() == P * (P - 1) and log.bytes_sent() == (P - 1) * 8


@pytest.mark.parametrize("P", [2])
def test_a_ledger_may_be_used_for_several_runs(P, world):
    log = Ledger()
    for _ in range(3):
        run(lambda comm: comm.barrier(), P, ledger=log)
    run(lambda comm: comm.barrier(), P)
    assert log.messages() == 3 * P


@pytest.mark.parametrize("P", [2])
def test_what_is_refused_is_not_counted(P, world):
    def program(comm):
        for call in (lambda: comm.send("text", 0), lambda: comm.send([1], 9), lambda: comm.send([1], 0, tag=-1)):
            with pytest.raises(ValueError):
                call()

    log = Ledger()
    run(program, P, ledger=log)
    assert log.messages() == 0


@pytest.mark.parametrize("P", [2])
def test_a_phase_ends_with_its_block_even_when_the_block_fails(P, world):
    def program(comm):
        with pytest.raises(ArithmeticError), comm.phase("failed"):
            raise ArithmeticError
        comm.barrier()

    log = Ledger()
    run(program, P, ledger=log)
    assert log.phases() == [] and log.messages() == P


@pytest.mark.parametrize("P", [4])
def test_groups_of_a_mesh_are_counted_by_their_axis(P, world):
    def program(comm):
        mesh = Mesh(comm, Layout(dp=2, tp=2))
        all_reduce(np.zeros(2), mesh.tp, algorithm="ring")
        all_reduce(np.zeros(6), mesh.dp, algorithm="ring")

    log = Ledger()
    run(program, P, ledger=log)
    assert log.bytes_sent(group="tp") == 4 * 16 and log.bytes_sent(group="dp") == 4 * 48
    assert log.bytes_sent(rank=0, group="tp", dst=1) == 16 and log.bytes_sent(rank=0, group="dp", dst=2) == 48


# -- time: of the virtual clock, or of the machine --------------------------------------------------------------------

def test_time_is_what_the_virtual_clock_went_into():
    def program(comm):
        with comm.phase("work"):
            comm.compute(4e9 * (comm.rank + 1), "matmul")
            comm.elapse(0.5, "load")
        with comm.phase("talk"):
            if comm.rank == 1:
                comm.send(np.zeros(10, np.uint8), 0)
            else:
                comm.recv(1)
        return comm.clock

    log = Ledger()
    clocks = run(program, 2, ledger=log, network=Network(Link(1, 0.1), flops=1e9))
    assert clocks == [8.5 + 1 + 10 * 0.1, 8.5]
    assert log.time(rank=0) == clocks[0] and log.time(rank=1) == clocks[1] and log.time() == sum(clocks)
    assert log.time(kind="matmul") == 12 and log.time(rank=0, kind="matmul") == 4 and log.time(kind="load") == 1
    assert log.time(kind="wait") == log.time(phase="talk") == log.time(group="world") == clocks[0] - 4.5
    assert log.time(rank=1, kind="wait") == 0
    assert log.flops(kind="matmul") == 12e9 and log.phases() == ["talk", "work"]


@pytest.mark.parametrize("P", [2])
def test_waiting_is_not_counted_without_a_network_and_is_real_under_mpi(P, world):
    log = Ledger()
    run(lambda comm: comm.barrier(), P, ledger=log)
    assert (log.time(kind="wait") > 0) == (world == "mpi") and log.time() == log.time(kind="wait", group="world")


def test_a_trace_has_every_message_with_its_times():
    def program(comm):
        with comm.phase("ring"):
            if comm.rank == 0:
                comm.elapse(1)
                comm.send(np.zeros(4, np.uint8), 1)
                comm.send(np.zeros(2, np.uint8), 2)
            else:
                with comm.phase("listening"):
                    comm.recv(0)
        comm.barrier()

    log = Ledger(trace=True)
    run(program, 3, ledger=log, network=Network(Link(10, 1)))
    first, second = log.trace[:2]
    assert first == (0, 1, 4, "world", ("ring",), None, 1.0, 1 + 4 + 10) == tuple(first)
    assert (second.rank, second.dst, second.nbytes, second.start, second.end) == (0, 2, 2, 5.0, 5 + 2 + 10)
    assert [(m.collective, m.nbytes, m.phase) for m in log.trace[2:]] == 6 * [("barrier", 0, ())]
    assert all(m.start + 10 <= m.end for m in log.trace)

    log = Ledger(trace=True)
    run(program, 3, ledger=log)
    assert len(log.trace) == 8 and {(m.start, m.end) for m in log.trace} == {(0, 0)}


# -- the ledger as an object ------------------------------------------------------------------------------------------

def filled(trace=False):
    log = Ledger(trace=trace)
    run(step, 4, ledger=log, network=Network(Link(1e-6, 1e-9), flops=1e9))
    return log


def test_merge_adds_everything():
    a, b = filled(trace=True), filled(trace=True)
    a.merge(b)
    for question in (Ledger.bytes_sent, Ledger.messages, Ledger.flops, Ledger.time):
        assert question(a) == 2 * question(b) > 0
    assert a.trace == b.trace * 2
    for log in (Ledger(), Ledger(trace=True)):
        log.merge(b)
        log.merge(Ledger())
        assert str(log) == str(b) and log.trace == (None if log.trace is None else b.trace)


def test_a_pickled_ledger_is_the_same_ledger():
    log = filled(trace=True)
    copy = pickle.loads(pickle.dumps(log))
    assert str(copy) == str(log) and copy.trace == log.trace and copy.time() == log.time()
    run(step, 4, ledger=copy)
    assert copy.messages() == 2 * log.messages()


def test_printed_it_is_a_table_by_phase_group_and_call():
    lines = str(filled()).splitlines()
    assert lines[0].split() == ["phase", "group", "call", "messages", "bytes"]
    assert [line.split() for line in lines[1:]] == [
        ["-", "world", "point", "to", "point", "4", "96"],
        ["backward", "/", "tp", "half", "all_reduce", "8", "640"],
        ["forward", "world", "point", "to", "point", "4", "10"],
        ["forward", "/", "tp", "half", "all_reduce", "8", "320"]]
    assert len(str(Ledger()).splitlines()) == 1


def test_a_label_may_be_anything_that_can_be_shown():
    def program(comm):
        for micro_batch in (0, 1):
            with comm.phase(micro_batch):
                comm.barrier()

    log = Ledger()
    run(program, 2, ledger=log)
    assert log.messages(phase=1) == 2 and log.phases() == [0, 1] and str(log).count("barrier") == 2
