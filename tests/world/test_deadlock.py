"""Ranks that wait for ever are told so at once: who waits for whom, where, in which circle; and who disagrees."""

import inspect
import os
import re
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from refimpl import CollectiveMismatchError, DeadlockError, Layout, Mesh, run
from refimpl.collectives import all_gather, all_reduce, all_to_all, broadcast, gather, reduce_scatter, scatter
from refimpl.world.deadlock import find_circle, location, numbered

HERE = os.path.basename(__file__)


def report(program, P, **options):
    """The text of the DeadlockError of a run, which takes less than a second."""
    began = time.monotonic()
    with pytest.raises(DeadlockError) as caught:
        run(program, P, **options)
    assert time.monotonic() - began < 1
    return str(caught.value)


def line(marker, function):
    """file:line of the line of `function` that contains `marker`."""
    lines, first = inspect.getsourcelines(function)
    return f"{HERE}:{first + next(k for k, text in enumerate(lines) if marker in text)}"


@pytest.mark.parametrize("rendezvous", [True, False])
def test_the_report_names_every_rank_what_it_waits_for_and_the_circle(rendezvous):
    program = lambda comm: comm.recv((comm.rank + 1) % comm.size)
    at = line("lambda", program)
    assert report(program, 3, rendezvous=rendezvous).splitlines() == [
        "no rank can go on: 3 of 3 ranks wait for ever",
        f"  rank 0 waits for a message from rank 1, tag 0, of world, at {at}",
        f"  rank 1 waits for a message from rank 2, tag 0, of world, at {at}",
        f"  rank 2 waits for a message from rank 0, tag 0, of world, at {at}",
        "  a circle: rank 0 waits for rank 1 waits for rank 2 waits for rank 0"]


def test_a_send_and_a_receive_that_miss_each_other_are_told_apart():
    def program(comm):
        pair = comm.split(0, -comm.rank, name="pair")
        if comm.rank == 0:
            pair.send(np.ones(3), 0, tag=7)
        else:
            request = pair.irecv(1, tag=8)
            request.wait()

    text = report(program, 2, rendezvous=True)
    assert f"rank 0 waits to be received by rank 1, tag 7, of pair, at {line('pair.send', program)}" in text
    assert f"rank 1 waits for a message from rank 0, tag 8, of pair, at {line('request.wait', program)}" in text


def test_a_rank_that_has_returned_is_named():
    text = report(lambda comm: comm.recv(2) if comm.rank < 2 else None, 4)
    assert "2 of 4 ranks wait for ever" in text and "\n  rank 2 has returned" in text
    assert "rank 3" not in text and "circle" not in text


def test_a_chain_that_ends_in_a_circle_shows_only_the_circle():
    text = report(lambda comm: comm.recv((1, 2, 1, 0)[comm.rank]), 4)
    assert "a circle: rank 1 waits for rank 2 waits for rank 1" in text


def test_a_rank_may_wait_for_itself():
    assert "a circle: rank 0 waits for rank 0" in report(lambda comm: comm.send(1, 0), 1, rendezvous=True)


def test_a_wait_inside_a_collective_names_collective_group_and_the_callers_line():
    def program(comm):
        tp = comm.split(comm.rank // 2, name="tp")
        if comm.rank != 3:
            all_reduce(np.ones(4), tp, op="max")

    text = report(program, 4)
    assert re.search(r"rank 2 waits for a message from rank 3, in all_reduce call 0 \(op=max, .*shape=\(4,\)\) of tp, "
                     + "at " + line("all_reduce", program), text)
    assert "rank 3 has returned" in text


def test_a_rank_missing_from_a_split_is_named():
    def program(comm):
        if comm.rank not in (1, 3):
            comm.split(0)

    text = report(program, 5)
    assert f"rank 0 waits for ranks 1, 3, in split of world, at {line('comm.split', program)}" in text
    assert "ranks 1, 3 have returned" in text


def test_a_circle_may_pass_through_a_split():
    text = report(lambda comm: comm.split(0) if comm.rank else comm.recv(1), 2)
    assert "rank 1 waits for rank 0, in split of world" in text
    assert "a circle: rank 0 waits for rank 1 waits for rank 0" in text


def test_the_line_is_the_programs_also_where_a_mesh_is_made():
    def program(comm):
        if comm.rank:
            Mesh(comm, Layout(tp=2))

    assert f"rank 1 waits for rank 0, in split of world, at {line('Mesh(', program)}" in report(program, 2)


def test_many_waiting_ranks_are_counted_not_all_listed():
    text = report(lambda comm: comm.recv(comm.size - 1), 200)
    assert "rank 15 waits" in text and "rank 16 waits" not in text and "and 184 more ranks" in text


def test_the_finally_clauses_of_ranks_that_wait_for_ever_run():
    left = []

    def program(comm):
        try:
            comm.recv(0, tag=comm.rank)
        finally:
            left.append(comm.rank)

    report(program, 3)
    assert left == [0, 1, 2]


@pytest.mark.parametrize("waits, circle", [
    ({}, None), ({0: 1}, None), ({0: 0}, [0, 0]), ({0: 1, 1: 2, 2: 5}, None), ({0: 1, 1: 2, 2: 1}, [1, 2, 1]),
    ({3: 0, 0: 1, 1: 0}, [0, 1, 0]), ({r: (r + 1) % 1000 for r in range(1000)}, [*range(1000), 0]),
    ({r: r + 1 for r in range(100_000)}, None)])
def test_a_circle_is_found_where_there_is_one(waits, circle):
    assert find_circle(waits) == circle


def test_in_a_notebook_the_line_is_in_a_numbered_cell(monkeypatch):
    cells = {__file__: ("Cell", "In[5]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert re.search(r"rank 0 waits .* at Cell In\[5\]:\d+$", report(lambda comm: comm.recv(0), 1), re.MULTILINE)
    cells.clear()
    assert f", at {HERE}:" in report(lambda comm: comm.recv(0), 1)


def test_ranks_in_words():
    assert numbered([3]) == "rank 3" and numbered([3, 4]) == "ranks 3, 4"
    assert numbered(list(range(20))).endswith("14, 15 and 4 more")
    assert location(None) == "an unknown line"


# -- ranks that disagree ----------------------------------------------------------------------------------------------

X = np.ones(4)
DISAGREE = {
    "collective": (lambda comm: all_reduce(X, comm) if comm.rank else all_gather(X, comm),
                   ["all_reduce call 0", "all_gather call 0"]),
    "op": (lambda comm: all_reduce(X, comm, op="max" if comm.rank else "sum"), ["op=max", "op=sum"]),
    "dtype": (lambda comm: all_reduce(X.astype("f4") if comm.rank else X, comm), ["dtype=<f4", "dtype=<f8"]),
    "shape": (lambda comm: all_reduce(X[comm.rank:], comm), ["shape=(4,)", "shape=(3,)"]),
    "same size, other shape": (lambda comm: reduce_scatter(X.reshape((2, 2) if comm.rank else (4, 1)), comm),
                               ["(2, 2)", "(4, 1)"]),
    "other axes": (lambda comm: all_gather(np.ones((2, comm.rank)), comm), ["others=(0,)", "others=(1,)"]),
    "axis": (lambda comm: all_gather(np.ones((2, 2)), comm, axis=comm.rank), ["axis=0", "axis=1"]),
    "root": (lambda comm: broadcast(X, comm, root=comm.rank), ["root=0", "root=1"]),
    "root of gather": (lambda comm: gather(X, comm, root=comm.rank), ["root=0", "root=1"]),
    "root of scatter": (lambda comm: scatter(X, comm, root=comm.rank), ["root=0", "root=1"]),
    "dtype of parts": (lambda comm: all_to_all([np.ones(1, f"f{4 + 4 * comm.rank}")] * 2, comm),
                       ["dtype=<f4", "dtype=<f8"]),
    "order": (lambda comm: [f(X, comm) for f in ((all_reduce, all_gather), (all_gather, all_reduce))[comm.rank]],
              ["all_reduce call 0", "all_gather call 0"]),
    "number": (lambda comm: (comm.rank or comm.barrier(), all_reduce(X, comm)),
               ["barrier call 0", "all_reduce call 0"]),
    "out": (lambda comm: all_reduce(X, comm, out=np.ones(4) if comm.rank else None), ["shape=(4,))", "out=True"]),
    "broadcast array": (lambda comm: broadcast(np.ones(3 + comm.rank), comm), ["shape=(3,)", "shape=(4,)"]),
}


@pytest.mark.parametrize("rendezvous", [True, False])
@pytest.mark.parametrize("what", DISAGREE)
def test_ranks_that_disagree_about_a_collective_are_both_named(what, rendezvous):
    program, words = DISAGREE[what]
    with pytest.raises(CollectiveMismatchError) as caught:
        run(program, 2, rendezvous=rendezvous)
    text = str(caught.value)
    assert "ranks of world disagree: rank " in text and "rank 0" in text and "rank 1" in text
    assert all(word in text for word in words)


def test_a_disagreement_names_the_group():
    def program(comm):
        tp = comm.split(comm.rank // 2, name="tp")
        all_reduce(X, tp, op="max" if comm.rank == 3 else "sum")

    with pytest.raises(CollectiveMismatchError, match="ranks of tp disagree"):
        run(program, 4)


def test_a_message_left_over_from_an_earlier_call_is_not_taken_for_a_new_one():
    """A collective that sends one message too many is caught by the next one, not silently answered."""
    def program(comm):
        with comm.collective("mine"):
            comm.isend(1, 1 - comm.rank)
        comm.barrier()

    with pytest.raises(CollectiveMismatchError, match="is in barrier call 1, but rank . in mine call 0"):
        run(program, 2)


def test_what_only_the_root_knows_need_not_be_known_to_the_others():
    def program(comm):
        with comm.collective("give", length=5 if comm.rank == 1 else None, kind="x"):
            if comm.rank == 1:
                for rank in (0, 2):
                    comm.send(1, rank)
            else:
                comm.recv(1)
            return comm.agreed("length"), comm.agreed("kind")

    assert run(program, 3) == [(5, "x")] * 3


def test_a_collective_inside_another_is_a_part_of_it():
    def program(comm):
        with comm.collective("outer", value=1):
            comm.barrier()
            with pytest.raises(ArithmeticError):
                with comm.collective("inner", value=comm.rank):
                    raise ArithmeticError
            assert comm.agreed("value") == 1
            comm.barrier()
        assert comm.agreement is None
        comm.barrier()

    run(program, 3)
