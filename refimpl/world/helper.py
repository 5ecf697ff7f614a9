"""Background work under MPI: one helper thread a process, that runs what it is given, in order.

MPI makes no progress behind one's back, so somebody has to call it: a thread, on communicators of its own. It waits
politely (look, sleep 50 microseconds): a blocking wait would spin, and steal the core from the computation that it is
meant to hide behind. It keeps its own ledger and counters, since two threads may not add to one number.
"""

import queue
import threading

from refimpl.arrays import same_device
from refimpl.measure.ledger import Ledger
from refimpl.world.communicator import Request


class Helper:
    """The thread, and what belongs to it: the `job` that its communicators share, a ledger."""

    def __init__(self, job):
        self.job, self.ledger, self.failed = job, None, []
        self.work, self.use_device = queue.SimpleQueue(), same_device()
        self.thread = threading.Thread(target=self._run, name="refimpl background", daemon=True)
        self.thread.start()

    def me(self, me):
        """The rank `me` as the thread sees it: with phases and a ledger of its own."""
        mine = me.in_background()
        if me.ledger is not None:
            mine.ledger = self.ledger = self.ledger or Ledger()
        return mine

    def start(self, twin, work, comm):
        """Queue `work(twin)`, counted under the present phase of `comm`; returns a `Request`."""
        request = Background(twin, work, comm)
        self.work.put(request)
        return request

    def finish(self):
        """Wait until all work is done, and end the thread; raises the first error that nobody has waited for."""
        self.work.put(None)
        self.thread.join()
        for request in self.failed:
            if not request.waited_for:
                raise request.error

    def _run(self):
        self.use_device()
        with self.job.in_this_thread():
            while (request := self.work.get()) is not None:
                request.run()
                if request.error is not None:
                    self.failed.append(request)


class Background(Request):
    """Work in the background of a rank."""

    def __init__(self, twin, work, comm):
        self.twin, self.work, self.comm, self.phase = twin, work, comm, comm.me.phase
        self.done = threading.Event()
        self.result = self.error = None
        self.waited_for = False

    def run(self):
        """In the helper thread: do the work, keep its result or its error."""
        self.twin.me.phase = self.phase
        try:
            self.result = self.work(self.twin)
        except BaseException as error:
            self.error = error
        self.work = None
        self.done.set()

    def wait(self):
        """What the work returned, when it is done, or the error that it raised."""
        self.comm.job.wait_for(self.done, lambda: "for its own work in the background")
        self.waited_for = True
        if self.error is not None:
            raise self.error
        return self.result
