"""The interface: what a rank can say to the ranks of its group.

    rank 0                                   rank 1
    comm.send(x, dst=1, tag=7)   -- x -->    y = comm.recv(src=0, tag=7)
    request = comm.isend(x, 1)               request = comm.irecv(0); ...; y = request.wait()
    comm.sendrecv(x, dst=right, src=left)    both at once: what every ring needs

Messages from one rank to another with one tag arrive in the order in which they were sent. A received array is the
receiver's own, in C order whatever the sender's was; `out=` names an array to receive into. Any array goes whose
numbers are booleans, integers, floats or complex ones in this machine's byte order; lists and numbers become arrays.

Everything the two worlds share is here: checks of arguments, the agreement that collectives carry, phases, the rank's
generator. `local.py` and `mpi.py` add how a message travels.
"""

import math
import operator
from contextlib import contextmanager
from numbers import Real

import numpy as np

from refimpl.arrays import array_namespace
from refimpl.world.agreement import Collective, common, describe
from refimpl.world.errors import CollectiveMismatchError, WorldError
from refimpl.world.payload import payload

MAX_TAG = 2**20                 # MPI promises no more than 2**15 - 1, every library gives at least 2**22
COLLECTIVE_TAG = -1             # messages of a collective never meet a program's own


class Request:
    """A message on its way. `wait` returns the received array (irecv) or None (isend), the same every time."""

    def wait(self):
        """Block until the message is here (irecv) or its array may be changed again (isend)."""
        raise NotImplementedError


class Communicator:
    """A rank's view of a group of ranks.

    rank, size    this rank's number in the group, and how many there are
    name          what messages and the ledger call the group: "world", "tp", ...
    ranks         world rank of each member
    """

    def __init__(self, me, ranks, rank, name):
        self.me, self.ranks, self.rank, self.size, self.name = me, ranks, rank, len(ranks), name
        self.agreement = None                # of the collective that this rank is in: (name, number, what must agree)
        self.bare = False                    # may that collective's messages travel without header?
        self.calls = 0                       # collectives entered so far
        self.nodes = None                    # of each rank, where a layout says it: see `Mesh`
        self.node_groups = None              # hierarchical collectives keep their communicators here
        self.native = False                  # may `auto` take MPI's own collectives?
        self.twin = None                     # the communicator for work in the background

    def __repr__(self):
        return f"<rank {self.rank} of {self.size} in {self.name}>"

    # -- messages -------------------------------------------------------------------------------------------------
    def send(self, x, dst, tag=0):
        """Send array `x` to rank `dst`; returns when `x` may be changed again.

        With rendezvous it returns only when the receiver has asked for the message: what a network does with a large
        one. ValueError for a rank outside the group, a tag outside 0..2**20, or an array that is not numbers.
        """
        self.isend(x, dst, tag).wait()

    def recv(self, src, tag=0, out=None):
        """Receive an array from rank `src`: a new one, or into `out` (same shape and dtype, else ValueError)."""
        return self.irecv(src, tag, out).wait()

    def sendrecv(self, x, dst, src, tag=0, out=None):
        """Send `x` to `dst` and receive from `src` at the same time; returns what was received."""
        sending = self.isend(x, dst, tag)
        received = self.irecv(src, tag, out).wait()
        sending.wait()
        return received

    def sendrecv_reduce(self, x, dst, src, own, combine, out):
        """Send `x` to `dst` and put combine(own, what `src` sends) into `out`: a ring's step, as one.

        own, out    arrays of the shape and dtype of what comes, perhaps the same one
        combine     such as numpy.add: combine(a, b, out=c)
        """
        incoming = self.sendrecv(x, dst, src, out=array_namespace(own).empty_like(own))
        return combine(own, incoming, out=out)

    def isend(self, x, dst, tag=0):
        """Start sending `x` to `dst`; returns a `Request`. Do not change `x` before its `wait` returns."""
        dst, tag = self._address(dst, "dst", tag)
        return self._isend(payload(x), dst, tag)

    def irecv(self, src, tag=0, out=None):
        """Start receiving from `src`; returns a `Request` whose `wait` gives the array."""
        src, tag = self._address(src, "src", tag)
        if out is not None and not hasattr(out, "dtype"):
            raise ValueError(f"out={out!r} is not an array: a message is received into an array of its shape and dtype")
        return self._irecv(src, tag, out)

    def barrier(self):
        """Wait until every rank of the group is here: ceil(log2 size) rounds of empty messages (dissemination)."""
        nothing = np.empty(0, np.uint8)
        with self.collective("barrier"):
            distance = 1
            while distance < self.size:                      # after round k a rank has heard of 2**k others
                self.sendrecv(nothing, (self.rank + distance) % self.size, (self.rank - distance) % self.size)
                distance *= 2

    # -- groups, labels, time -----------------------------------------------------------------------------------------
    def split(self, color, key=0, name=None):
        """Make a group of all ranks that give the same `color`, ordered by (key, rank); every rank must call it.

        color    a whole number, or None to belong to no group (then split returns None)
        """
        if color is not None:
            try:
                color = operator.index(color)
            except TypeError:
                raise ValueError(f"color={color!r}: must be a whole number, or None to belong to no group") from None
        return self._split(color, key, name or f"{self.name}.split")

    def node(self, rank):
        """The node of a rank of this group: a number, the same for ranks that share one.

        The layout's, in a group of a mesh; else the network's on the virtual clock, the host under MPI, where all ranks
        must ask the first time.
        """
        return self._node(rank) if self.nodes is None else self.nodes[rank]

    def background(self, work):
        """Start `work(twin)` beside this rank's program, after what was started before; returns a `Request`.

        twin: a communicator of the same ranks, for this work alone. Every rank must start the same works in one order.
        To start waits for nobody. On the virtual clock the work begins now, or when the last one ends; `wait` moves the
        rank's clock to its end. WorldError for work that starts more work.
        """
        if self.me.background:
            raise WorldError("work in the background cannot start more of it: start it from the rank's program")
        if self.twin is None:
            self.twin = self._twin()
            self.twin.nodes = self.nodes
        return self._background(work)

    @contextmanager
    def phase(self, label):
        """Label what this rank sends, computes and waits for inside the block; blocks nest."""
        outer, self.me.phase = self.me.phase, (*self.me.phase, label)
        try:
            yield
        finally:
            self.me.phase = outer

    @property
    def rng(self):
        """This rank's generator (NumPy, on the host), seeded by (seed, world rank): the same on every run."""
        return self.me.rng

    @property
    def clock(self):
        """Seconds on this rank's virtual clock; 0 without a network."""
        return 0.0

    def compute(self, flops, kind="compute"):
        """Declare `flops` operations: counted by the ledger; on the virtual clock they take flops / network.flops."""
        flops = amount("flops", flops, "must be a number of operations, 0 or more")
        if self.me.ledger is not None:
            self.me.ledger.record_flops(self.me.rank, flops, self.me.phase, kind)

    def elapse(self, seconds, kind="elapse"):
        """Let `seconds` pass on the virtual clock; without a network nothing happens."""
        amount("seconds", seconds, "time only goes forward; give 0 or more")

    # -- what collectives are made of ---------------------------------------------------------------------------------
    def collective(self, name, bare=False, **agree):
        """Enter the collective `name`: messages inside carry it, and `agree` must be equal on all ranks.

        A value None agrees with anything, and `comm.agreed(key)` is then what the sender said. `bare` lets the
        messages travel without header (all ranks alike; `out=` must be given), unless REFIMPL_CHECK=1.
        A collective inside another one on the same group is a part of it.
        """
        return Collective(self, name, bare, agree)

    def agreed(self, key):
        """What the ranks agreed on under `key` in the present collective."""
        return self.agreement[2][key]

    def _check(self, theirs, src):
        """Compare the agreement of a message from `src` with this rank's own; fill in what this rank did not know.

        A message of no collective (None) has met a receive of no collective, since collectives have a tag of their own.
        """
        mine = self.agreement
        if theirs is mine or theirs is None or mine is None:
            return
        self.agreement = common(mine, theirs) or self._disagree(mine, src, theirs)

    def _disagree(self, mine, src, theirs):
        raise CollectiveMismatchError(f"ranks of {self.name} disagree: rank {self.rank} is in {describe(mine)}, "
                                      f"but rank {src} in {describe(theirs)}")

    def _agree(self, agreement):
        """The agreement to go into a collective with: a world may compare it with the other ranks' first."""
        return agreement

    def _address(self, peer, which, tag):
        """Checked and plain (rank, tag) of a message; inside a collective the tag is the collective's."""
        if type(peer) is not int or not 0 <= peer < self.size:
            given, peer = peer, whole(peer, self.size - 1)
            if peer is None:
                raise ValueError(f"{which}={given!r} is not a rank of {self.name}: it has ranks 0 to {self.size - 1}")
        if self.agreement is not None:
            return peer, COLLECTIVE_TAG
        if type(tag) is not int or not 0 <= tag <= MAX_TAG:
            given, tag = tag, whole(tag, MAX_TAG)
            if tag is None:
                raise ValueError(f"tag={given!r}: must be a whole number from 0 to {MAX_TAG}")
        return peer, tag

    def _isend(self, x, dst, tag):
        raise NotImplementedError

    def _irecv(self, src, tag, out):
        raise NotImplementedError

    def _split(self, color, key, name):
        raise NotImplementedError

    def _node(self, rank):
        raise NotImplementedError

    def _twin(self):
        raise NotImplementedError

    def _background(self, work):
        raise NotImplementedError


def amount(name, value, expected):
    """`value` as a float, as a float32 would lose what is added to it; ValueError unless it is finite, 0 or more."""
    if not (isinstance(value, Real) and 0 <= value < math.inf):
        raise ValueError(f"{name}={value!r}: {expected}")
    return float(value)


def whole(value, last):
    """`value` as a plain int, when it is a whole number from 0 to `last`; else None."""
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if 0 <= number <= last else None
