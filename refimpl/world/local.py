"""N ranks in this process, one running at a time: the same run every time, exact deadlocks, virtual time.

`hub.py` decides who runs, `boxes.py` is where messages meet those who wait for them. A send copies, so that a later
change of the array cannot reach the receiver; a collective lends large arrays instead: the receiver adds straight from
the sender's memory, and the sender waits until that is done. Virtual time (`network.py`) depends only on what each rank
does, in its own order: never on who happened to run first, except where ranks share a NIC.
"""

from functools import partial

from refimpl.measure.ledger import Message
from refimpl.world.agreement import common
from refimpl.world.boxes import Background, Group, Receiving, Sending, Splitting
from refimpl.world.communicator import COLLECTIVE_TAG, Communicator
from refimpl.world.deadlock import undelivered_report
from refimpl.world.errors import UndeliveredMessageError
from refimpl.world.hub import Hub
from refimpl.world.network import Ports
from refimpl.world.rank import Rank

LENT_BYTES = 32 * 1024                                # smaller arrays are copied faster than two ranks switch


def run_local(program, size, args=(), ledger=None, network=None, rendezvous=False, seed=0):
    """`run` in this process: see `launch.run`."""
    world = LocalWorld(size, ledger, network, rendezvous)
    group = Group(world, tuple(range(size)), "world")
    tasks = []
    for rank in range(size):
        me = Rank(rank, size, seed, ledger)
        me.task = world.start(rank, partial(program, LocalCommunicator(group, rank, me), *args))
        tasks.append(me.task)
    world.run()
    if left := [found for group in world.groups for found in group.undelivered()]:
        raise UndeliveredMessageError(undelivered_report(left))
    return [task.result for task in tasks]


class LocalWorld(Hub):
    """What all ranks of one run share.

    rendezvous    a send returns only when the receiver has asked for the message; not where tasks share ports, since
                  a task that blocks comes later to a port, and blocking must not change the time
    network       `Network` for the virtual clock, or None
    """

    def __init__(self, size, ledger, network, rendezvous):
        super().__init__(size, clocked=network is not None)
        self.ledger, self.network = ledger, network
        self.shared_ports = bool(network and network.nics_per_node)       # does more than one task use a port?
        self.rendezvous = rendezvous and not self.shared_ports
        self.trace = ledger.trace if ledger is not None else None
        self.groups = []                              # all of them, to find what was never received
        self.leaving, self.arriving = (Ports(network), Ports(network)) if network else (None, None)

    def share_ports(self):
        """From now on ranks have work in the background, which uses their ports: nobody blocks in a send any more."""
        if self.network is not None and not self.shared_ports:
            self.shared_ports, self.rendezvous = True, False
            for message in [m for group in self.groups for box in group.boxes.values() for m in box.messages]:
                message.release()


class LocalCommunicator(Communicator):
    """A group of ranks of the local world, seen by one of them."""

    def __init__(self, group, rank, me):
        super().__init__(me, group.ranks, rank, group.name)
        self.group, self.world = group, group.world
        self.last = None                              # the latest task in the background

    @property
    def task(self):
        """The task that talks through this communicator: the rank's program, or its work in the background."""
        return self.me.task

    # -- messages -------------------------------------------------------------------------------------------------
    def _isend(self, x, dst, tag, lend=False):
        world = self.world
        if world.stopped is not None:
            raise world.stopped()
        message = Sending(self, x if lend else x.copy(), dst, tag, lend)
        if world.ledger is not None:
            call = self.agreement and self.agreement[0]
            world.ledger.record_message(self.me.rank, self.ranks[dst], x.nbytes, self.name, self.me.phase, call)
        if world.network is not None:
            self._depart(message)
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

    def sendrecv(self, x, dst, src, tag=0, out=None):
        """Send `x` to `dst` and receive from `src` at the same time; returns what was received."""
        if out is None or not self._lends(x):
            return super().sendrecv(x, dst, src, tag, out)
        lent = self._isend(x, dst, COLLECTIVE_TAG, lend=True)
        self._irecv(src, COLLECTIVE_TAG, out).wait()
        lent.wait()
        return out

    def sendrecv_reduce(self, x, dst, src, own, combine, out):
        """Send `x` to `dst`; out = combine(own, what `src` sends), straight from the sender's array."""
        if not self._lends(x):
            return super().sendrecv_reduce(x, dst, src, own, combine, out)
        lent = self._isend(x, dst, COLLECTIVE_TAG, lend=True)
        self._irecv(src, COLLECTIVE_TAG, None).combine(own, combine, out)
        lent.wait()
        return out

    def _lends(self, x):
        """Whether to lend x, or send a copy: each sender decides for itself, receivers take either.

        Only in a collective, where both sides are at it; and not on a virtual clock, since a rank that waits until its
        array was read may come too late to a port.
        """
        return x.nbytes >= LENT_BYTES and self.agreement is not None and self.world.network is None

    def _agree(self, mine):
        """Compare with the ranks that are in this call already: a disagreement is found by the first who can know."""
        calls, number = self.group.calls, mine[1]
        theirs, rank, to_come = calls.get(number) or (mine, self.rank, self.size)
        agreement = common(theirs, mine) or self._disagree(mine, rank, theirs)
        if to_come > 1:
            calls[number] = agreement, rank, to_come - 1
        else:
            calls.pop(number, None)
        return agreement

    # -- virtual time -------------------------------------------------------------------------------------------------
    def _depart(self, message):
        """Find when the message leaves: as soon as the sender's port is free. The sender's clock does not move."""
        world, network = self.world, self.world.network
        src, dst = self.me.rank, self.ranks[message.dst]
        crosses = network.crosses(src, dst)
        if world.shared_ports:                        # first come, first served
            self._let_earlier_tasks_run(self.task.clock)
        link = network.inter if crosses else network.intra
        message.duration = message.array.nbytes * link.beta
        message.start = world.leaving.reserve(src, crosses, self.task.clock, message.duration)
        message.head = message.start + link.alpha

    def _arrive(self, message):
        """Find when the message has arrived at this rank's port, and wait until then."""
        world, task, me = self.world, self.task, self.me
        src, arrival = message.comm.me.rank, 0.0
        if world.network is not None:
            crosses = world.network.crosses(src, me.rank)
            if world.shared_ports:
                self._let_earlier_tasks_run(max(task.clock, message.head))
            arrival = world.arriving.reserve(me.rank, crosses, message.head, message.duration) + message.duration
            if arrival > task.clock:
                if world.ledger is not None:
                    waited = arrival - task.clock
                    world.ledger.record_time(me.rank, waited, self.name, me.phase, "wait", task.clock)
                task.clock = arrival
        if world.trace is not None:
            nbytes, call = message.array.nbytes, message.agreement and message.agreement[0]
            world.trace.append(Message(src, me.rank, nbytes, self.name, message.phase, call, message.start, arrival))

    def _let_earlier_tasks_run(self, time):
        """Give way to tasks whose clock is before `time`: they reach a shared port first."""
        world, task = self.world, self.task
        while world.ready and world.ready[0][0] < time:
            world.wake(task, time)
            world.block(task, None)

    @property
    def clock(self):
        """Seconds on this rank's virtual clock; 0 without a network."""
        return self.task.clock

    def compute(self, flops, kind="compute"):
        """Declare `flops` operations: counted by the ledger; on the virtual clock they take flops / network.flops."""
        super().compute(flops, kind)
        network = self.world.network
        if network is not None and network.flops is not None:
            self.elapse(flops / network.flops, kind)

    def elapse(self, seconds, kind="elapse"):
        """Let `seconds` pass on the virtual clock; without a network nothing happens."""
        super().elapse(seconds, kind)
        if self.world.network is None:
            return
        if self.world.ledger is not None:
            self.world.ledger.record_time(self.me.rank, seconds, None, self.me.phase, kind, self.task.clock)
        self.task.clock += float(seconds)

    # -- background ---------------------------------------------------------------------------------------------------
    def _twin(self):
        group = self.group
        group.twin = group.twin or Group(self.world, self.ranks, self.name)
        return LocalCommunicator(group.twin, self.rank, self.me.in_background())

    def _background(self, work):
        world, twin, phase, before = self.world, self.twin, self.me.phase, self.last
        world.share_ports()

        def program():
            if before is not None:
                task.join(before)
            twin.me.task, twin.me.phase = task, phase
            return work(twin)

        task = self.last = world.start(self.me.rank, program, self.task.clock, background=True)
        return Background(self, task)

    # -- groups -------------------------------------------------------------------------------------------------------
    def _node(self, rank):
        return self.world.network.node(self.ranks[rank]) if self.world.network is not None else 0

    def _split(self, color, key, name):
        group = self.group
        split = group.split = group.split or Splitting(group)
        split.answers[self.rank] = (color, key)
        if len(split.answers) < self.size:
            split.waiting.append(self.task)
            self.world.block(self.task, split)
        else:
            group.split = None
            split.finish(name)
        if color is None:
            return None
        group, ranks = split.groups[color]
        return LocalCommunicator(group, ranks.index(self.rank), self.me)
