"""`run`: which world, and what it refuses before anything starts."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refimpl import run
from refimpl.world import launch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def not_launched(monkeypatch):
    for name in (*launch.LAUNCHED, "REFIMPL_WORLD"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_without_a_launcher_the_world_is_local(not_launched):
    assert not launch.under_mpi() and launch.is_root()


@pytest.mark.parametrize("variable", launch.LAUNCHED)
def test_a_process_that_mpirun_started_uses_mpi_unless_told_otherwise(not_launched, variable):
    not_launched.setenv(variable, "4")
    assert launch.under_mpi()
    not_launched.setenv("REFIMPL_WORLD", "local")
    assert not launch.under_mpi() and run(lambda comm: comm.size, 3) == [3, 3, 3]
    not_launched.setenv("REFIMPL_WORLD", "")
    assert launch.under_mpi()


def test_the_world_can_be_chosen_and_only_from_two(not_launched):
    not_launched.setenv("REFIMPL_WORLD", "mpi")
    assert launch.under_mpi()
    not_launched.setenv("REFIMPL_WORLD", "MPI")
    with pytest.raises(ValueError, match="REFIMPL_WORLD='MPI': must be local or mpi"):
        run(lambda comm: None, 2)


def test_the_local_world_does_not_load_mpi(not_launched):
    code = "import sys; from refimpl import run; run(lambda comm: comm.barrier(), 3); sys.exit('mpi4py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("size", [0, -1, 2.0, "2", None])
def test_a_world_has_a_whole_number_of_ranks(size):
    with pytest.raises(ValueError, match=f"size={size!r}: a world has a whole number of ranks, 1 or more"):
        run(lambda comm: None, size)


def test_numpys_whole_numbers_are_sizes():
    assert run(lambda comm: comm.size, np.int64(2)) == [2, 2]


@pytest.mark.parametrize("program", [None, 3, "program"])
def test_a_program_is_a_function(program):
    with pytest.raises(ValueError, match="cannot be called: give a function"):
        run(program, 2)


def test_rendezvous_is_0_or_1(monkeypatch):
    monkeypatch.setenv("REFIMPL_RENDEZVOUS", "yes")
    with pytest.raises(ValueError, match="REFIMPL_RENDEZVOUS='yes': must be 0 or 1"):
        run(lambda comm: None, 2)
    assert run(lambda comm: comm.rank, 2, rendezvous=True) == [0, 1]


def test_arguments_go_to_the_program_and_options_do_not():
    assert run(lambda comm, a, b: (a, b), 1, 1, [2], seed=3, gather=False) == [(1, [2])]
