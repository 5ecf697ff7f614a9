"""What can go wrong between ranks, each with a name of its own.

All are raised by `run` on the caller's side; the text says which rank, which message and which line of whose code.
"""


class WorldError(RuntimeError):
    """Ranks failed to talk to each other; the base of the three below."""


class DeadlockError(WorldError):
    """Nobody can go on and somebody is not finished. The text names, per rank, what it waits for and where."""


class CollectiveMismatchError(WorldError):
    """Ranks of one group called different collectives, or the same one with arguments that must agree and do not."""


class UndeliveredMessageError(WorldError):
    """Every rank returned, but messages were sent that no rank received."""
