"""The messages of one rank of a pipeline: receives posted one action ahead, sends waited for once they have arrived.

    rank 0    F3 --isend--.            ...            .--> B3: what rank 1 sent after it took F3's message is here,
    rank 1                `--> 1F3     ...     1B3 --'     so that message has arrived: its wait returns at once

Waiting for a send right away would hang where two neighbours send to each other, on any network whose send returns only
when it is received (case A02). Never waiting would keep every array until the step's end. But everybody knows the whole
schedule, so a rank knows what its neighbour had done when it sent something: that is when a send is waited for.

Data is called (stage, "F", k): what the forward of this stage and micro-batch starts from; or (stage, "I", k): the
gradient that its backward, I or B, starts from.
"""

from collections import deque

FORWARD, BACKWARD = "pp forward", "pp backward"          # the ledger's names for the two kinds of messages
TAGS = 2**20


def tag(schedule, data):
    """The message's tag: its own in this step, so that a message is never taken for another, whatever went wrong.

    Where tags do not suffice, the micro-batch's number: it is enough for a schedule that can run, since of one
    micro-batch each message is sent only after the one before it was received.
    """
    stage, kind, k = data
    S = len(schedule.placement)
    return 2 * (k * S + stage) + (kind == "I") if 2 * schedule.microbatches * S <= TAGS else k


class Mail:
    """What the rank of `comm` sends and receives in one run of `schedule`."""

    def __init__(self, schedule, comm):
        self.schedule, self.comm = schedule, comm
        self.here = {}                                   # data -> array that stays on this rank
        self.arriving = {}                               # data -> request, of the receives that are posted
        self.leaving = {}                                # rank -> queue of (position that takes it, request)

    def post(self, data):
        """Start receiving, if the data comes from another rank."""
        source = self._source(data)
        if source is not None and source != self.comm.rank:
            self.arriving[data] = self.comm.irecv(source, tag(self.schedule, data))

    def take(self, data):
        """The array, when it is here."""
        if data in self.here:
            return self.here.pop(data)
        array = self.arriving.pop(data).wait()
        self._settle(self._source(data), self._position(self._origin(data)))
        return array

    def hand_on(self, array, data):
        """Send the array to the rank that needs it, or keep it for another stage of this rank's own."""
        stage, kind, _ = data
        receiver = self.schedule.placement[stage]
        if receiver == self.comm.rank:
            self.here[data] = array
            return
        with self.comm.phase(FORWARD if kind == "F" else BACKWARD):
            request = self.comm.isend(array, receiver, tag(self.schedule, data))
        self.leaving.setdefault(receiver, deque()).append((self._position(data), request))

    def close(self):
        """Wait for the sends that are left: whoever gets them is on the way to taking them."""
        for sends in self.leaving.values():
            while sends:
                sends.popleft()[1].wait()

    def _settle(self, rank, position):
        """`rank` has come to `position` in its list: wait for the sends that it has taken by then."""
        sends = self.leaving.get(rank, ())
        while sends and sends[0][0] <= position:
            sends.popleft()[1].wait()

    def _origin(self, data):
        """Whose result the data is, in the same way of naming; None for the model's input and the loss's gradient."""
        stage, kind, k = data
        stage += -1 if kind == "F" else 1
        return (stage, kind, k) if 0 <= stage < len(self.schedule.placement) else None

    def _source(self, data):
        """The rank that the data comes from, or None."""
        origin = self._origin(data)
        return None if origin is None else self.schedule.placement[origin[0]]

    def _position(self, data):
        """Where in its rank's list the action stands that starts from `data`."""
        stage, _, k = data
        where = self.schedule.where
        return where[data if data in where else (stage, "B", k)][1]
