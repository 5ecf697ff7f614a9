"""What to tell a person whose ranks wait for ever: who waits for whom, where, and in which circle.

Deadlock here is exact, not a time-out: no rank is runnable and at least one is not finished. Each waiting rank names
others, so the ranks that wait form chains, and a chain that bites its own tail is the circle to break.

A waiting task says so itself: `task.waiting.what()` is (verb, world ranks waited for, more words).
"""

import os
import sys

SHOWN = 16                                  # ranks in a report before it says "and so many more"


def deadlock_report(stuck, size):
    """The text of a DeadlockError: each unfinished task, what it waits for and where, and the circle if there is one.

    stuck    the tasks that wait for ever        size    ranks of the world
    """
    waits = [(task, *task.waiting.what()) for task in stuck]
    unfinished = {task.rank for task in stuck}
    lines = [f"no rank can go on: {len(unfinished)} of {size} ranks wait for ever"]
    for task, verb, ranks, details in waits[:SHOWN]:
        for_whom = f" {numbered(ranks)}, {details}" if ranks else ""
        lines.append(f"  rank {task.rank}{' (in the background)' * task.background} waits {verb}{for_whom}, "
                     f"at {location(task.greenlet.gr_frame)}")
    if len(waits) > SHOWN:
        lines.append(f"  ... and {len(waits) - SHOWN} more{' ranks' * (len(waits) == len(unfinished))}")
    circle = find_circle({task.rank: ranks[0] for task, _, ranks, _ in waits if ranks})
    if circle:
        lines.append("  a circle: rank " + " waits for rank ".join(map(str, circle)))
    returned = sorted({rank for *_, ranks, _ in waits for rank in ranks} - unfinished)
    if returned:
        lines.append(f"  {numbered(returned)} ha{'ve' if len(returned) > 1 else 's'} returned")
    return "\n".join(lines)


def numbered(ranks):
    """Ranks in words: "rank 3", "ranks 3, 5"."""
    shown = ", ".join(map(str, ranks[:SHOWN])) + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def find_circle(waits):
    """A circle 0 -> 2 -> 0 in {rank: rank it waits for}, as a list of ranks, or None."""
    done = set()
    for start in waits:
        path, rank = {}, start              # a dict for its order: ranks of the chain
        while rank in waits and rank not in done and rank not in path:
            path[rank] = None
            rank = waits[rank]
        if rank in path:
            chain = list(path)
            return [*chain[chain.index(rank):], rank]
        done.update(path)
    return None


def location(frame):
    """file:line of the innermost frame that is not the world's or a collective's own; in a notebook "Cell In[5]:2"."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inner = tuple(os.path.join(package, part, "") for part in ("world", "collectives"))
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(inner):
        frame = frame.f_back
    if frame is None:
        return "an unknown line"
    path = frame.f_code.co_filename
    shell = "IPython" in sys.modules and sys.modules["IPython"].get_ipython()
    cell = shell and shell.compile.format_code_name(path)             # ("Cell", "In[5]"), or None for a file
    return f"{' '.join(cell) if cell else os.path.basename(path)}:{frame.f_lineno}"


def undelivered_report(left):
    """The text of an UndeliveredMessageError.

    left    [(world rank of the sender, of the receiver, number of messages, more words)]
    """
    lines = [f"  rank {dst} did not receive {n} message{'s' * (n > 1)} of rank {src}{details}"
             for src, dst, n, details in left[:SHOWN]]
    if len(left) > SHOWN:
        lines.append(f"  ... and {len(left) - SHOWN} more pairs of ranks")
    return "\n".join(["every rank has returned, but not every message was received:", *lines])
