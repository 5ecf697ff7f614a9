"""N ranks as N processes under mpirun, through mpi4py: the same interface, the same errors.

A message is two (see `wire.py`): a header, then the payload under the number that the header announces. So a receiver
need not know what comes, may wait for its requests in any order, and ranks that disagree find out. A collective called
with `out` travels bare, without header.

Only upper-case buffer calls carry arrays (the lower-case ones pickle: a silent copy through the host). MPI does not
look at a posted header by itself: whoever waits, for anything, also starts the payloads of headers that came in.
"""

import sys
import time
import traceback
from collections import Counter
from functools import cache

import numpy as np
from mpi4py import MPI

from refimpl.arrays import array_namespace
from refimpl.measure.ledger import Ledger
from refimpl.world.communicator import Communicator, Rank, Request, describe, receive_into
from refimpl.world.cuda_aware import cuda_aware
from refimpl.world.deadlock import location
from refimpl.world.errors import UndeliveredMessageError
from refimpl.world.watchdog import Watchdog
from refimpl.world.wire import HEADER_BYTES, decode, deliver, encode, incoming, library, max_count, outgoing, pieces

BARE = 1                                              # tag of payloads without header; headers have even tags
NUMBERS = 2**20                                       # payloads on their way from one rank to another at most


class MPICommunicator(Communicator):
    """A group of ranks under mpirun, seen by this process. `mpi` is the group's own mpi4py communicator."""

    def __init__(self, mpi, me, ranks, name, job):
        super().__init__(me, ranks, mpi.Get_rank(), name)
        self.mpi, self.job = mpi, job
        self._numbers = Counter()                     # payloads sent so far, per receiver

    # -- messages -------------------------------------------------------------------------------------------------
    def _isend(self, x, dst, tag):
        if self.me.ledger is not None:
            call = self.agreement and self.agreement[0]
            self.me.ledger.record_message(self.me.rank, self.ranks[dst], x.nbytes, self.name, self.me.phase, call)
        buffer = outgoing(x, self.job.direct)
        start = self.mpi.Issend if self.job.rendezvous else self.mpi.Isend
        if self.bare:
            return SendingMPI(self, dst, buffer, self._pieces(start, buffer, dst, BARE))
        number = self._numbers[dst] = (self._numbers[dst] + 1) % NUMBERS
        header = encode(x, number, self.agreement)
        self.job.sent[self.ranks[dst]] += 1
        requests = [start(header, dst, 2 * (tag + 1))]                # tag + 1: the collectives' own is -1
        if x.size:
            requests += self._pieces(start, buffer, dst, 2 * number + 3)
        return SendingMPI(self, dst, (header, buffer), requests)

    def _irecv(self, src, tag, out):
        if self.bare:
            buffer = incoming(out.shape, out.dtype, library(out), out, self.job.direct)
            return ReceivingBare(self, src, out, buffer, self._pieces(self.mpi.Irecv, buffer, src, BARE))
        header = np.empty(HEADER_BYTES, np.uint8)
        receiving = ReceivingMPI(self, src, out, header, self.mpi.Irecv(header, src, 2 * (tag + 1)))
        self.job.posted.append(receiving)
        return receiving

    def sendrecv(self, x, dst, src, tag=0, out=None):
        """Send `x` to `dst` and receive from `src` at the same time; returns what was received."""
        if out is not None and library(x) == library(out) and array_namespace(x).may_share_memory(x, out):
            x = x.copy()                              # MPI may write `out` before it has read `x`
        return super().sendrecv(x, dst, src, tag, out)

    def _pieces(self, call, buffer, peer, tag):
        """Start `call` for each piece of a contiguous buffer."""
        if buffer.size <= self.job.limit:
            return [call(buffer, peer, tag)]
        flat = buffer.reshape(-1)
        return [call(flat[a:b], peer, tag) for a, b in pieces(flat.size, self.job.limit)]

    def _wait(self, requests, verb, peer):
        """Wait for all the MPI requests, and start payloads whose headers come in meanwhile."""
        began, posted, requests = time.perf_counter(), self.job.posted, list(requests)
        self.job.watchdog.waiting = lambda: self._words(verb, peer)
        while posted and requests:
            done = MPI.Request.Waitany(requests + [p.request for p in posted])
            if done < len(requests):
                requests.pop(done)
            else:
                posted.pop(done - len(requests)).announced()
        MPI.Request.Waitall(requests)
        self.job.watchdog.waiting = None
        if self.me.ledger is not None:
            self.me.ledger.record_time(self.me.rank, time.perf_counter() - began, self.name, self.me.phase, "wait")

    def native_all_reduce(self, x, op):
        """MPI_Allreduce in place on the C-contiguous host array `x`; op is MPI's name: SUM, PROD, MAX, MIN."""
        self.job.watchdog.waiting = lambda: f"for all ranks of {self.name} in MPI_Allreduce"
        flat = x.reshape(-1)
        for a, b in pieces(flat.size, self.job.limit):
            self.mpi.Allreduce(MPI.IN_PLACE, flat[a:b], getattr(MPI, op))
        self.job.watchdog.waiting = None

    def _words(self, verb, peer):
        call = f" in {describe(self.agreement)}" if self.agreement else ""
        frame = sys._current_frames().get(self.job.watchdog.thread_watched)
        return f"{verb} rank {self.ranks[peer]}{call} of {self.name}, at {location(frame)}"

    # -- groups -------------------------------------------------------------------------------------------------------
    def split(self, color, key=0, name=None):
        """Make a group of all ranks that give the same `color`, ordered by (key, rank); every rank must call it.

        color    a whole number, 0 or more, or None to belong to no group (then split returns None)
        """
        table = self.mpi.allgather((color, key))
        colors = sorted({c for c, _ in table if c is not None})
        group = self.mpi.Split(MPI.UNDEFINED if color is None else colors.index(color), 0)
        if color is None:
            return None
        members = sorted((k, r) for r, (c, k) in enumerate(table) if c == color)
        order = [r for _, r in members]
        ordered = group.Split(0, order.index(self.rank))              # keys may be anything that sorts
        group.Free()
        self.job.owned.append(ordered)
        return MPICommunicator(ordered, self.me, tuple(self.ranks[r] for r in order), name or f"{self.name}.split", self.job)


class SendingMPI(Request):
    """A message on its way out; keeps its buffers alive until MPI is done with them."""

    def __init__(self, comm, dst, buffers, requests):
        self.comm, self.dst, self.buffers, self.requests = comm, dst, buffers, requests

    def wait(self):
        """Block until the array may be changed again."""
        if self.requests:
            self.comm._wait(self.requests, "to be received by", self.dst)
            self.requests = self.buffers = None


class ReceivingBare(Request):
    """A payload without header on its way into a buffer."""

    def __init__(self, comm, src, out, buffer, requests):
        self.comm, self.src, self.out, self.buffer, self.requests = comm, src, out, buffer, requests

    def wait(self):
        """`out`, once filled."""
        if self.requests:
            self.comm._wait(self.requests, "for a message from", self.src)
            deliver(self.buffer, library(self.out), self.out)
            self.requests = self.buffer = None
        return self.out


class ReceivingMPI(Request):
    """A header on its way in, and then the payload that it announces."""

    def __init__(self, comm, src, out, header, request):
        self.comm, self.src, self.out, self.header, self.request = comm, src, out, header, request
        self.payload = None                           # MPI requests, once the header has come
        self.done = False

    def announced(self):
        """The header is here: check it, and start to receive the payload."""
        comm, src, job = self.comm, self.src, self.comm.job
        job.received[comm.ranks[src]] += 1
        dtype, shape, self.kind, number, agreement = decode(self.header)
        comm._check(agreement, src)
        if self.out is not None:
            receive_into(self.out, shape, dtype, src, comm.name)
        self.buffer = incoming(shape, dtype, self.kind, self.out, job.direct)
        self.payload = comm._pieces(comm.mpi.Irecv, self.buffer, src, 2 * number + 3) if self.buffer.size else []

    def wait(self):
        """The array: a new one, or `out` once filled."""
        if not self.done:
            if self.payload is None:
                self.comm.job.posted.remove(self)
                self.comm._wait([self.request], "for a message from", self.src)
                self.announced()
            self.comm._wait(self.payload, "for a message from", self.src)
            self.out = deliver(self.buffer, self.kind, self.out)
            self.done = True
        return self.out


class Job:
    """What all communicators of this process share."""

    def __init__(self, rendezvous):
        self.rendezvous = rendezvous
        self.limit = max_count()
        self.direct, _ = cuda_aware(MPI)              # may device arrays go without staging?
        self.watchdog = watchdog()
        self.posted = []                              # receives whose header has not been looked at yet
        self.owned = []                               # communicators to free at the end
        self.sent, self.received = Counter(), Counter()


@cache
def watchdog():
    """The one watchdog of this process; with it comes the promise that an uncaught exception ends the whole job."""
    world = MPI.COMM_WORLD

    def abort_on(kind, error, trace):
        text = "".join(traceback.format_exception(kind, error, trace))
        print(f"{text}rank {world.Get_rank()} of {world.Get_size()} failed: the job ends", file=sys.stderr, flush=True)
        world.Abort(1)

    if world.Get_size() > 1:                          # else the other ranks would wait for this one for ever
        sys.excepthook = abort_on
    return Watchdog(world.Get_rank(), world.Get_size(), lambda: world.Abort(1))


def run_mpi(program, size, args, ledger, network, rendezvous, gather, seed):
    """`run` under mpirun: see `launch.run`. Every rank gets all results (pickled), and the ledger of all ranks."""
    world = MPI.COMM_WORLD
    if size != world.Get_size():
        raise ValueError(f"size={size}, but mpirun started {world.Get_size()} ranks: run {world.Get_size()}, or mpirun -n {size}")
    if network is not None:
        raise ValueError("network=...: the virtual clock runs in the local world only; start without mpirun, or without network")
    job = Job(rendezvous)
    mine = None if ledger is None else Ledger(trace=ledger.trace is not None)
    mpi = world.Dup()
    job.owned.append(mpi)
    comm = MPICommunicator(mpi, Rank(world.Get_rank(), size, seed, mine), tuple(range(size)), "world", job)
    try:
        result = program(comm, *args)
    except Exception as error:
        error.add_note(f"(raised on rank {comm.rank} of {size})")
        raise
    job.watchdog.waiting = lambda: "for the other ranks to return from the program"
    counts = mpi.allgather((job.sent, job.received))
    if ledger is not None:
        for theirs in mpi.allgather(mine):
            ledger.merge(theirs)
    results = mpi.allgather(result) if gather else [result]
    job.watchdog.waiting = None
    for own in job.owned:
        own.Free()
    undelivered(counts)
    return results


def undelivered(counts):
    """UndeliveredMessageError, alike on every rank, when a rank did not receive all that was sent to it."""
    lines = [
        f"  rank {dst} did not receive {n} message{'s' * (n > 1)} of rank {src}"
        for src, (sent, _) in enumerate(counts) for dst in sorted(sent) if (n := sent[dst] - counts[dst][1][src])]
    if lines:
        raise UndeliveredMessageError("every rank has returned, but not every message was received:\n" + "\n".join(lines))
