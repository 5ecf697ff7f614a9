"""What ends a run other than wrong input: a number that is none, a rank that dies, a checkpoint that cannot be written.

Each is a `Failure`, whose text is one line for the user; whoever started the run prints it, and exits with status 1.
"""

import os
import signal

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


def maybe_crash(comm, crash_at, step):
    """Die if it is this rank's turn: a process by SIGKILL, as when a machine fails; a rank of one process by `Crash`.

    crash_at    (step, rank), or None
    """
    if crash_at == (step, comm.rank):
        if under_mpi():
            os.kill(os.getpid(), signal.SIGKILL)
        raise Crash(f"rank {comm.rank} was told to die at step {step} (--crash-at)")
