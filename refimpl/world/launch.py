"""`run(program, size)`: one call, two worlds.

    results = run(program, 4)                          # in this process: the local world
    mpirun -n 4 python -m mpi4py script.py             # the same line now runs on 4 processes

Which world: MPI when this process was started by mpirun, else the local one. REFIMPL_WORLD=local|mpi overrides.
"""

import operator
import os

# Set in every process by the launchers of Open MPI, MPICH and Intel MPI (hydra), MVAPICH, PMIx (srun --mpi=pmix), and
# Cray's (srun --mpi=cray_shasta).
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_RANK", "PALS_RANKID")


def under_mpi():
    """Whether `run` uses MPI here: REFIMPL_WORLD if set, else: did mpirun start us?

    ValueError for a REFIMPL_WORLD that is neither local nor mpi, and where srun started tasks without MPI: each would
    do all ranks' work by itself, and all would write the same files.
    """
    chosen = os.environ.get("REFIMPL_WORLD", "")
    if chosen not in ("", "local", "mpi"):
        raise ValueError(f"REFIMPL_WORLD={chosen!r}: must be local or mpi")
    launched = any(name in os.environ for name in LAUNCHED)
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if chosen == "" and not launched and "SLURM_STEP_ID" in os.environ and tasks != "1":
        raise ValueError(f"srun started {tasks} tasks that do not know of one another: srun --mpi=pmix makes them "
                         "ranks of one job (srun --mpi=list: what there is); REFIMPL_WORLD=local, if each works alone")
    return chosen == "mpi" or chosen == "" and launched


def is_root():
    """Whether this process speaks for all: it is rank 0 of its job, or there is no job."""
    try:
        if not under_mpi():
            return True
    except ValueError:                                        # what is wrong is said once, by the first task of srun
        return os.environ.get("SLURM_PROCID", "0") == "0"
    from mpi4py import MPI

    return MPI.COMM_WORLD.Get_rank() == 0


def run(program, size, *args, ledger=None, network=None, rendezvous=None, gather=True, seed=0):
    """Run `program(comm, *args)` on `size` ranks; the list of what they returned, in rank order.

    ledger        `Ledger` that counts what is sent, on all ranks
    network       `Network`: keep a virtual clock (local world only)
    rendezvous    a send returns only when it is received, so that what would hang on a real network fails here;
                  None: what REFIMPL_RENDEZVOUS=0|1 says, else off. On a virtual clock only while no ports are shared
    gather        under MPI every rank gets the whole list; False: a list of its own result alone
    seed          of each rank's generator `comm.rng`

    Raises a rank's own exception (with a note that says which rank), `DeadlockError`, `CollectiveMismatchError`,
    `UndeliveredMessageError`; ValueError when size is no number of ranks or, under mpirun, not that of the job.
    """
    try:
        ranks = operator.index(size)
    except TypeError:
        ranks = 0
    if ranks < 1:
        raise ValueError(f"size={size!r}: a world has a whole number of ranks, 1 or more")
    if not callable(program):
        raise ValueError(f"program={program!r} cannot be called: give a function program(comm, *args)")
    if rendezvous is None:
        rendezvous = os.environ.get("REFIMPL_RENDEZVOUS", "0")
        if rendezvous not in ("", "0", "1"):
            raise ValueError(f"REFIMPL_RENDEZVOUS={rendezvous!r}: must be 0 or 1")
        rendezvous = rendezvous == "1"
    if under_mpi():
        from refimpl.world.mpi_job import run_mpi  # mpi4py starts MPI when imported: not before it is needed

        return run_mpi(program, ranks, args, ledger, network, rendezvous, gather, seed)
    from refimpl.world.local import run_local

    return run_local(program, ranks, args, ledger, network, rendezvous, seed)
