"""What is MPI's own: pieces, bare messages, clean ends; and jobs that fail, which must end at once and say why."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from refimpl import Ledger, Link, Network, run
from refimpl.collectives import all_gather, all_reduce, all_to_all
from refimpl.world.cuda_aware import cuda_aware, loaded_libraries
from refimpl.world.mpirun import end_job, mpirun_command, mpirun_environment

ROOT = Path(__file__).parents[2]


def around(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


class Watched:
    """An mpi4py communicator that notes how many bytes each call carries, and of which dtype."""

    def __init__(self, mpi):
        self.mpi, self.calls = mpi, []

    def __getattr__(self, name):
        method = getattr(self.mpi, name)
        if name not in ("Isend", "Issend", "Irecv", "Sendrecv", "Allreduce"):
            return method

        def call(*args):
            buffer = args[1] if name == "Allreduce" else args[0]
            self.calls.append((name.replace("ss", "s"), buffer.size, buffer.dtype.name))       # Issend: with rendezvous
            return method(*args)
        return call


def watched(comm):
    comm.mpi = Watched(comm.mpi)
    return comm.mpi.calls


# -- on the ranks -----------------------------------------------------------------------------------------------------

@pytest.mark.mpi(2)
def test_A04_a_message_beyond_the_count_limit_travels_in_pieces(monkeypatch):
    monkeypatch.setenv("REFIMPL_MPI_MAX_COUNT", "10")

    def program(comm):
        calls, (right, left) = watched(comm), around(comm)
        for out in (None, np.zeros(37)):
            assert_array_equal(comm.sendrecv(np.arange(37.0) + comm.rank, right, left, out=out), np.arange(37.0) + left)
        pieces = [("Isend", n, "float64") for n in (10, 10, 10, 7)]
        assert [call for call in calls if call[0] == "Isend"] == 2 * [("Isend", 1024, "uint8"), *pieces]
        assert [call[1] for call in calls if call[0] == "Irecv"] == 2 * [1024, 10, 10, 10, 7]
        all_reduce(np.ones(37), comm, algorithm="native")
        assert [call[1] for call in calls if call[0] == "Allreduce"] == [10, 10, 10, 7]
        x = np.arange(6.0 * 7).reshape(6, 7)
        assert_array_equal(comm.sendrecv(x.T, right, left), x.T)

    run(program, 2)


@pytest.mark.mpi(3)
def test_A04_collectives_give_the_same_in_pieces(monkeypatch):
    def program(comm):
        x = np.arange(37.0) * (comm.rank + 1)
        return [all_reduce(x, comm), all_reduce(x, comm, out=np.zeros(37)), all_reduce(x, comm, algorithm="doubling"),
                all_reduce(x, comm, algorithm="native"), all_gather(x[:20 + comm.rank], comm),
                *all_to_all([x + k for k in range(3)], comm)]

    whole = run(program, 3)
    for check in ("0", "1"):                                         # without headers, and with
        monkeypatch.setenv("REFIMPL_CHECK", check)
        monkeypatch.setenv("REFIMPL_MPI_MAX_COUNT", "10")
        for mine, theirs in zip(run(program, 3), whole, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                assert_array_equal(a, b)


@pytest.mark.mpi(2)
def test_a_collective_with_out_sends_no_headers_unless_asked_to(monkeypatch):
    def program(comm):
        calls = watched(comm)
        y = all_reduce(np.arange(4.0), comm, out=np.zeros(4), algorithm="ring")
        return y.tolist(), [call[1:] for call in calls if call[0] in ("Isend", "Sendrecv")]

    header, chunk = (1024, "uint8"), (2, "float64")
    for check, sent in (("0", [chunk, chunk]), ("1", [header, chunk, header, chunk])):
        monkeypatch.setenv("REFIMPL_CHECK", check)
        assert run(program, 2) == [([0, 2, 4, 6], sent)] * 2
    log = Ledger()
    run(program, 2, ledger=log)
    assert log.bytes_sent() == 2 * 2 * 16                            # payload only, with headers or without


@pytest.mark.mpi(2)
def test_with_rendezvous_a_small_message_too_waits_for_its_receiver():
    def program(comm):
        if comm.rank == 0:
            began = time.monotonic()
            comm.send(1, 1)
            return time.monotonic() - began
        time.sleep(0.2)
        comm.recv(0)

    assert run(program, 2, rendezvous=True)[0] > 0.15                # without, MPI may do as it likes


@pytest.mark.mpi(2)
def test_runs_leave_no_communicators_behind():
    from mpi4py import MPI

    def handle():
        mpi = MPI.COMM_WORLD.Dup()
        number = mpi.py2f()                                          # the lowest that is free
        mpi.Free()
        return number

    def program(comm):
        comm.split(comm.rank).barrier()
        comm.irecv(comm.rank)                                        # asked for, never sent
        comm.isend(np.ones(100_000), 1 - comm.rank)                  # and never waited for
        comm.recv(1 - comm.rank)

    run(program, 2)
    before = handle()
    for _ in range(20):
        run(program, 2)
    assert handle() == before


@pytest.mark.mpi(2)
def test_without_gather_a_rank_gets_its_own_result():
    from mpi4py import MPI

    assert run(lambda comm: comm.rank, 2, gather=False) == [MPI.COMM_WORLD.Get_rank()]


@pytest.mark.mpi(2)
@pytest.mark.parametrize("size, options, says", [
    (3, {}, "size=3, but mpirun started 2 ranks: run 2, or mpirun -n 3"),
    (2, {"network": Network(Link(0, 0))}, "virtual clock runs in the local world only"),
    (2, {"rendezvous": None}, "REFIMPL_MPI_MAX_COUNT='0'")])
def test_what_cannot_be_run_is_refused_before_it_starts(monkeypatch, size, options, says):
    monkeypatch.setenv("REFIMPL_MPI_MAX_COUNT", "0")
    with pytest.raises(ValueError, match=says):
        run(lambda comm: None, size, **options)


# -- may MPI be handed memory of a GPU? -------------------------------------------------------------------------------

def library_that_says(kinds):
    return SimpleNamespace(COMM_WORLD=SimpleNamespace(Get_info=lambda: SimpleNamespace(Get=lambda key: kinds)))


@pytest.mark.parametrize("chosen, kinds, answer", [
    ("0", "mpi,system,cuda", (False, "REFIMPL_CUDA_AWARE")), ("1", None, (True, "REFIMPL_CUDA_AWARE")),
    ("auto", "mpi,system,cuda:device", (True, "mpi_memory_alloc_kinds")),
    ("", "cuda", (True, "mpi_memory_alloc_kinds"))])
def test_the_environment_decides_then_what_the_library_states(monkeypatch, chosen, kinds, answer):
    monkeypatch.setenv("REFIMPL_CUDA_AWARE", chosen)
    assert cuda_aware(library_that_says(kinds)) == answer


@pytest.mark.parametrize("kinds", [None, "mpi,system"])
def test_a_library_that_does_not_say_is_not_cuda_aware(monkeypatch, kinds):
    monkeypatch.delenv("REFIMPL_CUDA_AWARE", raising=False)
    monkeypatch.setattr("refimpl.world.cuda_aware.loaded_libraries", lambda name: [])
    assert cuda_aware(library_that_says(kinds)) == (False, "the library does not say")


@pytest.mark.parametrize("chosen", ["yes", "2", "true"])
def test_another_choice_is_refused(monkeypatch, chosen):
    monkeypatch.setenv("REFIMPL_CUDA_AWARE", chosen)
    with pytest.raises(ValueError, match=f"REFIMPL_CUDA_AWARE='{chosen}': must be 0 .* 1 .* or auto"):
        cuda_aware(library_that_says(None))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_loaded_libraries_are_those_of_this_process():
    assert any("libc" in path for path in loaded_libraries("libc")) and loaded_libraries("libnosuch") == []


# -- jobs that fail ---------------------------------------------------------------------------------------------------

START = """
import os, signal, sys, time
import numpy as np
from refimpl import run
from refimpl.collectives import all_gather, all_reduce
from refimpl.world import watchdog
watchdog.GRACE = 1.0
"""

posix = pytest.mark.skipif(os.name == "nt", reason="there MPI is not installed with the requirements")


@pytest.fixture
def job(tmp_path):
    """job(ranks, program): run lesson.py on ranks of plain `python`; what it printed. It must fail, and by itself."""
    def start(ranks, program, **environment):
        (tmp_path / "lesson.py").write_text(START + program)
        environment = mpirun_environment() | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | environment
        process = subprocess.Popen([*mpirun_command(ranks), sys.executable, "lesson.py"], cwd=tmp_path, env=environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True, text=True)
        try:
            output, _ = process.communicate(timeout=30)
        finally:
            end_job(process)
        assert process.returncode != 0, output
        return output

    return start


@posix
def test_a_rank_that_raises_ends_the_job_with_its_traceback(job):
    output = job(3, """
def program(comm):
    if comm.rank == 1:
        raise ArithmeticError("rank 1's own words")
    comm.recv(1)
run(program, 3)
""")
    for words in ("""raise ArithmeticError("rank 1's own words")""", "ArithmeticError: rank 1's own words",
                  "(raised on rank 1 of 3)", "rank 1 of 3 failed: the job ends"):
        assert output.count(words) == 1, output


@posix
def test_a_rank_that_leaves_ends_the_job(job):
    output = job(2, """
def program(comm):
    if comm.rank == 1:
        sys.exit("no data for me")
    comm.recv(1)
run(program, 2)
""")
    assert "no data for me" in output and "rank 1 of 2 failed: the job ends" in output


@posix
def test_a_rank_that_is_killed_ends_the_job(job):
    output = job(2, """
def program(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.recv(1)
run(program, 2)
""")
    assert signal.Signals.SIGKILL.name in output or "signal 9" in output


@posix
@pytest.mark.parametrize("program, one, other", [
    ("all_reduce(np.ones(4), comm, op='max' if comm.rank else 'sum')", "op=max", "op=sum"),
    ("[f(np.ones(4), comm) for f in ((all_reduce, all_gather), (all_gather, all_reduce))[comm.rank]]",
     "all_reduce call 0", "all_gather call 0"),
    ("all_reduce(np.ones(100_000 + comm.rank), comm)", "shape=(100000,)", "shape=(100001,)")],
                         ids=["op", "order", "shape"])
def test_ranks_that_disagree_end_the_job_and_both_are_named(job, program, one, other):
    output = job(2, f"run(lambda comm: {program}, 2)")
    for words in ("CollectiveMismatchError: ranks of world disagree: rank", one, other):
        assert words in output


@posix
def test_a_hang_ends_after_the_time_out_with_every_ranks_stack_and_who_waits_for_whom(job):
    output = job(4, """
def program(comm):
    if comm.rank == 0:
        comm.recv(1, tag=3)                              # rank 0 is here
    elif comm.rank == 1:
        comm.split(0)                                    # rank 1 is here
    elif comm.rank == 2:
        while True: time.sleep(0.1)                      # rank 2 is here
run(program, 4)                                          # rank 3 is here
""", REFIMPL_TIMEOUT="1")
    assert "rank 0 of 4 has waited 1" in output and "s for a message from rank 1 of world, at lesson.py:" in output
    assert "rank 1 of 4 " in output and "s for all ranks in split of world, at lesson.py:" in output
    assert "rank 2 of 4 does not wait (REFIMPL_TIMEOUT=1); its stack:" in output
    assert "s for the other ranks to return from the program" in output
    for rank in range(4):
        assert f"# rank {rank} is here" in output


@posix
def test_a_hang_in_the_background_is_reported_from_both_threads(job):
    output = job(2, """
def program(comm):
    if comm.rank == 0:
        comm.background(lambda twin: twin.recv(1)).wait()            # rank 0 is here
run(program, 2)
""", REFIMPL_TIMEOUT="1")
    assert "rank 0 of 2 has waited 1" in output and "s for its own work in the background" in output
    assert "s for a message from rank 1 of world" in output and "# rank 0 is here" in output


@posix
def test_an_error_in_the_background_that_nobody_waits_for_ends_the_job(job):
    output = job(2, """
def fails(twin):
    raise ArithmeticError("in the background")
def program(comm):
    if comm.rank == 1:
        comm.background(fails)
    else:
        comm.background(lambda twin: twin.recv(1))
run(program, 2)
""")
    for words in ("ArithmeticError: in the background", "(raised on rank 1 of 2)", "rank 1 of 2 failed: the job ends"):
        assert output.count(words) == 1, output


@posix
def test_work_in_the_background_is_refused_where_mpi_is_for_one_thread(job):
    output = job(2, """
run(lambda comm: comm.background(print), 2)
""", MPI4PY_RC_THREAD_LEVEL="funneled")
    assert "work in the background needs an MPI that many threads may call at once" in output
