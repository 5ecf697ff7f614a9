"""What ends a run other than wrong input: a number that is none, a rank that dies, a checkpoint that cannot be written.

Each is a `Failure`, whose text is one line for the user; whoever started the run prints it, and exits with status 1.
"""

import os
import signal
import sys

from refimpl.arrays import array_namespace, to_host
from refimpl.precision import wide
from refimpl.world.launch import under_mpi


class Failure(Exception):
    """Ends a run; its text is all that there is to say."""


class NotSaved(Failure):
    """A checkpoint could not be written."""


class Crash(Failure):
    """A rank was told to die here, to see what becomes of the others."""


class NotFinite(Failure):
    """A number became NaN or infinite."""


class Anomaly:
    """Looks at everything a stage computes, and raises `NotFinite` at the first NaN or infinity: see stage.py."""

    def __init__(self, comm):
        self.rank, self.step = comm.rank, 1

    def __call__(self, part, what, x):
        """Look at one array: `what` it is, such as "output", and of which part of the model."""
        if not bool(to_host(array_namespace(x).isfinite(wide(x)).all())):
            raise NotFinite(f"step {self.step}, rank {self.rank}, {part}: its {what} is the first tensor with a number "
                            "that is NaN or infinite; look at what goes into it, or lower the learning rate")


def maybe_crash(comm, crash_at, step, folder=None):
    """Die if it is this rank's turn: a process by SIGKILL, as when a machine fails; a rank of one process by `Crash`.

    crash_at    (step, rank), or None        folder    of the checkpoints, or None
    """
    if crash_at == (step, comm.rank):
        how = f"--resume {folder} goes on from the newest checkpoint" if folder else (
            "nothing was saved: with --save DIR, --resume DIR goes on from there")
        words = f"rank {comm.rank} was told to die at step {step} (--crash-at); {how}"
        if under_mpi():
            print(f"\n{words}", file=sys.stderr, flush=True)              # below the bar of rank 0
            os.kill(os.getpid(), signal.SIGKILL)
        raise Crash(words)
