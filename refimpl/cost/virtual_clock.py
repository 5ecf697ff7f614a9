"""Seconds of messages and work on a network of two links: what virtual_step.py adds up.

    ring       steps x (alpha + chunk beta), if all its links are alike; else as chunks go round it
    exchange   each other rank in turn       doubling   ranks 1, 2, 4, ... away       compute   FLOPs / rate
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from refimpl.cost.seat import Seat


@dataclass(frozen=True)
class Clock:
    """A network, such as `refimpl.world.network.Network`: `intra`, `inter` with alpha and beta, `node_size`, `flops`;
    and the rank whose step is timed."""

    seat: Seat
    network: object

    def crosses(self, a, b):
        """Whether a message between these world ranks leaves its node."""
        size = self.network.node_size
        return size is not None and a // size != b // size

    def between(self, a, b):
        """The link from one world rank to another."""
        return self.network.inter if self.crosses(a, b) else self.network.intra

    def link(self, ranks):
        """The slowest link of a ring through these ranks."""
        crossing = any(self.crosses(a, b) for a, b in pairwise([*ranks, ranks[0]]))
        return self.network.inter if crossing else self.network.intra

    def ring(self, group, messages, nbytes, steps=None):
        """Seconds of so many messages and bytes around one of the rank's groups.

        steps    of one collective: P-1, unless given. Where only some links of the ring are slow, a chunk crosses them
                 now and then, and not in every step
        """
        ranks = self.seat.group(group)
        steps = steps or len(ranks) - 1
        if not messages or not steps:
            return 0.0
        links = tuple(self.between(a, b) for a, b in pairwise([*ranks, ranks[0]]))
        return messages / steps * ring_seconds(links, steps, nbytes / messages)

    def exchange(self, group, messages, nbytes):
        """The same to every other rank of the group in turn: in each turn the slower of what goes and what comes."""
        ranks = self.seat.group(group)
        P, mine = len(ranks), ranks.index(self.seat.rank)
        if P == 1:
            return 0.0
        turns = [max(self.between(ranks[mine], ranks[(mine + step) % P]), self.between(ranks[mine - step], ranks[mine]),
                     key=lambda link: link.alpha + nbytes / messages * link.beta) for step in range(1, P)]
        return sum(messages / (P - 1) * link.alpha + nbytes / (P - 1) * link.beta for link in turns)

    def sent(self, sent, phase, but=()):
        """Seconds of what a `Sent` has in a phase, over all groups but some."""
        return sum((self.exchange if group == "ep" else self.ring)(group, sent.messages[group, name], nbytes)
                   for (group, name), nbytes in sent.items() if name == phase and group not in but)

    def doubling(self, group, nbytes=8):
        """Seconds of an all-reduce by doubling."""
        ranks = self.seat.group(group)
        rounds = len(ranks).bit_length() - 1
        folds = 2 if len(ranks) > 2**rounds else 0
        links = [self.link(ranks[:2])] * folds + [self.between(ranks[0], ranks[2**k]) for k in range(rounds)]
        return sum(link.alpha + nbytes * link.beta for link in links)

    def compute(self, flops):
        """Seconds of so many floating-point operations."""
        return flops / self.network.flops if self.network.flops else 0.0


@lru_cache(1024)
def ring_seconds(links, steps, nbytes):
    """Seconds of so many steps of a ring, links[r] from rank r to the next: as overlap.ring_ends, chunks alike."""
    if len(set(links)) == 1:
        return steps * (links[0].alpha + nbytes * links[0].beta)
    known, sent = [0.0] * len(links), [0.0] * len(links)
    for _ in range(steps):
        sent = [max(here, port) + nbytes * link.beta for here, port, link in zip(known, sent, links)]
        known = [max(here, sent[r - 1] + links[r - 1].alpha) for r, here in enumerate(known)]
    return max(known)
