"""Is a schedule possible? Everything once, on the right rank, and no rank waits for itself by way of others.

    happens-before:    a rank does its list in order
                       F of a stage comes after F of the stage before      (its input)
                       I, or B, after F of the same stage, and after I, or B, of the stage behind (its gradient)
                       W after I
    possible           if and only if these arrows make no circle: then the actions can be done one after another, and
                       whoever waits, waits for something that will come (Lamport 1978 for the order itself)

Sending never waits: the runner posts a message and goes on. So the lists and the data are all the arrows there are.
"""

from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple

from refimpl.pipeline.action import KINDS, Action, parts

SHOWN = 4                                            # faults named in one message


class ScheduleError(ValueError):
    """A schedule that cannot run, and why."""


class Proof(NamedTuple):
    """What `check` found out about a schedule that can run.

    order               all entries of all lists, as (rank, position), in one order in which they can be done
    peak_activations    per rank, in full-stage units: activations of a chunk kept at once / chunks of a rank
    """

    order: tuple
    peak_activations: tuple


@lru_cache(maxsize=64)
def check(schedule):
    """`Proof` that the schedule can run, of a `Schedule`; else `ScheduleError` (a ValueError) that says why not."""
    if faults := misplaced(schedule) or missing(schedule):
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise ScheduleError(f"{schedule.name}: " + "; ".join(faults[:SHOWN]) + more)
    order = possible_order(schedule)
    return Proof(tuple(order), tuple(peak_activations(row) / schedule.chunks for row in schedule.ranks))


def misplaced(schedule):
    """What stands where it cannot: unknown stages and micro-batches, actions on a rank that has not got their stage."""
    found, S, m = [], len(schedule.placement), schedule.microbatches
    for rank, row in enumerate(schedule.ranks):
        for action in (part for entry in row for part in parts(entry)):
            stage, kind, k = action
            if not 0 <= stage < S:
                found.append(f"{action} on rank {rank}: there are stages 0 to {S - 1}")
            elif not 0 <= k < m:
                found.append(f"{action} on rank {rank}: there are micro-batches 0 to {m - 1}")
            elif kind not in KINDS:
                found.append(f"{action} on rank {rank}: the kinds are {', '.join(KINDS)}")
            elif schedule.placement[stage] != rank:
                found.append(f"{action} is on rank {rank}, but stage {stage} is on rank {schedule.placement[stage]}")
    return found


def missing(schedule):
    """What is not there exactly once: for each stage and micro-batch one F, and one B or one I and one W."""
    count = defaultdict(int)
    for row in schedule.ranks:
        for action in row:
            for part in parts(action):
                count[part] += 1
    found = []
    for stage, rank in enumerate(schedule.placement):
        for k in range(schedule.microbatches):
            F, B, I, W = (count.get((stage, kind, k), 0) for kind in "FBIW")
            if F != 1:
                found.append(f"{Action(stage, 'F', k)} is missing on rank {rank}" if not F else
                             f"{Action(stage, 'F', k)} is there {F} times on rank {rank}")
            if (B, I, W) not in ((1, 0, 0), (0, 1, 1)):
                has = ", ".join(f"{n} {kind}" for n, kind in ((B, "B"), (I, "I"), (W, "W")) if n) or "none"
                found.append(f"the backward of stage {stage}, micro-batch {k}, on rank {rank} needs one B, "
                             f"or one I and one W: there is {has}")
    return found


def needs(schedule, action):
    """The simple actions whose results a simple action needs: the arrows of data. Nothing may be missing."""
    stage, kind, k = action
    if kind == "F":
        return [Action(stage - 1, "F", k)] if stage > 0 else []
    if kind == "W":
        return [Action(stage, "I", k)]
    needed = [Action(stage, "F", k)]
    if stage + 1 < len(schedule.placement):
        behind = Action(stage + 1, "B", k)
        needed.append(behind if behind in schedule.where else Action(stage + 1, "I", k))
    return needed


def possible_order(schedule):
    """All entries as (rank, position) in an order that respects all arrows; `ScheduleError` with the circle if none."""
    rows, where = schedule.ranks, schedule.where
    position = [0] * len(rows)                           # per rank: how much of its list is done
    waits, order, ready = defaultdict(list), [], list(range(len(rows)))
    while ready:
        rank = ready.pop()
        while position[rank] < len(rows[rank]):
            if (blocker := first_undone(schedule, rank, position)) is not None:
                waits[blocker].append(rank)
                break
            for part in parts(rows[rank][position[rank]]):
                ready += waits.pop(part, ())
            order.append((rank, position[rank]))
            position[rank] += 1
    if len(order) < sum(map(len, rows)):
        raise ScheduleError(f"{schedule.name}: " + circle(schedule, where, position))
    return order


def first_undone(schedule, rank, position):
    """The first action that the next entry of `rank` needs and that is not done yet; None when it can start."""
    for part in parts(schedule.ranks[rank][position[rank]]):
        for needed in needs(schedule, part):
            other, at = schedule.where[needed]
            if at >= position[other]:
                return needed
    return None


def circle(schedule, where, position):
    """Who waits for whom, once round, in words."""
    rank = next(r for r, row in enumerate(schedule.ranks) if position[r] < len(row))
    seen = []
    while rank not in seen:                              # everybody who is stuck waits for somebody who is
        seen.append(rank)
        rank = where[first_undone(schedule, rank, position)][0]
    links = []
    for waiter in seen[seen.index(rank):]:
        entry, needed = schedule.ranks[waiter][position[waiter]], first_undone(schedule, waiter, position)
        owner, at = where[needed]
        if (owner, at) == (waiter, position[waiter]):
            after = "which is part of it"
        elif at == position[owner]:
            after = "which is what that rank would do next"
        else:
            after = f"which comes after {schedule.ranks[owner][position[owner]]} there"
        links.append(f"rank {waiter} cannot start {entry} before {needed} of rank {owner}, {after}")
    return "a circle of waiting: " + "; ".join(links)


def peak_activations(row):
    """Most micro-batches that a row keeps activations of at once: each from its F to its B, or to its W."""
    live = peak = 0
    for action in row:
        for _, kind, _ in parts(action):
            if kind == "F":
                live += 1
                peak = max(peak, live)
            elif kind != "I":
                live -= 1
    return peak


def happens_before(schedule, a, b):
    """Whether simple action `a` must end before simple action `b` can start: there is a way of arrows from a to b.

    The two of a pair start and end together, so neither comes before the other.
    """
    where, rows = schedule.where, schedule.ranks
    start, goal = where[b], where[a]
    reached, todo = {start}, [start]
    while todo:
        rank, position = todo.pop()
        before = {where[needed] for part in parts(rows[rank][position]) for needed in needs(schedule, part)}
        if position > 0:
            before.add((rank, position - 1))
        if goal in before:
            return True
        todo += before - reached
        reached |= before
    return False
