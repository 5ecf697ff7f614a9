"""The ledger: who sent what to whom, in which phase, and what the time went into.

Every message is counted where it is sent: its payload bytes, not its header. Sums are kept per (sender, receiver,
group, phase, collective), so that a run of millions of messages fits; `Ledger(trace=True)` keeps each message, too.

    log = Ledger()
    run(program, 4, ledger=log)
    log.bytes_sent(rank=0, phase="tp forward", group="tp")
"""

from collections import defaultdict
from typing import NamedTuple


class Message(NamedTuple):
    """One message of a trace. Ranks are world ranks; start and end are seconds on the virtual clock."""

    rank: int
    dst: int
    nbytes: int
    group: str
    phase: tuple
    collective: str | None
    start: float
    end: float


class Span(NamedTuple):
    """A stretch of a rank's virtual time in a trace. kind: "wait", or as given to `comm.compute`, `elapse`."""

    rank: int
    start: float
    end: float
    group: str | None
    phase: tuple
    kind: str


class Ledger:
    """Counts of one or more runs, of all their ranks, in the local world and under MPI alike.

    trace    keep every message in `.trace` (a list of `Message`, in the order in which they were received); under MPI,
             where ranks share no clock, it stays empty. And what each rank's virtual time went into in `.spans`

    Each query adds up what matches all the filters that are not None: `rank` is a world rank (the sender), `phase` any
    one label of the nested `comm.phase(...)` blocks, `group` a communicator's name, `collective` such as "all_reduce".
    """

    def __init__(self, trace=False):
        self.trace, self.spans = ([], []) if trace else (None, None)
        self._sent = defaultdict(_nothing)                # (rank, dst, group, phases, collective) -> [messages, bytes]
        self._seconds = defaultdict(float)                # (rank, group, phases, kind) -> seconds
        self._flops = defaultdict(float)                  # (rank, None, phases, kind) -> floating-point operations

    # -- what the world writes --------------------------------------------------------------------------------------
    def record_message(self, rank, dst, nbytes, group, phase, collective):
        """Count one message of `nbytes` from world rank `rank` to world rank `dst`."""
        entry = self._sent[rank, dst, group, phase, collective]
        entry[0] += 1
        entry[1] += nbytes

    def record_time(self, rank, seconds, group, phase, kind, start=None):
        """Add `seconds` that `rank` spent on `kind` ("wait", "matmul", ...), from `start` on its virtual clock."""
        self._seconds[rank, group, phase, kind] += seconds
        if self.spans is not None and start is not None:
            self.spans.append(Span(rank, start, start + seconds, group, phase, kind))

    def record_flops(self, rank, flops, phase, kind):
        """Add floating-point operations that `rank` declared."""
        self._flops[rank, None, phase, kind] += flops

    def merge(self, other):
        """Add everything that `other` counted."""
        for key, (messages, nbytes) in other._sent.items():
            self._sent[key][0] += messages
            self._sent[key][1] += nbytes
        for mine, theirs in ((self._seconds, other._seconds), (self._flops, other._flops)):
            for key, value in theirs.items():
                mine[key] += value
        if self.trace is not None and other.trace is not None:
            self.trace.extend(other.trace)
            self.spans.extend(other.spans)

    # -- what the reader asks ---------------------------------------------------------------------------------------
    def bytes_sent(self, rank=None, phase=None, group=None, collective=None, dst=None):
        """Payload bytes sent."""
        return self._sum(1, rank, phase, group, collective, dst)

    def bytes_received(self, rank=None, phase=None, group=None, collective=None):
        """Payload bytes sent to world rank `rank`."""
        return self._sum(1, None, phase, group, collective, rank)

    def messages(self, rank=None, phase=None, group=None, collective=None, dst=None):
        """Number of messages sent, those without payload included."""
        return self._sum(0, rank, phase, group, collective, dst)

    def time(self, rank=None, phase=None, group=None, kind=None):
        """Seconds spent, summed over ranks: virtual ones in a run with a network, real ones under MPI.

        kind: "wait" for messages, or the name given to `comm.compute` and `comm.elapse`.
        """
        return _total(self._seconds, rank, phase, group, kind)

    def flops(self, rank=None, phase=None, kind=None):
        """Floating-point operations declared with `comm.compute`, summed over ranks."""
        return _total(self._flops, rank, phase, None, kind)

    def phases(self):
        """All labels that occurred, sorted as text."""
        return sorted({label for key in (*self._sent, *self._seconds, *self._flops) for label in key[-2]}, key=str)

    def _sum(self, column, rank, phase, group, collective, dst):
        return sum(
            entry[column]
            for (r, d, g, phases, c), entry in self._sent.items()
            if rank in (None, r) and dst in (None, d) and group in (None, g) and collective in (None, c)
            and (phase is None or phase in phases)
        )

    def __str__(self):
        rows = defaultdict(_nothing)
        for (_, _, group, phases, collective), (messages, nbytes) in self._sent.items():
            key = (" / ".join(map(str, phases)) or "-", group, collective or "point to point")
            rows[key][0] += messages
            rows[key][1] += nbytes
        lines = [f"{'phase':24} {'group':8} {'call':16} {'messages':>10} {'bytes':>14}"]
        lines += [f"{p:24} {g:8} {c:16} {m:>10,} {b:>14,}" for (p, g, c), (m, b) in sorted(rows.items())]
        return "\n".join(lines)


def _nothing():
    return [0, 0]


def _total(table, rank, phase, group, kind):
    return sum(
        value
        for (r, g, phases, k), value in table.items()
        if rank in (None, r) and group in (None, g) and kind in (None, k) and (phase is None or phase in phases)
    )
