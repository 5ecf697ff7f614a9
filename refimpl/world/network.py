"""What a message costs on the virtual clock: the alpha-beta model, with ports that can be busy.

      sender's port                     receiver's port
    |=== nbytes*beta ===|             |=== nbytes*beta ===|
    ^ departs           `-- alpha --> ^ head arrives      ^ received

A message of n bytes over a free link arrives alpha + n*beta after it was sent (Hockney 1994). A port carries one
message at a time, each way: a second message departs when the first has left, and two messages to one rank arrive one
after the other, which is what a hot expert costs. Sending never moves the sender's clock: it only occupies its port.

Ranks of one node talk over the `intra` link, each through a port of its own (NVLink); ranks of different nodes over
the `inter` link, through a NIC of their own or, with `nics_per_node`, through the first free one of their node's.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from numbers import Integral, Real


@dataclass(frozen=True)
class Link:
    """A link's latency `alpha` (seconds per message) and inverse bandwidth `beta` (seconds per byte, one way)."""

    alpha: float
    beta: float

    def __post_init__(self):
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not (isinstance(value, Real) and math.isfinite(value) and value >= 0):
                unit = "seconds" if name == "alpha" else "seconds per byte"
                raise ValueError(f"{name}={value!r}: a link needs a finite number of {unit}, 0 or more")
            object.__setattr__(self, name, float(value))      # also of a NumPy float32, in which clocks would lose time


@dataclass(frozen=True)
class Network:
    """The machine that the virtual clock imagines.

    intra, inter     `Link` between ranks of one node, and of different nodes (then `node_size` ranks make a node)
    nics_per_node    ports that the ranks of a node share on the inter link; None: one for every rank. With it sends do
                     not block, `rendezvous` or not: who comes first to a port must not depend on who blocks
    flops            floating-point operations per second of a rank; None: computing takes no time
    ValueError when the parts do not fit together.
    """

    intra: Link
    inter: Link | None = None
    node_size: int | None = None
    nics_per_node: int | None = None
    flops: float | None = None

    def __post_init__(self):
        if not isinstance(self.intra, Link) or not isinstance(self.inter, Link | None):
            raise ValueError(f"intra={self.intra!r}, inter={self.inter!r}: a network is made of Link(alpha, beta)")
        if (self.inter is None) != (self.node_size is None):
            raise ValueError(f"inter={self.inter!r} and node_size={self.node_size!r}: "
                             "give both (several nodes) or neither (one)")
        for name in ("node_size", "nics_per_node"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Integral) and value >= 1):
                raise ValueError(f"{name}={value!r}: must be a whole number, 1 or more")
        if self.nics_per_node is not None and self.inter is None:
            raise ValueError(f"nics_per_node={self.nics_per_node} without an inter link: "
                             "give inter=Link(...) and node_size")
        if self.flops is not None and not (isinstance(self.flops, Real) and self.flops > 0):
            raise ValueError(f"flops={self.flops!r}: must be operations per second, more than 0, or None")

    def node(self, rank):
        """The node that `rank` sits on, from 0."""
        return rank // self.node_size if self.node_size else 0

    def crosses(self, src, dst):
        """Whether a message from rank `src` to rank `dst` leaves its node."""
        size = self.node_size
        return size is not None and src // size != dst // size

    def link(self, src, dst):
        """The `Link` that a message from rank `src` to rank `dst` takes."""
        return self.inter if self.crosses(src, dst) else self.intra


class Port:
    """When one end of a link is busy: intervals of virtual time, in order, that do not overlap."""

    REMEMBERED = 512                       # at least; older intervals are forgotten: time before them counts as busy

    def __init__(self):
        self.starts, self.ends = [], []
        self.horizon = 0.0

    def free_at(self, earliest, duration):
        """The first time from `earliest` on at which the port is free for `duration` seconds."""
        start = max(earliest, self.horizon)
        for k in range(bisect_right(self.ends, start), len(self.ends)):
            if start + duration <= self.starts[k]:
                break
            start = self.ends[k]
        return start

    def reserve(self, earliest, duration):
        """Occupy the port for `duration` seconds from the first free time on; returns that time."""
        starts, ends = self.starts, self.ends
        if not ends or earliest > ends[-1]:                   # the usual case: after all others
            start, k = earliest, len(ends)
        else:
            start = self.free_at(earliest, duration)
            if start == ends[-1]:                             # or right behind the last one
                ends[-1] = start + duration
                return start
            k = bisect_right(starts, start)
        starts.insert(k, start)
        ends.insert(k, start + duration)
        if len(ends) > 2 * self.REMEMBERED:
            self.horizon = ends[self.REMEMBERED - 1]
            del starts[:self.REMEMBERED], ends[:self.REMEMBERED]
        return start


class Ports:
    """All ports of a network that carry messages one way (out, or in)."""

    def __init__(self, network):
        self.network, self.shared = network, network.nics_per_node
        self.own, self.nics = defaultdict(Port), defaultdict(Port)           # by rank
        self.of_node = defaultdict(lambda: [Port() for _ in range(self.shared)])

    def reserve(self, rank, crosses, earliest, duration):
        """Occupy a port of `rank` for `duration` seconds; returns from when on. A message without bytes occupies none.

        crosses    the message leaves the node, through the first free one of its NICs, if the node's ranks share them
        """
        if not duration:
            return earliest
        if not crosses:
            port = self.own[rank]
        elif not self.shared:
            port = self.nics[rank]
        else:
            port = min(self.of_node[self.network.node(rank)], key=lambda port: port.free_at(earliest, duration))
        return port.reserve(earliest, duration)
