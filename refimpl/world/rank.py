"""What a rank owns, whatever group it talks in. Its communicators share it; its work in the background has a copy."""

from copy import copy
from functools import cached_property

import numpy as np


class Rank:
    """A rank's place in the world, the ledger that counts for it, the labels of its phases, its generator."""

    task = None                 # in the local world: the task that runs the rank's program, or its work
    background = False          # is this the rank as its work in the background sees it?

    def __init__(self, rank, size, seed=0, ledger=None):
        self.rank, self.size, self.seed, self.ledger = rank, size, seed, ledger
        self.phase = ()

    def in_background(self):
        """The rank as its work in the background sees it: with phases of its own."""
        other = copy(self)
        other.background = True
        return other

    @cached_property
    def rng(self):
        """Generator on the host, seeded by (seed, rank)."""
        return np.random.default_rng([self.seed, self.rank])
