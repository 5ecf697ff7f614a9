"""`run` under mpirun: what happens before and after the program, and what all communicators of a process share.

    all ranks call run     program(comm) on each     all have returned: compare what was sent and received, gather

MPI ends no job by itself: not when one rank raises while the others wait for it (then an uncaught exception must abort
them all), and not when all wait for each other (then the watchdog does).
"""

import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from functools import cache

from mpi4py import MPI

from refimpl.measure.ledger import Ledger
from refimpl.world.cuda_aware import cuda_aware
from refimpl.world.deadlock import undelivered_report
from refimpl.world.errors import UndeliveredMessageError
from refimpl.world.helper import Helper
from refimpl.world.mpi import MPICommunicator
from refimpl.world.rank import Rank
from refimpl.world.watchdog import Watchdog
from refimpl.world.wire import max_count

POLITE_SECONDS = 50e-6                                # between two looks at messages of a thread that does not spin


def run_mpi(program, size, args, ledger, network, rendezvous, gather, seed):
    """`run` under mpirun: see `launch.run`. Every rank gets all results (pickled), and the ledger of all ranks."""
    world = MPI.COMM_WORLD
    if size != world.Get_size():
        there = world.Get_size()
        raise ValueError(f"size={size}, but mpirun started {there} ranks: run {there}, or mpirun -n {size}")
    if network is not None:
        raise ValueError("network=...: the virtual clock runs in the local world only; "
                         "start without mpirun, or without network")
    job = Job(rendezvous)
    mine = None if ledger is None else Ledger()
    me = Rank(world.Get_rank(), size, seed, mine)
    comm = MPICommunicator(*job.communicators(world), me, tuple(range(size)), "world", job)
    try:
        result = program(comm, *args)
        job.finish_background(mine)
    except BaseException as error:
        error.add_note(f"(raised on rank {comm.rank} of {size})")
        if isinstance(error, SystemExit) and error.code and size > 1:
            sys.excepthook(type(error), error, error.__traceback__)         # Python would not call it for this one
        raise
    job.progress([world.Ibarrier()], lambda: "for the other ranks to return from the program")
    reports = comm.mpi.allgather((job.sent, job.received, mine, result if gather else None))
    left = undelivered(reports)
    job.end(delivered=not left)
    if left:
        raise UndeliveredMessageError(undelivered_report(left))
    if ledger is not None:
        for _, _, theirs, _ in reports:
            ledger.merge(theirs)
    return [theirs for *_, theirs in reports] if gather else [result]


def undelivered(reports):
    """[(sender, receiver, messages, "")] of what was sent and not received."""
    return [(src, dst, n, "") for src, (sent, *_) in enumerate(reports) for dst in sorted(sent)
            if (n := sent[dst] - reports[dst][1][src])]


class Job:
    """What all communicators of this process share, for the length of one run; its helper thread has one of its own.

    polite    sleep between looks at messages, instead of spinning: for work beside the rank's program
    """

    def __init__(self, rendezvous, polite=False):
        self.rendezvous, self.polite = rendezvous, polite
        self.helper = None
        self.limit = max_count()
        self.direct, _ = cuda_aware(MPI)              # may device arrays go without staging?
        self.watchdog = watchdog().of_this_thread()
        self.posted = []                              # receives whose header has not been looked at yet
        self.sending, self.receiving = set(), set()   # requests that nobody has waited for: MPI may use their buffers
        self.owned = []                               # communicators to free at the end
        self.sent, self.received = Counter(), Counter()

    @contextmanager
    def in_this_thread(self):
        """While the block runs, the thread that calls this is the one that waits for the job's messages."""
        self.watchdog = watchdog().of_this_thread()
        try:
            yield
        finally:
            watchdog().forget_this_thread()

    def own(self, mpi):
        """Keep a communicator, to free it at the end; returns it."""
        self.owned.append(mpi)
        return mpi

    def communicators(self, world):
        """Two of our own, one for work in the background: nobody else's messages get into ours. Waits for all ranks."""
        with self.watchdog.waits(lambda: "for the other ranks to call run"):
            return self.own(world.Dup()), self.own(world.Dup())

    # -- receives whose header has not come: whatever this thread waits for, somebody looks after them ----------------
    def progress(self, requests, words):
        """Wait for all the MPI requests, and start payloads whose headers come in meanwhile.

        words    a function that says what is waited for, should it take too long
        """
        outer, self.watchdog.waiting = self.watchdog.waiting, words          # `watchdog.waits` costs a microsecond
        try:
            if self.posted or self.polite:
                requests = list(requests)
            while requests and (self.posted or self.polite):
                done = self._any(requests + [receiving.request for receiving in self.posted])
                if done < len(requests):
                    requests.pop(done)
                else:
                    self.posted.pop(done - len(requests)).announced()
            MPI.Request.Waitall(requests)
        finally:
            self.watchdog.waiting = outer

    def _any(self, requests):
        """The index of an MPI request that is done, sooner or later."""
        if not self.polite:
            return MPI.Request.Waitany(requests)
        while True:
            done, found = MPI.Request.Testany(requests)
            if found:
                return done
            time.sleep(POLITE_SECONDS)

    def wait_for(self, done, words):
        """Wait for a threading.Event, and start payloads whose headers come in meanwhile."""
        with self.watchdog.waits(words):
            while not done.wait(POLITE_SECONDS if self.posted else None):
                self._look()

    @contextmanager
    def inside(self, words):
        """While this thread is inside MPI another one starts payloads whose headers come in, if any may."""
        with self.watchdog.waits(words):
            if not (self.posted and many_threads()):
                yield
                return
            done = threading.Event()
            other = threading.Thread(target=self._look_until, args=(done,), name="refimpl receives", daemon=True)
            other.start()
            try:
                yield
            finally:
                done.set()
                other.join()

    def _look_until(self, done):
        while self.posted and not done.wait(POLITE_SECONDS):
            self._look()

    def _look(self):
        """Start the payload of a header that has come in, if one has."""
        done, found = MPI.Request.Testany([receiving.request for receiving in self.posted])
        if found:
            self.posted.pop(done).announced()

    # -- work in the background ---------------------------------------------------------------------------------------
    def background(self):
        """The helper thread, begun when first asked for. ValueError where MPI is for one thread only."""
        if self.helper is None:
            if not many_threads():
                raise ValueError("work in the background needs an MPI that many threads may call at once "
                                 "(MPI_THREAD_MULTIPLE), and this one is not: call the collective without _start")
            self.helper = Helper(Job(self.rendezvous, polite=True))
        return self.helper

    def finish_background(self, ledger):
        """Wait for the work in the background, and take over what it counted."""
        if self.helper is not None:
            self.helper.finish()
            self.sent.update(self.helper.job.sent)
            self.received.update(self.helper.job.received)
            if ledger is not None and self.helper.ledger is not None:
                ledger.merge(self.helper.ledger)

    def end(self, delivered):
        """Leave nothing behind that MPI could still read or write; free the communicators."""
        if self.helper is not None:
            self.helper.job.end(delivered)
        for receiving in self.posted:
            receiving.request.Cancel()
            receiving.request.Wait()
        for receiving in self.receiving:
            MPI.Request.Waitall(receiving.payload)
        if delivered:
            for sending in list(self.sending):
                sending.wait()
        for own in self.owned:
            own.Free()


def many_threads():
    """Whether several threads of this process may call MPI at the same time."""
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


@cache
def watchdog():
    """The one watchdog of this process; with it comes the promise that an uncaught exception ends the whole job."""
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()

    def abort_on(kind, error, trace):
        text = "".join(traceback.format_exception(kind, error, trace))
        print(f"{text}rank {rank} of {size} failed: the job ends", file=sys.stderr, flush=True)
        world.Abort(1)

    if size > 1:                                      # else the other ranks would wait for this one for ever
        sys.excepthook = abort_on
    bell = world.Dup()

    def ring():                                       # in the watchdog's own thread
        for other in range(size * many_threads()):
            if other != rank:
                bell.Isend(b"", other)

    return Watchdog(rank, size, lambda: world.Abort(1), ring, lambda: many_threads() and bell.Iprobe())
