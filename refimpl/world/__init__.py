"""Ranks and how they talk: `run` starts them, a `Communicator` connects them, in this process or under mpirun."""

from refimpl.world.errors import CollectiveMismatchError, DeadlockError, UndeliveredMessageError, WorldError
from refimpl.world.launch import run
from refimpl.world.mesh import Mesh
from refimpl.world.network import Link, Network

__all__ = [
    "CollectiveMismatchError", "DeadlockError", "Link", "Mesh", "Network", "UndeliveredMessageError", "WorldError",
    "run",
]
