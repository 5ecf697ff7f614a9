"""What to tell a person whose ranks wait for ever: who waits for whom, where, and in which circle.

Deadlock here is exact, not a time-out: no rank is runnable and at least one is not finished. Each waiting rank names
one other, so the ranks that wait form chains, and a chain that bites its own tail is the circle to break.
"""

import os

from refimpl.world.communicator import COLLECTIVE_TAG, describe

SHOWN = 16                                  # ranks in a report before it says "and so many more"


def deadlock_report(tasks):
    """The text of a DeadlockError: each unfinished rank, what it waits for and where, and the circle if there is one."""
    stuck = [t for t in tasks if not t.finished]
    lines = [f"no rank can go on: {len(stuck)} of {len(tasks)} ranks wait for ever"]
    lines += [f"  rank {t.me.rank} {waits_for(t)}" for t in stuck[:SHOWN]]
    if len(stuck) > SHOWN:
        lines.append(f"  ... and {len(stuck) - SHOWN} more ranks")
    circle = find_circle({t.me.rank: peer(t) for t in stuck})
    if circle:
        lines.append("  a circle: rank " + " waits for rank ".join(map(str, circle)))
    returned = sorted({peer(t) for t in stuck} & {t.me.rank for t in tasks if t.finished})
    for rank in returned[:SHOWN]:
        lines.append(f"  rank {rank} has returned")
    return "\n".join(lines)


def waits_for(task):
    """What one rank waits for, in words, with the line of the program."""
    what, comm, *rest = task.waiting
    if what == "split":
        missing = [r for r in range(comm.size) if r not in next(iter(comm.group.splits.values()))[0]]
        text = f"waits in split of {comm.name} for rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:SHOWN]))}"
    else:
        rank, tag = rest
        verb = "waits for a message from" if what == "recv" else "waits to be received by"
        where = f"tag {tag}, of {comm.name}" if tag != COLLECTIVE_TAG else f"in {describe(comm.agreement)} of {comm.name}"
        text = f"{verb} rank {comm.ranks[rank]}, {where}"
    return f"{text}, at {location(task.greenlet.gr_frame)}"


def peer(task):
    """World rank that a task waits for, or None."""
    what, comm, *rest = task.waiting
    return comm.ranks[rest[0]] if what in ("recv", "send") else None


def find_circle(waits):
    """A circle 0 -> 2 -> 0 in {rank: rank it waits for}, as a list of ranks, or None."""
    done = set()
    for start in waits:
        path, rank = [], start
        while rank in waits and rank not in done and rank not in path:
            path.append(rank)
            rank = waits[rank]
        if rank in path:
            return path[path.index(rank):] + [rank]
        done.update(path)
    return None


def location(frame):
    """file:line of the innermost frame that is not the world's or a collective's own."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inner = (os.path.join(package, "world"), os.path.join(package, "collectives"))
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(inner):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else "an unknown line"


def undelivered_report(groups):
    """The text of an UndeliveredMessageError, or "" when every message sent was received."""
    left = [(group, src, dst, tag, box.open)
            for group in groups for (src, dst, tag), box in group.boxes.items() if box.open]
    lines = [
        f"  rank {group.ranks[dst]} did not receive {n} message{'s' * (n > 1)} of rank {group.ranks[src]}"
        + (f", tag {tag}, of {group.name}" if tag != COLLECTIVE_TAG else f" in a collective of {group.name}")
        for group, src, dst, tag, n in left[:SHOWN]]
    if len(left) > SHOWN:
        lines.append(f"  ... and {len(left) - SHOWN} more pairs of ranks")
    return "\n".join(["every rank has returned, but not every message was received:", *lines]) if left else ""
