"""When everything happens: a schedule with a duration for each action.

    start of an action = the later of   the end of the one before it in the rank's list
                                        the arrival of what it needs: end of that action, + hop if from another rank

Sending holds nobody up, and a rank never changes its order: that is all. So small a simulator gives the bubble rates of
the Zero Bubble paper to the last digit (Qi et al. 2023, tables 5 and 6).

    ideal    the busiest rank's work: m (forward + input + weight) when all stages take the same time
    bubble   time that is not work. Of the ideal time (Megatron papers), of the total time (GPipe), or of the longest
             rank's span, from its first action to its last (Zero Bubble): say which.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from refimpl.pipeline.action import Action, parts
from refimpl.pipeline.check import check, needs, peak_activations


class Times:
    """Seconds that each action of a schedule takes: call it with an action.

    forward, input, weight    of F, I and W, for all that a rank has of the model: a chunk takes 1/chunks of it. One
                              number, or one per rank, or one per stage
    B takes input + weight, a pair what its two take together.
    ValueError for a time that is no finite number of 0 or more, or a list of another length.
    """

    def __init__(self, schedule, forward=1.0, input=1.0, weight=1.0):
        F, I, W = (per_stage(schedule, name, given) for name, given in
                   (("forward", forward), ("input", input), ("weight", weight)))
        v = schedule.chunks
        self.of_kind = {"F": [t / v for t in F], "I": [t / v for t in I], "W": [t / v for t in W],
                        "B": [(i + w) / v for i, w in zip(I, W)]}

    def __call__(self, action):
        """Seconds that `action` takes."""
        if type(action) is Action:
            return self.of_kind[action.kind][action.stage]
        return self(action.first) + self(action.second)


class Idle(NamedTuple):
    """A rank that does nothing from `start` to `end`, before the action `before`, because of `waits_for` on `of_rank`.

    before is None after the rank's last action: the step ends with `waits_for`, the last action of all.
    """

    start: float
    end: float
    before: object
    waits_for: object
    of_rank: int

    def __str__(self):
        what = f"{self.before} waits for" if self.before else "done, the step ends with"
        return f"{self.start:g} to {self.end:g}: {what} {self.waits_for} of rank {self.of_rank}"


@dataclass(frozen=True, eq=False)
class Timeline:
    """When each action of `schedule` starts and ends; seconds from the step's beginning.

    starts, ends    per rank one time for each entry of its list        times    the `Times` they come from
    hop             seconds that a message is on its way
    """

    schedule: object
    times: Times
    hop: float
    starts: list
    ends: list

    @cached_property
    def makespan(self):
        """Seconds until the last rank is done."""
        return max(ends[-1] for ends in self.ends)

    @cached_property
    def max_rank_span(self):
        """The longest time from a rank's first action to its last."""
        return max(ends[-1] - starts[0] for starts, ends in zip(self.starts, self.ends))

    @cached_property
    def busy(self):
        """Seconds of work, per rank."""
        m, of_kind = self.schedule.microbatches, self.times.of_kind
        return [sum(m * (of_kind["F"][stage] + of_kind["B"][stage]) for stage in self.schedule.stages_of(rank))
                for rank in range(self.schedule.stages)]

    @property
    def ideal(self):
        """The work of the busiest rank: no schedule is faster."""
        return max(self.busy)

    @property
    def bubble_of_ideal(self):
        """(makespan - ideal) / ideal."""
        return ratio(self.makespan - self.ideal, self.ideal)

    @property
    def bubble_of_total(self):
        """(makespan - ideal) / makespan."""
        return ratio(self.makespan - self.ideal, self.makespan)

    @property
    def bubble_of_span(self):
        """(longest rank span - ideal) / longest rank span: the Zero Bubble paper's rate."""
        return ratio(self.max_rank_span - self.ideal, self.max_rank_span)

    @cached_property
    def peak_activations(self):
        """Per rank: activations kept at once, in full-stage units (a chunk counts 1/chunks), from F to B, or to W."""
        return [peak_activations(row) / self.schedule.chunks for row in self.schedule.ranks]

    @cached_property
    def messages(self):
        """Messages between ranks in one step: {"forward": ..., "backward": ...}."""
        ranks = self.schedule.placement
        crossings = sum(here != there for here, there in zip(ranks, ranks[1:]))
        return dict.fromkeys(("forward", "backward"), crossings * self.schedule.microbatches)

    @cached_property
    def idle(self):
        """Per rank a list of `Idle`, in order: every gap in its work, with its cause."""
        return [self._idle(rank) for rank in range(self.schedule.stages)]

    @property
    def idle_seconds(self):
        """Per rank: the length of all its gaps."""
        return [sum(gap.end - gap.start for gap in gaps) for gaps in self.idle]

    def _idle(self, rank):
        found, before = [], 0.0
        for action, start, end in zip(self.schedule.ranks[rank], self.starts[rank], self.ends[rank]):
            if start > before:
                found.append(Idle(before, start, action, *self._cause(action, start)))
            before = end
        if before < self.makespan:
            last = max(range(len(self.ends)), key=lambda r: self.ends[r][-1])
            found.append(Idle(before, self.makespan, None, self.schedule.ranks[last][-1], last))
        return found

    def _cause(self, action, start):
        """What `action` was waiting for until `start`, and of which rank: the last thing to arrive."""
        schedule = self.schedule
        for needed in (needed for part in parts(action) for needed in needs(schedule, part)):
            rank, position = schedule.where[needed]
            end = self.ends[rank][position]
            if start in (end, end + self.hop):
                return needed, rank
        raise AssertionError(f"nothing that {action} needs arrives at {start}")


def simulate(schedule, forward=1.0, input=1.0, weight=1.0, hop=0.0):
    """The `Timeline` of a schedule.

    forward, input, weight    seconds, see `Times`        hop    seconds from one rank to another
    ValueError for a schedule that cannot run (see `check`), and for times that are none.
    """
    times, hop = Times(schedule, forward, input, weight), seconds("hop", hop)
    rows, owner, last = schedule.ranks, schedule.placement, len(schedule.placement) - 1
    starts, ends = [[] for _ in rows], [[] for _ in rows]
    # What an action starts from is called (stage, F|I|W, micro-batch), like the action; I stands for B, too.
    there = {(0, "F", k): 0.0 for k in range(schedule.microbatches)}     # when it is on its rank; gone when used
    waiting, todo = {}, list(range(len(rows)))                           # which rank waits for it; ranks that may go on
    while todo:
        rank = todo.pop()
        row, my_starts, my_ends = rows[rank], starts[rank], ends[rank]
        clock = my_ends[-1] if my_ends else 0.0
        for position in range(len(my_ends), len(row)):
            action = row[position]
            halves = (action,) if type(action) is Action else action     # parts(action), without the call
            absent = None
            for stage, kind, k in halves:
                data = (stage, "I" if kind == "B" else kind, k)
                if data not in there or owner[stage] != rank:
                    absent = data
                elif there[data] > clock:
                    clock = there[data]
            if absent:
                waiting[absent] = rank
                break
            my_starts.append(clock)
            clock += times(action)
            my_ends.append(clock)
            for stage, kind, k in halves:
                del there[stage, "I" if kind == "B" else kind, k]
                if kind == "F":                                          # on to the next stage, or the loss and back
                    data = (stage + 1, "F", k) if stage < last else (stage, "I", k)
                elif kind == "W" or stage == 0:
                    data = None
                else:
                    data = (stage - 1, "I", k)
                if kind == "I":
                    there[stage, "W", k] = clock
                if data:
                    there[data] = clock if owner[data[0]] == rank else clock + hop
                    if data in waiting:
                        todo.append(waiting.pop(data))
    if there or any(len(done) < len(row) for done, row in zip(ends, rows)):
        check(schedule)                                                  # says what is wrong
        raise AssertionError(f"{schedule!r} was checked and found possible, but could not be timed")
    return Timeline(schedule, times, hop, starts, ends)


def per_stage(schedule, name, given):
    """The time of every stage, of the one number, or the one per rank or stage, that was given."""
    S = len(schedule.placement)
    if isinstance(given, int | float) or not hasattr(given, "__len__"):
        return [seconds(name, given)] * S
    if len(given) == S:
        return [seconds(name, t) for t in given]
    if len(given) == schedule.stages:
        return [seconds(name, given[rank]) for rank in schedule.placement]
    either = f"{schedule.stages}, one per rank, or {S}, one per stage" if schedule.chunks > 1 else f"{S}, one per stage"
    raise ValueError(f"{name} has {len(given)} times: give one number, or {either}")


def seconds(name, value):
    """`value` as a float; ValueError unless it is a finite time of 0 or more."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{name}={value!r}: must be a time in seconds, 0 or more")
    return number


def ratio(part, whole):
    """part / whole; 0 when there is no whole: nothing of nothing."""
    return part / whole if whole else 0.0
