"""What every rank did, moment by moment, on the virtual clock: compute, or wait, and if so for what.

    rank 0   | compute      | tp | compute | pp     | waiting |        messages on their way to this rank:
    incoming                 [tp-]     [pp---------]                   hidden behind compute as long as it computes

A rank that does not compute waits. While a message is on its way to it, that is communication, of the dimension whose
group it was sent in; while none is, the rank waits for somebody who has not sent yet: a pipeline's bubble, a straggler.
So the three add up to the time that passed, and what is hidden behind compute is in none but compute.
"""

from typing import NamedTuple

WAITING, COMPUTE = "waiting", "compute"


class Stretch(NamedTuple):
    """A rank's time from start to end. what: "compute", "waiting", or the dimension that was communicated in."""

    start: float
    end: float
    what: str


def activity(log, dimensions, starts, ends):
    """What each rank did from starts[rank] to ends[rank], virtual seconds. -> for each a list of `Stretch`, in order

    log           `Ledger(trace=True)` of a run with a network
    dimensions    {dimension: names of its groups}; messages of others count as nobody's
    """
    named = {group: dimension for dimension, groups in dimensions.items() for group in groups}
    computed, incoming = [[] for _ in starts], [[] for _ in starts]
    for span in log.spans:
        if span.kind != "wait" and span.end > starts[span.rank]:
            computed[span.rank].append((span.start, span.end))
    for message in log.trace:
        if message.group in named and message.end > starts[message.dst]:
            incoming[message.dst].append((message.start, message.end, named[message.group]))
    return [_of_rank(*found) for found in zip(computed, incoming, starts, ends)]


def _of_rank(computed, incoming, start, end):
    """The gaps between what was computed are filled with the messages that were on their way."""
    stretches, now = [], start
    for began, stopped in [*sorted(computed), (end, end)]:
        began, stopped = max(began, now), min(stopped, end)
        if now < min(began, end):
            stretches += _waited(incoming, now, min(began, end))
        if began < stopped:
            stretches.append(Stretch(began, stopped, COMPUTE))
        now = max(now, stopped)
    return _joined(stretches)


def _waited(incoming, start, end):
    """From start to end the rank did nothing itself: whose messages were on their way to it?"""
    here = sorted(message for message in incoming if message[0] < end and message[1] > start)
    edges = sorted({start, end, *(t for message in here for t in message[:2] if start < t < end)})
    for left, right in zip(edges, edges[1:]):
        what = next((dimension for sent, came, dimension in here if sent <= left and came >= right), WAITING)
        yield Stretch(left, right, what)


def _joined(stretches):
    """The same, with neighbours of one kind made one."""
    found = []
    for one in stretches:
        if found and found[-1].what == one.what and found[-1].end == one.start:
            one = found.pop()._replace(end=one.end)
        found.append(one)
    return found


def seconds(stretches):
    """How long a rank did what: {"compute": ..., "tp": ..., "waiting": ...}, as they occur."""
    found = {}
    for start, end, what in stretches:
        found[what] = found.get(what, 0.0) + end - start
    return found
