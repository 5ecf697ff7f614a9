"""Boxes: where the messages of the local world meet those who wait for them. One for each (sender, receiver, tag).

    isend   puts a copy of the array into the box, or into the hands of who waits there
    irecv   takes the oldest message of the box, or leaves a ticket in it
    wait    blocks while the ticket is empty (rendezvous: while the message is not taken)

A message may carry the sender's own array instead of a copy: then its sender waits until the array has been read.
"""

from collections import deque

from refimpl.world.agreement import describe
from refimpl.world.communicator import COLLECTIVE_TAG, Request
from refimpl.world.payload import library, misfit


class Group:
    """What the communicators of one group share: the boxes, the collectives and splits under way."""

    def __init__(self, world, ranks, name):
        self.world, self.ranks, self.name = world, ranks, name
        self.boxes = {}                               # (src, dst, tag) -> Box
        self.calls = {}                               # number of a collective -> [agreement, a rank, ranks to come]
        self.split = None
        self.twin = None                              # the group once more, for work in the background
        world.groups.append(self)

    def box(self, src, dst, tag):
        """The box of messages from `src` to `dst` with `tag`, made when first asked for."""
        key = (src, dst, tag)
        box = self.boxes.get(key)
        if box is None:
            box = self.boxes[key] = Box()
        return box

    def undelivered(self):
        """[(sender, receiver, messages, more words)] of what was sent and not received."""
        place = lambda tag: " in a collective" if tag == COLLECTIVE_TAG else f", tag {tag},"
        return [(self.ranks[src], self.ranks[dst], box.open, f"{place(tag)} of {self.name}")
                for (src, dst, tag), box in self.boxes.items() if box.open]


class Box:
    """Messages on their way, or tickets of who waits for them: never both."""

    __slots__ = ("messages", "open", "tickets")

    def __init__(self):
        self.messages, self.tickets = deque(), deque()
        self.open = 0                                 # sent, and not yet handed to the program


class Sending(Request):
    """A message and its sender's request in one."""

    waits = False
    start = head = duration = 0.0                     # on the virtual clock: see network.py

    def __init__(self, comm, array, dst, tag, lent):
        self.comm, self.array, self.dst, self.tag, self.lent = comm, array, dst, tag, lent
        self.agreement, self.phase = comm.agreement, comm.me.phase
        self.pending = lent or comm.world.rendezvous  # must the sender wait before it may change the array?

    def wait(self):
        """Block until a lent array was read; with rendezvous, until a receive was posted. Else return at once."""
        if self.pending:
            self.waits = True
            self.comm.world.block(self.comm.task, self)

    def release(self):
        """The sender need not wait any longer."""
        self.pending = False
        if self.waits:
            self.waits = False
            self.comm.world.wake(self.comm.task)

    def what(self):
        """See deadlock.py."""
        return "to be received by", [self.comm.ranks[self.dst]], where(self)


class Receiving(Request):
    """A ticket for the next message of a box."""

    message = None
    blocked = done = False

    def __init__(self, comm, box, src, tag, out):
        self.comm, self.box, self.src, self.tag, self.out = comm, box, src, tag, out

    def take(self, message):
        """Match the ticket with `message`; wake whoever waits for that."""
        self.message = message
        if message.pending and not message.lent:
            message.release()
        if self.blocked:
            self.comm.world.wake(self.comm.task)

    def wait(self):
        """The array, when it is here; moves the clock to the time at which it arrives."""
        if self.done:
            return self.out
        message, out = self.message or self._blocked(), self.out
        array = message.array
        self.comm._check(message.agreement, self.src)
        if out is None:
            self.out = array.copy() if message.lent else array
        elif trouble := misfit(out, array.shape, array.dtype, library(array), self.src, self.comm.name):
            raise ValueError(trouble)
        else:
            out[...] = array
        self._read(message)
        return self.out

    def combine(self, own, function, out):
        """In place of `wait`: function(own, the array) into `out`, straight from the memory in which the array lies."""
        message = self.message or self._blocked()
        self.comm._check(message.agreement, self.src)
        function(own, message.array, out=out)
        self._read(message)

    def _blocked(self):
        """Block until the message is here."""
        self.blocked = True
        self.comm.world.block(self.comm.task, self)
        return self.message

    def _read(self, message):
        """The array has been read: who lent it may go on."""
        if message.lent:
            message.release()
        self.done = True
        self.box.open -= 1
        self.comm._arrive(message)

    def what(self):
        """See deadlock.py."""
        return "for a message from", [self.comm.ranks[self.src]], where(self)


class Background(Request):
    """Work in the background of a rank."""

    def __init__(self, comm, task):
        self.comm, self.task = comm, task

    def wait(self):
        """What the work returned, when it is done; moves the rank's clock to that time."""
        return self.comm.task.join(self.task)


class Splitting:
    """A split under way: what the ranks said so far, and the groups once all have."""

    def __init__(self, group):
        self.group, self.answers, self.waiting, self.groups = group, {}, [], {}

    def finish(self, name):
        """All ranks are here: make the groups, wake the ranks. groups: color -> (group, ranks in the old group)"""
        members = {}
        for rank, (color, key) in self.answers.items():
            members.setdefault(color, []).append((key, rank))
        for color in [c for c in members if c is not None]:
            ranks = [rank for _, rank in sorted(members[color])]
            world_ranks = tuple(self.group.ranks[r] for r in ranks)
            self.groups[color] = Group(self.group.world, world_ranks, name), ranks
        for task in self.waiting:
            self.group.world.wake(task)

    def what(self):
        """See deadlock.py."""
        missing = [world_rank for rank, world_rank in enumerate(self.group.ranks) if rank not in self.answers]
        return "for", missing, f"in split of {self.group.name}"


def where(request):
    """Words for the message that a request waits for: "tag 7, of tp"."""
    comm, tag = request.comm, request.tag
    return f"tag {tag}, of {comm.name}" if tag != COLLECTIVE_TAG else f"in {describe(comm.agreement)} of {comm.name}"
