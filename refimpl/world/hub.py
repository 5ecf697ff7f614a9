"""Who runs: every rank is a greenlet, one runs at a time, and the order is the same on every run.

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
        self.tasks = [Task(self, rank) for rank in range(size)]
        self.clocked = clocked
        self.ready = [] if clocked else deque()       # heap of (clock, order, task), or a queue of tasks
        self.woken = 0
        self.failure = None                           # the first exception of a rank
        self.stopped = None                           # makes the exception for a rank that must not go on

    def run(self, programs):
        """Run programs[r]() on rank r, for all ranks; the list of their results.

        Raises the first exception of a rank, with its number noted, or `DeadlockError`.
        """
        self.greenlet = getcurrent()
        try:
            for task, program in zip(self.tasks, programs, strict=True):
                task.greenlet = greenlet(task.body)
                task.greenlet.gr_context = copy_context()         # a rank sees np.errstate(...) around `run`
                task.greenlet.switch(program)         # park each from here: one that starts inside another rank
                self.wake(task)                       # would inherit its recursion depth
            while self.ready and self.failure is None:
                self.next().greenlet.switch()
            if self.failure is not None:
                raise self.failure
            if not all(task.finished for task in self.tasks):
                raise DeadlockError(deadlock_report(self.tasks))
            return [task.result for task in self.tasks]
        finally:
            self.stopped = Abandoned
            for task in self.tasks:
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
        if self.ready and self.failure is None:
            self.next().greenlet.switch()             # straight to the next rank, not by way of the hub
        else:
            self.greenlet.switch()
        task.waiting = None


class Task:
    """One rank's greenlet: its program, its virtual clock, what it waits for."""

    def __init__(self, hub, rank):
        self.hub, self.rank, self.clock = hub, rank, 0.0
        self.greenlet = self.result = self.waiting = None
        self.finished = False

    def body(self, program):
        """Park; then run the program and keep its result, or its exception with the rank's number."""
        try:
            self.hub.greenlet.switch()
            self.result = program()
            self.finished = True
        except Abandoned:
            pass
        except BaseException as error:                # Ctrl-C, too, lands in the rank that runs
            if self.hub.failure is None and self.hub.stopped is None:
                error.add_note(f"(raised on rank {self.rank} of {len(self.hub.tasks)})")
                self.hub.failure = error


def ended():
    """The exception for somebody who keeps a communicator longer than its run."""
    return WorldError("this communicator belongs to a run that has ended: use the one that `run` gives to the program")
