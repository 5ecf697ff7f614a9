"""Who runs: every rank is a greenlet, one runs at a time, and the order is the same on every run. Work that a rank does
in the background is another greenlet of it.

    rank 0   =====block                     ====block
    rank 1              ======block             .
    rank 2                         =====wake(0)        a rank runs until it has to wait; then the next one goes on

Next is the runnable rank with the smallest virtual clock; without clocks, the one that has been runnable longest. No
locks, no threads, no chance. When no rank is runnable and one is not finished, that is a deadlock, exactly.
"""

from collections import deque
from contextvars import copy_context
from heapq import heappop, heappush

from greenlet import getcurrent, greenlet

from refimpl.world.deadlock import deadlock_report
from refimpl.world.errors import DeadlockError, WorldError


class Abandoned(BaseException):
    """Thrown into ranks that wait when the world stops, so that their `finally` clauses run."""


class Hub:
    """Owns the ranks' greenlets and decides who runs.

    size       number of ranks
    clocked    whether `Task.clock` decides who goes next
    """

    def __init__(self, size, clocked):
        self.size, self.clocked = size, clocked
        self.unfinished = {}                          # tasks, in the order of their start
        self.greenlet = getcurrent()
        self.ready = [] if clocked else deque()       # heap of (clock, order, task), or a queue of tasks
        self.woken = 0
        self.failure = None                           # the first exception of a rank
        self.stopped = None                           # makes the exception for a rank that must not go on

    def start(self, rank, program, clock=0.0, background=False):
        """Add a task of `rank` that will run `program()`, at `clock` at the earliest."""
        task = Task(self, rank, program, clock, background)
        self.unfinished[task] = None
        self.wake(task)
        return task

    def run(self):
        """Run all tasks to their ends. Raises the first exception of a task, its rank noted, or `DeadlockError`."""
        try:
            task = None                               # that a blocked one wants to begin: see `block`
            while (task or self.ready) and self.failure is None:
                task = (task or self.next()).greenlet.switch()
            if self.failure is not None:
                raise self.failure
            if self.unfinished:
                raise DeadlockError(deadlock_report(list(self.unfinished), self.size))
        finally:
            self.stopped = Abandoned
            for task in list(self.unfinished):
                if task.greenlet:                     # begun, and not at its end
                    task.greenlet.throw(Abandoned)
            self.stopped = ended

    def wake(self, task, time=None):
        """Make `task` runnable: at its own clock, or at `time`, if its turn is to come then."""
        if self.clocked:
            self.woken += 1
            heappush(self.ready, (task.clock if time is None else time, self.woken, task))
        else:
            self.ready.append(task)

    def next(self):
        """The task whose turn it is; no longer among the runnable ones."""
        return heappop(self.ready)[2] if self.clocked else self.ready.popleft()

    def block(self, task, waiting):
        """Let others run until somebody wakes `task`; `waiting` can say what for, should nobody (see deadlock.py)."""
        if self.stopped is not None:
            raise self.stopped()
        if getcurrent() is not task.greenlet:
            raise WorldError(f"rank {task.rank}'s communicator is used outside its rank: "
                             "inside a run, use the one that it gives to the program")
        task.waiting = waiting
        following = self.next() if self.ready and self.failure is None else None
        if following is not None and following.greenlet:
            following.greenlet.switch()               # straight to the next task, not by way of the hub, which must
        else:                                         # begin the others: one that begins inside another greenlet
            self.greenlet.switch(following)           # inherits its recursion depth
        task.waiting = None


class Task:
    """One greenlet of a rank: its program, its virtual clock, what it waits for."""

    def __init__(self, hub, rank, program, clock, background):
        self.hub, self.rank, self.program, self.clock, self.background = hub, rank, program, clock, background
        self.result = self.waiting = None
        self.finished = False
        self.waiters = []                             # tasks that wait for this one to finish
        self.greenlet = greenlet(self.body, hub.greenlet)
        self.greenlet.gr_context = copy_context()     # a rank sees np.errstate(...) around `run`

    def body(self):
        """Run the program and keep its result, or its exception with the rank's number."""
        hub = self.hub
        try:
            self.result = self.program()
        except Abandoned:
            return
        except BaseException as error:                # Ctrl-C, too, lands in the task that runs
            if hub.failure is None and hub.stopped is None:
                error.add_note(f"(raised on rank {self.rank} of {hub.size})")
                hub.failure = error
            return
        self.finished, self.program = True, None
        del hub.unfinished[self]
        for task in self.waiters:
            hub.wake(task)

    def join(self, other):
        """Wait until `other`, of the same rank, is finished, on the clock, too; its result."""
        if not other.finished:
            other.waiters.append(self)
            self.hub.block(self, other)
        self.clock = max(self.clock, other.clock)
        return other.result

    def what(self):
        """What a task that waits for this one waits for: see deadlock.py."""
        return "for its own work in the background", [], ""


def ended():
    """The exception for somebody who keeps a communicator longer than its run."""
    return WorldError("this communicator belongs to a run that has ended: use the one that `run` gives to the program")
