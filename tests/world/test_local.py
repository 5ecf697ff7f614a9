"""The local world: who runs when, what a failing rank does to the others, what passes only because messages wait."""

import gc
import os
import signal
import subprocess
import sys
import traceback
import weakref
from pathlib import Path

import numpy as np
import pytest

from refimpl import DeadlockError, Ledger, Link, Network, UndeliveredMessageError, WorldError, run
from refimpl.collectives import all_reduce

ROOT = Path(__file__).parents[2]


def around(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


# -- eager and rendezvous ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [1, 2, 3])
def test_A02_send_then_receive_on_every_rank_relies_on_buffers(P):
    """NVIDIA/nccl #479, open-mpi/ompi #1669: it passes small tests and stalls in production."""
    def program(comm):
        right, left = around(comm)
        comm.send(comm.rank, right)
        return int(comm.recv(left))

    assert run(program, P, rendezvous=False) == [(r - 1) % P for r in range(P)]
    with pytest.raises(DeadlockError, match="rank 0 waits to be received by"):
        run(program, P, rendezvous=True)


@pytest.mark.parametrize("rendezvous", [True, False])
def test_A02_sendrecv_and_even_ranks_first_rely_on_nothing(rendezvous):
    def program(comm):
        right, left = around(comm)
        first = comm.sendrecv(comm.rank, right, left)
        if comm.rank % 2 == 0:
            comm.send(first, right)
            return int(comm.recv(left))
        got = comm.recv(left)
        comm.send(first, right)
        return int(got)

    assert run(program, 4, rendezvous=rendezvous) == [2, 3, 0, 1]


def test_a_rendezvous_send_returns_once_the_receive_is_posted_not_only_once_it_is_waited_for():
    log = []

    def program(comm):
        if comm.rank == 0:
            log.append("sending")
            comm.send(1, 1)
            log.append("sent")
            comm.send(2, 1)
        else:
            request = comm.irecv(0)
            log.append("posted")
            comm.recv(0)
            log.append("received the second")
            request.wait()

    run(program, 2, rendezvous=True)
    assert log == ["sending", "posted", "sent", "received the second"]


@pytest.mark.parametrize("text, fails", [("1", True), ("0", False), ("", False)])
def test_the_environment_chooses_rendezvous(monkeypatch, text, fails):
    monkeypatch.setenv("REFIMPL_RENDEZVOUS", text)
    program = lambda comm: (comm.send(1, 1 - comm.rank), comm.recv(1 - comm.rank))
    if fails:
        with pytest.raises(DeadlockError):
            run(program, 2)
    else:
        run(program, 2)


# -- a rank that fails ------------------------------------------------------------------------------------------------

class Broken(Exception):
    pass


def fails_on_rank_1(comm, log):
    try:
        comm.barrier()
        if comm.rank == 1:
            comm.recv(0)
            raise Broken("rank 1's own words")                       # the line that the traceback must show
        if comm.rank == 0:
            comm.send(0, 1)
        comm.recv(1)
    finally:
        log.append(comm.rank)


@pytest.mark.parametrize("rendezvous", [True, False])
def test_a_rank_that_raises_stops_the_world_with_its_own_exception(rendezvous):
    log = []
    with pytest.raises(Broken, match="rank 1's own words") as caught:
        run(fails_on_rank_1, 4, log, rendezvous=rendezvous)
    assert caught.value.__notes__ == ["(raised on rank 1 of 4)"]
    shown = "".join(traceback.format_exception(caught.value))
    assert "the line that the traceback must show" in shown and "in fails_on_rank_1" in shown
    assert log == [1, 0, 2, 3]                                       # the others' finally clauses ran, too


def test_a_rank_that_talks_while_the_world_stops_does_not_hold_it_up():
    log = []

    def program(comm):
        if comm.rank == 2:
            raise Broken
        try:
            comm.recv(2)
        except BaseException:                                        # even one that will not take no for an answer
            log.append(f"{comm.rank} stops")
            try:
                comm.send(1, 1 - comm.rank)
            finally:
                log.append(f"{comm.rank} cannot send")
                comm.recv(2)

    with pytest.raises(Broken):
        run(program, 3)
    assert log == ["0 stops", "0 cannot send", "1 stops", "1 cannot send"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit, RecursionError])
def test_no_kind_of_exception_gets_lost(error):
    def program(comm):
        if comm.rank == 0:
            raise error
        comm.recv(0)

    with pytest.raises(error):
        run(program, 2)


INTERRUPTED = """
import os, signal
from refimpl import run
def program(comm):
    try:
        if comm.rank == 0:
            comm.recv(1)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while True:
            sum(range(1000))
    finally:
        print("rank", comm.rank, "leaves")
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
run(program, 2)
"""


@pytest.mark.skipif(os.name == "nt", reason="sends itself a POSIX signal")
def test_ctrl_c_while_a_rank_computes_ends_the_run_at_once(tmp_path):
    (tmp_path / "lesson.py").write_text(INTERRUPTED)
    done = subprocess.run([sys.executable, "lesson.py"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=20)
    assert done.stdout.splitlines() == ["rank 1 leaves", "rank 0 leaves"]
    assert done.returncode == -signal.SIGINT
    for words in ("sum(range(1000))", "KeyboardInterrupt", "(raised on rank 1 of 2)"):
        assert words in done.stderr


def test_an_exception_keeps_nothing_of_a_world_alive():
    class Thing:
        pass

    def program(comm, things):
        thing = Thing()
        things.append(weakref.ref(thing))
        if comm.rank == 0:
            comm.recv(1)
        raise Broken

    things = []
    with pytest.raises(Broken):
        run(program, 2, things)
    gc.collect()
    assert [thing() for thing in things] == [None, None]


# -- who runs when ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("network", [None, Network(Link(1e-6, 1e-9), flops=1e9)])
def test_the_same_program_is_the_same_run_every_time(network):
    def program(comm, log):
        for step in range(5):
            comm.compute(comm.rng.integers(1000))
            log.append((comm.rank, step, comm.clock))
            all_reduce(np.ones(10), comm)
            group = comm.split(step % 2, comm.rng.random())
            log.append((comm.rank, group.rank))

    first, second = [], []
    run(program, 5, first, network=network)
    run(program, 5, second, network=network)
    assert first == second and len(first) == 50


def test_without_clocks_the_rank_that_has_been_runnable_longest_goes_next():
    log = []

    def program(comm):
        log.append(comm.rank)
        comm.barrier()
        log.append(comm.rank)

    run(program, 3)
    assert log[:3] == [0, 1, 2] and sorted(log[3:]) == [0, 1, 2]


def test_with_clocks_the_rank_whose_clock_is_smallest_goes_next():
    def program(comm, log):
        if comm.rank == 0:
            comm.recv(3)                                             # by now the others wait
            for rank in (1, 2, 3):
                comm.isend(0, rank)
        else:
            comm.elapse((0, 5, 1, 3)[comm.rank])
            if comm.rank == 3:
                comm.isend(0, 0)
            comm.recv(0)
            log.append(comm.rank)

    for network, order in ((None, [1, 2, 3]), (Network(Link(0, 0)), [2, 3, 1])):
        log = []
        run(program, 4, log, network=network)
        assert log == order


def test_a_run_inside_a_rank_is_a_run_of_its_own():
    def inner(comm, outer_rank):
        return int(comm.sendrecv(10 * outer_rank + comm.rank, *around(comm)))

    def program(comm):
        got = run(inner, 3, comm.rank)
        return got, int(comm.sendrecv(comm.rank, *around(comm))), run(inner, 2, comm.rank)

    assert run(program, 2) == [([2, 0, 1], 1, [1, 0]), ([12, 10, 11], 0, [11, 10])]


def test_an_inner_run_that_fails_names_both_ranks():
    def inner(comm):
        if comm.rank == 2:
            raise Broken
        comm.recv(2)

    with pytest.raises(Broken) as caught:
        run(lambda comm: comm.recv(1) if comm.rank == 0 else run(inner, 3), 2)
    assert caught.value.__notes__ == ["(raised on rank 2 of 3)", "(raised on rank 1 of 2)"]


def test_a_communicator_works_only_for_its_rank_and_only_while_its_run_lasts():
    kept = run(lambda comm: comm, 2)
    assert [comm.rank for comm in kept] == [0, 1] and kept[0].size == 2
    for call in (lambda: kept[0].send(1, 1), lambda: kept[0].recv(1), kept[0].barrier, lambda: kept[1].split(0)):
        with pytest.raises(WorldError, match="belongs to a run that has ended"):
            call()
    with pytest.raises(WorldError, match="belongs to a run that has ended"):
        run(lambda comm: kept[comm.rank].barrier(), 2)

    def uses_the_outer(comm):
        return run(lambda inner: comm.recv(1 - comm.rank), 2)

    with pytest.raises(WorldError, match="rank 0's communicator is used outside its rank"):
        run(uses_the_outer, 2)


def test_a_thousand_ranks_nest_no_recursion():
    def program(comm):
        depth = len(traceback.extract_stack())
        came = comm.recv(comm.rank - 1) if comm.rank else 0
        if comm.rank < comm.size - 1:
            comm.send(came + 1, comm.rank + 1)
        return int(came), depth

    results = run(program, 1000)
    assert [came for came, _ in results] == list(range(1000))
    assert len({depth for _, depth in results}) == 1


def test_a_rank_sees_the_context_around_run_and_keeps_its_own_to_itself():
    def program(comm):
        before = np.geterr()["divide"]
        with np.errstate(divide="ignore" if comm.rank else "print"):
            comm.barrier()
            return before, np.geterr()["divide"]

    with np.errstate(divide="raise"):
        assert run(program, 3) == [("raise", "print"), ("raise", "ignore"), ("raise", "ignore")]
        with pytest.raises(FloatingPointError):
            run(lambda comm: np.ones(1) / np.zeros(1), 2)


def test_a_debugger_sees_every_rank_step():
    lines = []

    def program(comm):
        comm.barrier()
        return comm.rank

    def trace(frame, event, argument):
        if frame.f_code is program.__code__:
            lines.append(event)
            return trace

    sys.settrace(trace)
    try:
        run(program, 2)
    finally:
        sys.settrace(None)
    assert lines.count("return") == 2


# -- messages left behind ---------------------------------------------------------------------------------------------

def test_messages_left_behind_are_named_with_tag_and_group():
    def program(comm):
        pair = comm.split(comm.rank // 2, name="pair")
        if comm.rank == 2:
            pair.isend(1, 1, tag=4)
            pair.isend(1, 1, tag=4)
            comm.isend(1, 0)

    with pytest.raises(UndeliveredMessageError) as caught:
        run(program, 4)
    assert str(caught.value).splitlines() == [
        "every rank has returned, but not every message was received:",
        "  rank 0 did not receive 1 message of rank 2, tag 0, of world",
        "  rank 3 did not receive 2 messages of rank 2, tag 4, of pair"]


def test_many_messages_left_behind_are_not_all_listed():
    def program(comm):
        for tag in range(40):
            comm.isend(1, 0, tag=tag)

    with pytest.raises(UndeliveredMessageError, match="(?s)tag 0, .*and 24 more"):
        run(program, 1)


def test_ledger_and_network_cost_nothing_when_not_asked_for():
    assert run(lambda comm: (comm.compute(1e9), comm.elapse(1.0), comm.clock), 1) == [(None, None, 0.0)]
    log = Ledger()
    run(lambda comm: comm.compute(1e9, "matmul"), 2, ledger=log)
    assert log.flops() == 2e9 and log.time() == 0
