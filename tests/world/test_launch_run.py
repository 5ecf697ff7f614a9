"""`run`: which world, and what it refuses before anything starts."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refimpl import __main__, run
from refimpl.world import launch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def not_launched(monkeypatch):
    for name in (*launch.LAUNCHED, "REFIMPL_WORLD", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"):
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


def test_tasks_of_srun_that_know_of_no_mpi_are_refused_unless_each_is_to_work_alone(not_launched):
    """What `srun --mpi=none -n 4` sets: each would train all four ranks, and write the same files."""
    not_launched.setenv("SLURM_STEP_ID", "0")
    not_launched.setenv("SLURM_STEP_NUM_TASKS", "4")
    says = "srun started 4 tasks that do not know of one another: srun --mpi=pmix makes them ranks of one job"
    with pytest.raises(ValueError, match=says):
        run(lambda comm: None, 4)
    not_launched.setenv("REFIMPL_WORLD", "local")
    assert run(lambda comm: comm.size, 4) == [4] * 4
    not_launched.delenv("REFIMPL_WORLD")
    not_launched.setenv("PMIX_RANK", "0")                     # --mpi=pmix
    assert launch.under_mpi()


@pytest.mark.parametrize("variables", [{"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"},      # srun -n 1
                                       {"SLURM_STEP_NUM_TASKS": "4"},                            # no step
                                       {"SLURM_STEP_ID": "0"}])
def test_one_task_of_srun_is_as_good_as_none(not_launched, variables):
    for name, value in variables.items():
        not_launched.setenv(name, value)
    assert not launch.under_mpi()


@pytest.mark.parametrize("words", ["train --tp 4 --steps 1 --save run", "demo mlp --tp 4", "bench overlap"])
@pytest.mark.parametrize("task", ["0", "2"])
def test_a_command_in_such_a_task_is_refused_in_one_line_of_the_first_and_writes_no_file(
        words, task, not_launched, tmp_path, capsys):
    for name, value in {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": task}.items():
        not_launched.setenv(name, value)
    not_launched.chdir(tmp_path)
    not_launched.setattr(subprocess, "Popen", None)
    assert __main__.main(words.split()) == 2 and not any(path.is_file() for path in tmp_path.rglob("*"))
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == (task == "0")
    assert shown.err.startswith("error: srun started 4 tasks" if task == "0" else "")


def test_a_world_that_is_none_is_one_line_of_a_command(not_launched, capsys):
    not_launched.setenv("REFIMPL_WORLD", "MPI")
    assert __main__.main(["demo", "mlp"]) == 2
    assert capsys.readouterr().err == "error: REFIMPL_WORLD='MPI': must be local or mpi\n"


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
