"""N ranks as N processes under mpirun, through mpi4py: the same interface, the same errors.

A message is two (see `wire.py`): a header, then the payload under the number that the header announces. So a receiver
need not know what comes, may wait for its requests in any order, and ranks that disagree find out. A collective called
with `out` travels bare, without header.

Only upper-case buffer calls carry arrays (the lower-case ones pickle: a silent copy through the host). MPI does not
look at a posted header by itself: whoever waits, for anything, also starts the payloads of headers that came in. If it
did not, a rank that is in one call could hold up a sender whom that very call needs.
"""

import sys
import time
from collections import Counter
from functools import cached_property

import numpy as np
from mpi4py import MPI

from refimpl.arrays import array_namespace, is_device
from refimpl.world.agreement import describe
from refimpl.world.communicator import Communicator
from refimpl.world.deadlock import location
from refimpl.world.mpi_requests import ReceivingBare, ReceivingMPI, SendingMPI
from refimpl.world.payload import library
from refimpl.world.wire import HEADER_BYTES, encode, incoming, outgoing, pieces

SEGMENT_BYTES = 512 * 1024                            # of a ring's step: fits a core's cache beside what it is added to
BARE = 1                                              # tag of payloads without header; headers have even tags
NUMBERS = 2**20                                       # payloads on their way from one rank to another at most
NOTHING = (0, 0), MPI.PROC_NULL                       # a piece for nobody, from nobody


class MPICommunicator(Communicator):
    """A group of ranks under mpirun, seen by this process.

    mpi       the group's own mpi4py communicator
    beside    another one of the same ranks, for work in the background; None in such work
    """

    def __init__(self, mpi, beside, me, ranks, name, job):
        super().__init__(me, ranks, mpi.Get_rank(), name)
        self.mpi, self.beside, self.job = mpi, beside, job
        self.native = not job.polite                  # MPI's own collectives spin while they wait
        self._numbers = Counter()                     # payloads sent so far, per receiver

    # -- messages -------------------------------------------------------------------------------------------------
    def _isend(self, x, dst, tag):
        job = self.job
        start = self.mpi.Issend if job.rendezvous else self.mpi.Isend
        buffer = outgoing(x, job.direct)
        number = self._numbers[dst] = (self._numbers[dst] + 1) % NUMBERS
        header = None if self.bare else encode(x, number, self.agreement)
        if self.me.ledger is not None:
            self._record(x, dst)
        if self.bare:
            requests = self._pieces(start, buffer, dst, BARE)
        else:
            job.sent[self.ranks[dst]] += 1
            requests = [start(header, dst, 2 * (tag + 1))]            # tag + 1: the collectives' own is -1
            if x.size:
                requests += self._pieces(start, buffer, dst, 2 * number + 3)
        return SendingMPI(self, dst, (header, buffer), requests)

    def _irecv(self, src, tag, out):
        if self.bare:
            buffer = incoming(out.shape, out.dtype, library(out), out, self.job.direct)
            return ReceivingBare(self, src, out, buffer, self._pieces(self.mpi.Irecv, buffer, src, BARE))
        header = np.empty(HEADER_BYTES, np.uint8)
        return ReceivingMPI(self, src, out, header, self.mpi.Irecv(header, src, 2 * (tag + 1)))

    def sendrecv(self, x, dst, src, tag=0, out=None):
        """Send `x` to `dst` and receive from `src` at the same time; returns what was received."""
        if out is not None and library(x) == library(out) and array_namespace(x).may_share_memory(x, out):
            x = x.copy()                              # MPI may write `out` before it has read `x`
        if self._streams(x, out):
            self._stream(x, dst, src, out, self.job.limit)
            return out
        return super().sendrecv(x, dst, src, tag, out)

    def sendrecv_reduce(self, x, dst, src, own, combine, out):
        """Send `x` to `dst`; out = combine(own, what `src` sends), segment by segment, while each is in the cache."""
        if not (self._streams(x, own) and out.flags.c_contiguous):
            return super().sendrecv_reduce(x, dst, src, own, combine, out)
        most = min(SEGMENT_BYTES // own.itemsize, self.job.limit)
        own, result = own.reshape(-1), out.reshape(-1)
        room = np.empty(min(most, own.size), own.dtype)
        self._stream(x, dst, src, own, most, room, lambda a, b: combine(own[a:b], room[:b - a], out=result[a:b]))
        return out

    # -- streams: blocking calls on the arrays' own memory, with no header, no copy, no request ------------------------
    def _streams(self, x, like):
        """Whether that will do: both sides know what comes, arrays lie as MPI wants them, this thread may spin."""
        return (self.bare and not self.job.polite and like is not None and not is_device(x)
                and x.flags.c_contiguous and like.flags.c_contiguous)

    def _stream(self, x, dst, src, like, most, room=None, arrived=None):
        """Send x and receive as many elements as `like` has, `most` at a time.

        Into `like` itself; or, piece by piece, into `room`, and then arrived(a, b) tells which piece lies there.
        """
        if self.me.ledger is not None:
            self._record(x, dst)
        x, like = x.reshape(-1), like.reshape(-1)
        sends, receives = pieces(x.size, most), pieces(like.size, most)
        words = lambda: self._words(f"for a message from rank {self.ranks[src]}")
        waited = 0.0
        with self.job.watchdog.waits(words):
            for k in range(max(len(sends), len(receives))):   # chunks may differ by a row, and so by a piece
                (a, b), to = (sends[k], dst) if k < len(sends) else NOTHING
                (c, d), whom = (receives[k], src) if k < len(receives) else NOTHING
                target = like[c:d] if room is None else room[:d - c]
                began = time.perf_counter()
                if self.job.posted:                   # receives to look after
                    requests = [self.mpi.Isend(x[a:b], to, BARE), self.mpi.Irecv(target, whom, BARE)]
                    self.job.progress(requests, words)
                else:
                    self.mpi.Sendrecv(x[a:b], to, BARE, target, whom, BARE)
                waited += time.perf_counter() - began
                if arrived is not None:
                    arrived(c, d)
        if self.me.ledger is not None:
            self.me.ledger.record_time(self.me.rank, waited, self.name, self.me.phase, "wait")

    def _record(self, x, dst):
        call = self.agreement and self.agreement[0]
        self.me.ledger.record_message(self.me.rank, self.ranks[dst], x.nbytes, self.name, self.me.phase, call)

    def _pieces(self, call, buffer, peer, tag):
        """Start `call` for each piece of a contiguous buffer."""
        if buffer.size <= self.job.limit:
            return [call(buffer, peer, tag)]
        flat = buffer.reshape(-1)
        return [call(flat[a:b], peer, tag) for a, b in pieces(flat.size, self.job.limit)]

    # -- waiting ------------------------------------------------------------------------------------------------------
    def _wait(self, requests, peer, verb):
        """Wait for MPI requests of messages to or from rank `peer`."""
        began = time.perf_counter()
        self.job.progress(requests, lambda: self._words(f"{verb} rank {self.ranks[peer]}"))
        if self.me.ledger is not None:
            self.me.ledger.record_time(self.me.rank, time.perf_counter() - began, self.name, self.me.phase, "wait")

    def _words(self, verb):
        call = f" in {describe(self.agreement)}" if self.agreement else ""
        frame = sys._current_frames().get(self.job.watchdog.thread)
        return f"{verb}{call} of {self.name}, at {location(frame)}"

    # -- all ranks at once --------------------------------------------------------------------------------------------
    def in_native(self, name):
        """A context around calls of MPI's own collectives: the watchdog knows of them, and our receives go on."""
        return self.job.inside(lambda: self._words(f"for all ranks in {name}"))

    def native_pieces(self, n):
        """[start, stop) of the pieces in which n elements fit the count of an MPI call."""
        return pieces(n, self.job.limit)

    def _twin(self):
        helper = self.job.background()
        return MPICommunicator(self.beside, None, helper.me(self.me), self.ranks, self.name, helper.job)

    def _background(self, work):
        return self.job.background().start(self.twin, work, self)

    def _node(self, rank):
        return self._hosts[rank]

    @cached_property
    def _hosts(self):
        """For each rank the lowest one on its host."""
        self._meet("to say where they are")
        host = self.mpi.Split_type(MPI.COMM_TYPE_SHARED)
        hosts = self.mpi.allgather(host.allreduce(self.rank, MPI.MIN))
        host.Free()
        return hosts

    def _split(self, color, key, name):
        self._meet("in split")
        table = self.mpi.allgather((color, key))
        members = [r for _, r in sorted((k, r) for r, (c, k) in enumerate(table) if c == color)]
        mpi = self.mpi.Split(MPI.UNDEFINED if color is None else min(members), members.index(self.rank))
        if color is None:
            return None
        mpi = self.job.own(mpi)
        beside = None if self.beside is None else self.job.own(mpi.Dup())      # now, since nobody waits at a start
        return MPICommunicator(mpi, beside, self.me, tuple(self.ranks[r] for r in members), name, self.job)

    def _meet(self, why):
        """Wait for all ranks of the group, so that calls of MPI that wait for all need not wait for long."""
        self.job.progress([self.mpi.Ibarrier()], lambda: self._words(f"for all ranks {why}"))
