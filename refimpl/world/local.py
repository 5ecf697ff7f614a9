"""N ranks in this process, one running at a time: the same run every time, exact deadlocks, virtual time.

Each rank is a greenlet. It runs until it has to wait for a message; then the runnable rank with the smallest virtual
clock goes on (without a network: the one that has been runnable longest). No locks, no threads, no chance.

    isend   puts a copy of the array into the box (sender, receiver, tag), or into the hands of who waits there
    irecv   takes the oldest message of the box, or leaves a ticket in it
    wait    blocks while the ticket is empty

When nobody is runnable and somebody is not finished, that is a deadlock, exactly, and the report can say who waits for
whom. Virtual time depends only on what each rank does, in its own order: see `network.py`.
"""

import heapq
from collections import deque

from greenlet import getcurrent, greenlet

from refimpl.measure.ledger import Message as TracedMessage
from refimpl.world.communicator import Communicator, Rank, Request, receive_into
from refimpl.world.deadlock import deadlock_report, undelivered_report
from refimpl.world.errors import DeadlockError, UndeliveredMessageError
from refimpl.world.network import Ports


class Abandoned(BaseException):
    """Thrown into ranks that wait when the world stops, so that their `finally` clauses run."""


class LocalWorld:
    """The hub: owns the ranks' greenlets and decides who runs.

    rendezvous    a send returns only when the receiver has asked for the message
    network       `Network` for the virtual clock, or None
    """

    def __init__(self, size, ledger=None, network=None, rendezvous=False, seed=0):
        self.size, self.ledger, self.network, self.rendezvous = size, ledger, network, rendezvous
        self.ready, self.pushed = [], 0               # heap of (clock, order, task)
        self.failure = None                           # the first exception of a rank
        self.stopped = False
        self.groups = []                              # all of them, to find what was never received
        self.leaving, self.arriving = (Ports(network), Ports(network)) if network else (None, None)
        self.tasks = [Task(self, Rank(r, size, seed, ledger)) for r in range(size)]

    def run(self, program, args):
        """Run `program(comm, *args)` on every rank; the list of results, in rank order.

        Raises the first exception of a rank (with its number), `DeadlockError` or `UndeliveredMessageError`.
        """
        self.hub = getcurrent()
        group = Group(self, tuple(range(self.size)), "world")
        try:
            for task in self.tasks:                   # park each from here: one that starts inside another rank
                comm = LocalCommunicator(group, task.me.rank, task)           # would inherit its recursion depth
                task.greenlet = greenlet(task.body)
                task.greenlet.switch(program, comm, args)
                self.wake(task)
            while self.ready and self.failure is None:
                heapq.heappop(self.ready)[2].greenlet.switch()
            if self.failure is not None:
                raise self.failure
            if any(not task.finished for task in self.tasks):
                raise DeadlockError(deadlock_report(self.tasks))
            if left := undelivered_report(self.groups):
                raise UndeliveredMessageError(left)
            return [task.result for task in self.tasks]
        finally:
            self.stopped = True
            for task in self.tasks:
                if task.greenlet is not None and not task.greenlet.dead:
                    task.greenlet.throw(Abandoned)

    def wake(self, task):
        """Make `task` runnable."""
        self.pushed += 1
        heapq.heappush(self.ready, (task.clock, self.pushed, task))

    def block(self, task, *waiting):
        """Let others run until somebody wakes `task`; `waiting` says what for, should nobody."""
        if self.stopped:
            raise Abandoned
        task.waiting = waiting
        if self.ready and self.failure is None:
            heapq.heappop(self.ready)[2].greenlet.switch()     # straight to the next rank, not through the hub
        else:
            self.hub.switch()
        task.waiting = None


class Task:
    """One greenlet: a rank's program, its clock, and what it waits for."""

    def __init__(self, world, me):
        self.world, self.me, self.clock = world, me, 0.0
        self.greenlet = self.result = self.waiting = None
        self.finished = False

    def body(self, program, comm, args):
        """Park; then run the program and keep its result, or its exception with the rank's number."""
        try:
            self.world.hub.switch()
            self.result = program(comm, *args)
            self.finished = True
        except Abandoned:
            pass
        except BaseException as error:                # Ctrl-C, too, lands in the rank that runs
            if self.world.failure is None and not self.world.stopped:
                error.add_note(f"(raised on rank {self.me.rank} of {self.world.size})")
                self.world.failure = error

    def __lt__(self, other):                          # never asked: the order in which tasks were woken is unique
        return self.me.rank < other.me.rank


class Group:
    """What the communicators of one group share: the boxes, and the splits under way."""

    def __init__(self, world, ranks, name):
        self.world, self.ranks, self.name = world, ranks, name
        self.boxes, self.splits = {}, {}
        world.groups.append(self)

    def box(self, src, dst, tag):
        """The box of messages from `src` to `dst` with `tag`, made when first asked for."""
        key = (src, dst, tag)
        box = self.boxes.get(key)
        if box is None:
            box = self.boxes[key] = Box()
        return box


class Box:
    """Messages on their way, or tickets of who waits for them: never both."""

    __slots__ = ("messages", "tickets", "open")

    def __init__(self):
        self.messages, self.tickets = deque(), deque()
        self.open = 0                                 # sent, and not yet handed to the program


class Sending(Request):
    """A message and its sender's request in one."""

    __slots__ = ("agreement", "array", "duration", "head", "record", "sender", "start", "taken", "waits")

    def __init__(self, array, sender, agreement):
        self.array, self.sender, self.agreement = array, sender, agreement
        self.taken = self.waits = False
        self.record = None
        self.start = self.head = self.duration = 0.0

    def wait(self):
        """Rendezvous: block until a receive was posted for it. Else return at once."""
        world = self.sender.task.world
        if world.rendezvous and not self.taken:
            self.waits = True
            world.block(self.sender.task, "send", *self.record)


class Receiving(Request):
    """A ticket for the next message of a box."""

    __slots__ = ("blocked", "box", "comm", "done", "message", "out", "src", "tag")

    def __init__(self, comm, box, src, tag, out):
        self.comm, self.box, self.src, self.tag, self.out = comm, box, src, tag, out
        self.message, self.blocked, self.done = None, False, False

    def take(self, message):
        """Match the ticket with `message`; wake whoever waits for that."""
        self.message = message
        message.taken = True
        world = self.comm.task.world
        if message.waits:
            world.wake(message.sender.task)
        if self.blocked:
            world.wake(self.comm.task)

    def wait(self):
        """The array, when it is here; moves the clock to the time at which it arrives."""
        if self.done:
            return self.out
        comm = self.comm
        if self.message is None:
            self.blocked = True
            comm.task.world.block(comm.task, "recv", comm, self.src, self.tag)
        message, self.message = self.message, None
        self.box.open -= 1
        comm._arrive(message, self.src)
        comm._check(message.agreement, self.src)
        if self.out is None:
            self.out = message.array
        else:
            receive_into(self.out, message.array.shape, message.array.dtype, self.src, comm.name)
            self.out[...] = message.array
        self.done = True
        return self.out


class LocalCommunicator(Communicator):
    """A group of ranks of the local world, seen by one of them."""

    def __init__(self, group, rank, task):
        super().__init__(task.me, group.ranks, rank, group.name)
        self.group, self.task = group, task
        self._splits = 0

    # -- messages -------------------------------------------------------------------------------------------------
    def _isend(self, x, dst, tag):
        world = self.task.world
        if world.stopped:
            raise Abandoned
        message = Sending(x.copy(order="C"), self, self.agreement)
        message.record = (self, dst, tag)
        if world.ledger is not None:
            self._record(x.nbytes, dst)
        if world.network is not None:
            self._depart(message, x.nbytes, dst)
        box = self.group.box(self.rank, dst, tag)
        box.open += 1
        if box.tickets:
            box.tickets.popleft().take(message)
        else:
            box.messages.append(message)
        return message

    def _irecv(self, src, tag, out):
        box = self.group.box(src, self.rank, tag)
        ticket = Receiving(self, box, src, tag, out)
        if box.messages:
            ticket.take(box.messages.popleft())
        else:
            box.tickets.append(ticket)
        return ticket

    def _record(self, nbytes, dst):
        call = self.agreement and self.agreement[0]
        self.me.ledger.record_message(self.me.rank, self.ranks[dst], nbytes, self.name, self.me.phase, call)

    # -- virtual time -------------------------------------------------------------------------------------------------
    def _depart(self, message, nbytes, dst):
        """Find when the message leaves: as soon as the sender's port is free. The sender's clock does not move."""
        world, src, dst = self.task.world, self.me.rank, self.ranks[dst]
        network = world.network
        crosses = network.crosses(src, dst)
        if crosses and network.nics_per_node:         # a port that others share: first come, first served
            self._let_earlier_ranks_run()
        link = network.link(src, dst)
        message.duration = nbytes * link.beta
        message.start = world.leaving.reserve(src, crosses, self.task.clock, message.duration)
        message.head = message.start + link.alpha

    def _arrive(self, message, src):
        """Find when the message has arrived at this rank's port, and wait until then."""
        task, world = self.task, self.task.world
        if world.network is None:
            arrival = 0.0
        else:
            me, sender = self.me.rank, self.ranks[src]
            crosses = world.network.crosses(sender, me)
            if crosses and world.network.nics_per_node:
                self._let_earlier_ranks_run()
            arrival = world.arriving.reserve(me, crosses, message.head, message.duration) + message.duration
            if arrival > task.clock:
                if world.ledger is not None:
                    world.ledger.record_time(me, arrival - task.clock, self.name, self.me.phase, "wait")
                task.clock = arrival
        if world.ledger is not None and world.ledger.trace is not None:
            sender = message.sender
            world.ledger.trace.append(
                TracedMessage(self.ranks[src], self.me.rank, message.array.nbytes, self.name, sender.me.phase,
                              message.agreement and message.agreement[0], message.start, arrival))

    def _let_earlier_ranks_run(self):
        """Give way to ranks whose clock is behind: they reach a shared port first."""
        world, task = self.task.world, self.task
        while world.ready and world.ready[0][0] < task.clock:
            world.wake(task)
            world.block(task, "turn")

    @property
    def clock(self):
        """Seconds on this rank's virtual clock; 0 without a network."""
        return self.task.clock

    def compute(self, flops, kind="compute"):
        """Declare `flops` operations: counted by the ledger; on the virtual clock they take flops / network.flops."""
        super().compute(flops, kind)
        network = self.task.world.network
        if network is not None and network.flops is not None:
            self.elapse(flops / network.flops, kind)

    def elapse(self, seconds, kind="elapse"):
        """Let `seconds` pass on the virtual clock; without a network nothing happens."""
        super().elapse(seconds, kind)
        world = self.task.world
        if world.network is None:
            return
        self.task.clock += seconds
        if world.ledger is not None:
            world.ledger.record_time(self.me.rank, seconds, None, self.me.phase, kind)

    # -- groups -------------------------------------------------------------------------------------------------------
    def split(self, color, key=0, name=None):
        """Make a group of all ranks that give the same `color`, ordered by (key, rank); every rank must call it.

        color    a whole number, or None to belong to no group (then split returns None)
        """
        number, self._splits = self._splits, self._splits + 1
        answers, waiting, groups = self.group.splits.setdefault(number, ({}, [], {}))
        answers[self.rank] = (color, key)
        if len(answers) < self.size:
            waiting.append(self.task)
            self.task.world.block(self.task, "split", self)
        else:                                          # the last one here makes the groups
            del self.group.splits[number]
            for chosen in dict.fromkeys(c for c, _ in answers.values() if c is not None):
                members = sorted((k, r) for r, (c, k) in answers.items() if c == chosen)
                ranks = [r for _, r in members]
                groups[chosen] = (Group(self.task.world, tuple(self.ranks[r] for r in ranks), name or f"{self.name}.split"), ranks)
            for task in waiting:
                self.task.world.wake(task)
        if color is None:
            return None
        group, ranks = groups[color]
        return LocalCommunicator(group, ranks.index(self.rank), self.task)
