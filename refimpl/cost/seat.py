"""Where a rank sits, what its collectives send, and how that is added up: what the traffic formulas are made of.

    Seat(training, rank).collective("tp").reduce(n, item)     (messages, bytes) of an all-reduce of n elements
    sent.note("tp", "forward", (messages, bytes), times)      by the group and phase that a ledger would call it
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from refimpl.cost import traffic
from refimpl.cost.training import Training


@dataclass(frozen=True)
class Seat:
    """One rank of a run, and what a run decides beside its `Training`.

    rank          of the world
    summed        bytes of an activation while tp ranks add it up: the dtype's own, unless given. `refimpl.train` adds
                  bfloat16 up in float32, as NumPy has none
    balance       experts have an auxiliary loss: sequences decide together, see moe.sequence_statistics
    biases        routers have biases, which follow the load of the whole step
    loss_scale    gradients are looked through for overflows
    """

    training: Training
    rank: int = 0
    summed: int | None = None
    balance: bool = False
    biases: bool = False
    loss_scale: bool = False

    @cached_property
    def place(self):
        """Coordinates along tp, cp, dp and pp: dict."""
        return self.training.layout.coordinates(self.rank)

    def group(self, name):
        """World ranks of the group of this name that the rank is in, as `Layout.group`, and of parts of groups."""
        layout, training = self.training.layout, self.training
        if name == "tp kv":
            return part(layout.group("tp", self.rank), self.place["tp"], sharers(training))
        if name == "cp ulysses":
            return part(layout.group("cp", self.rank), self.place["cp"], training.head_ranks)
        if name == "cp ring":
            return layout.group("cp", self.rank)[self.place["cp"] % training.head_ranks::training.head_ranks]
        if name not in self._groups:
            self._groups[name] = layout.group(name, self.rank)
        return self._groups[name]

    @cached_property
    def _groups(self):
        return {}

    def collective(self, name):
        """The `Collective` of this group."""
        ranks = self.group(name)
        return Collective(len(ranks), ranks.index(self.rank))

    @property
    def sums(self):
        """Bytes of an activation while it is summed over tp."""
        return self.summed or self.training.item

    @property
    def gradient_sums(self):
        """Bytes of a gradient while it is summed over tp."""
        states = self.training.states
        narrow = (self.training.grad_dtype or self.training.dtype) == "bfloat16"
        return self.summed if self.summed and narrow else states.gradients


def part(ranks, place, size):
    """The run of `size` neighbours that the rank at this place is in."""
    return ranks[place // size * size:place // size * size + size]


def sharers(training):
    """Tensor-parallel ranks with the same key-value heads."""
    return 1 if training.model.latent else max(training.layout.tp // training.model.kv_heads, 1)


@dataclass(frozen=True)
class Collective:
    """What one rank of P sends in each of the collectives: (messages, bytes) of n elements of `item` bytes."""

    P: int
    rank: int

    def gather(self, n, item):
        """A ring all-gather of n elements in all."""
        return self.P - 1, item * traffic.ring_all_gather(n, self.P, self.rank)

    def scatter(self, n, item):
        """A ring reduce-scatter."""
        return self.P - 1, item * traffic.ring_reduce_scatter(n, self.P, self.rank)

    def reduce(self, n, item):
        """A ring all-reduce."""
        return 2 * (self.P - 1), item * traffic.ring_all_reduce(n, self.P, self.rank)

    def agree(self, n=1, item=8):
        """An all-reduce by doubling: lg P messages, one more or just one where ranks fold (collectives/folding.py)."""
        rounds = self.P.bit_length() - 1
        folded = self.rank < 2 * (self.P - 2**rounds)
        messages = (rounds + 1 if self.rank % 2 else 1) if folded else rounds
        return messages, messages * n * item


class Sent(Counter):
    """{(group, phase): bytes} and, in `messages`, how many messages that were."""

    def __init__(self):
        super().__init__()
        self.messages = Counter()

    def note(self, group, phase, messages_and_bytes, times=1):
        """Add so many collectives of one kind."""
        messages, nbytes = messages_and_bytes
        if messages:
            self.messages[group, phase] += times * messages
            self[group, phase] += times * nbytes

    def add(self, other, times=1):
        """Add all of another `Sent`, so many times."""
        for key, messages in other.messages.items():
            self.note(*key, (messages, other[key]), times)
