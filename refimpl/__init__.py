"""Distributed training in NumPy, proven by running it: every idea once for one device, once for many ranks, and its
cost once as a formula. Start with `run(program, 4)`: see the README.
"""

from refimpl.layout import Layout
from refimpl.measure.ledger import Ledger
from refimpl.world import (
    CollectiveMismatchError,
    DeadlockError,
    Link,
    Mesh,
    Network,
    UndeliveredMessageError,
    WorldError,
    run,
)

__version__ = "0.1.0"
__all__ = [
    "CollectiveMismatchError", "DeadlockError", "Layout", "Ledger", "Link", "Mesh", "Network",
    "UndeliveredMessageError", "WorldError", "run",
]
