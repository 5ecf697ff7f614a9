"""Order sends and receives, run them on ranks, and see who waits for whom.

    0: send 1; recv 2        send 1 ... to rank 1      recv 2 ... from rank 2      sendrecv 1 2 ... both at once
    1: send 2; recv 0        isend 1 ... without waiting for it      wait ... until it has been received
    2: send 0; recv 1

The orders become a small Python program for each rank, and these run in the local world. Large arrays: a send returns
when it is received (rendezvous); small ones: at once. Deadlock is exact there, and its report names lines of these
programs.
"""

import math
import re
import textwrap
from dataclasses import dataclass

import numpy as np

from refimpl.course.widgets.interactive import Explorer, switch, words_area
from refimpl.course.widgets.svg import arrow, box, disc, legend, picture, text
from refimpl.world import DeadlockError, UndeliveredMessageError, run
from refimpl.world.deadlock import find_circle

MOST, LINES = 5, 5                                                        # ranks; orders of a rank
ARGUMENTS = {"send": 1, "recv": 1, "isend": 1, "wait": 0, "sendrecv": 2}
CODE = {"send": "comm.send(x, {0})", "recv": "comm.recv({0})", "isend": "sent = comm.isend(x, {0})",
        "wait": "sent.wait()", "sendrecv": "comm.sendrecv(x, {0}, {1})"}
ALL_SEND = "0: send 1; recv 2\n1: send 2; recv 0\n2: send 0; recv 1"
PRESETS = {
    "all send, then receive": {"orders": ALL_SEND, "large": True},
    "the same with small arrays": {"orders": ALL_SEND, "large": False},
    "one receives first": {"orders": "0: recv 2; send 1\n1: send 2; recv 0\n2: send 0; recv 1", "large": True},
    "sendrecv": {"orders": "0: sendrecv 1 2\n1: sendrecv 2 0\n2: sendrecv 0 1", "large": True},
    "isend, recv, wait": {"orders": "0: isend 1; recv 2; wait\n1: isend 2; recv 0; wait\n2: isend 0; recv 1; wait",
                          "large": True},
    "all receive first": {"orders": "0: recv 2; send 1\n1: recv 0; send 2\n2: recv 1; send 0", "large": False},
    "one message too few": {"orders": "0: recv 1; recv 1\n1: send 0\n2: recv 0", "large": True},
    "one receive too few": {"orders": "0: send 1\n1: sendrecv 2 2\n2: sendrecv 1 1", "large": False},
}
WAITS = re.compile(r"^  rank (\d+) waits (?:to be received by|for a message from) rank (\d+),", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What a run of the orders came to.

    programs    the Python lines of each rank        done    for each, {line: when it was done, counted over all ranks}
    waits       {rank: the rank it waits for}        circle  such as [0, 1, 2, 0], or None
    error, report    the error's name and its text, or None
    """

    programs: list
    done: list
    waits: dict
    circle: list | None = None
    error: str | None = None
    report: str | None = None


def parse(orders):
    """The orders of each rank, a line of text each, as [[("send", 1), ...], ...].

    ValueError that names the rank, the order, and what would do.
    """
    rows = orders.rstrip().split("\n")
    if not 2 <= len(rows) <= MOST:
        raise ValueError(f"{len(rows)} line{'s' * (len(rows) > 1)}: write one for each rank, for 2 to {MOST} ranks")
    return [_parse_rank(rank, row, len(rows)) for rank, row in enumerate(rows)]


def _parse_rank(rank, row, P):
    """The orders of one rank."""
    number, colon, rest = row.rpartition(":")
    if colon and number.strip() != str(rank):
        raise ValueError(f"line {rank + 1} begins {number.strip() + ':'!r}: it is rank {rank}'s; begin it with {rank}:")
    program = [_parse_order(rank, words.split(), P) for words in rest.split(";") if words.strip()]
    if len(program) > LINES:
        raise ValueError(f"rank {rank}: {len(program)} orders; at most {LINES} fit into the picture")
    under_way = False
    for verb, *_ in program:
        if verb == ("isend" if under_way else "wait"):
            raise ValueError(f"rank {rank}: {verb} {'before the last one' if under_way else 'without an isend'}: "
                             "each isend has one wait after it, as in isend 1; recv 1; wait")
        under_way = verb == "isend" or under_way and verb != "wait"
    if under_way:
        raise ValueError(f"rank {rank}: an isend must be waited for: add wait at the end")
    return program


def _parse_order(rank, words, P):
    """One order of a rank, from its words."""
    verb, *others = words
    if verb not in ARGUMENTS:
        raise ValueError(f"rank {rank}: {verb!r} is no order; there are {', '.join(ARGUMENTS)}, as in send 1; recv 2")
    if len(others) != ARGUMENTS[verb]:
        works = {"wait": "wait", "sendrecv": "sendrecv and two ranks, the one to send to first"}
        raise ValueError(f"rank {rank}: {' '.join(words)!r}: write {works.get(verb, f'{verb} and one rank')}")
    for other in others:
        if other not in (allowed := [str(r) for r in range(P) if r != rank]):
            raise ValueError(f"rank {rank}: {' '.join(words)!r}: the other rank may be {', '.join(allowed)}")
    return (verb, *map(int, others))


def play(orders, large):
    """Run the orders on ranks; an `Outcome`. large: a send returns only when it is received."""
    programs = [[CODE[verb].format(*others) for verb, *others in program] for program in parse(orders)]
    done, count = [{} for _ in programs], 0

    def program(comm):
        nonlocal count
        names = {"comm": comm, "x": np.array([float(comm.rank)])}
        for number, line in enumerate(programs[comm.rank]):
            exec(compile("\n" * number + line, f"rank{comm.rank}.py", "exec"), names)     # made above, not typed
            count += 1
            done[comm.rank][number] = count

    try:
        run(program, len(programs), rendezvous=large)
    except (DeadlockError, UndeliveredMessageError) as error:
        waits = {int(rank): int(other) for rank, other in WAITS.findall(str(error))}
        return Outcome(programs, done, waits, find_circle(waits), type(error).__name__, str(error))
    return Outcome(programs, done, {})


def explain(outcome):
    """What happened, and what would help: a few sentences."""
    if outcome.error is None:
        return "Every rank has finished. Numbers say in which order the lines were done."
    if outcome.error == "UndeliveredMessageError":
        return ("Every rank has finished, but a message was sent that nobody received. In a longer program the next "
                "receive from that rank would take it for another one.")
    if outcome.circle:
        chain = " waits for ".join(f"rank {rank}" for rank in outcome.circle)
        return (f"Deadlock, a circle: {chain}. Each would go on if the next one did, so none does. Break the circle in "
                "one place: let one of them do the other thing first, or use sendrecv.")
    waits = ", ".join(f"rank {rank} waits for rank {other}" for rank, other in sorted(outcome.waits.items()))
    gone = " and ".join(f"rank {rank}" for rank in sorted(set(outcome.waits.values()) - outcome.waits.keys()))
    return f"Deadlock, without a circle: {waits}. But {gone} has returned: a message, or a receive, is missing there."


def draw_deadlock(orders=ALL_SEND, large=True):
    """The programs, how far each got, who waits for whom, and the report: a `Picture`.

    orders    a line of text for each rank, as in the docstring above        large    rendezvous
    """
    outcome = play(orders, large)
    programs = outcome.programs
    P, wide, lines = len(programs), 220, max(1, *map(len, programs))
    title = {None: "Finished", "DeadlockError": "Deadlock"}.get(outcome.error, "Finished, with a message left over")
    mode = "large arrays: a send returns when it is received" if large else "small arrays: a send returns at once"
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, f"{P} ranks; {mode}.", 13, kind="faint")]
    for rank in range(P):
        shapes.append(column(outcome, rank, 12 + rank * wide, 62, wide - 12))
    low = 62 + 28 + lines * 30 + 10
    shapes.append(legend(12, low + 10, [("weight", "done, and when"), ("backward", "waits for ever"),
                                        ("idle", "never reached")]))
    wrapped = textwrap.wrap(explain(outcome), 78)
    report = [piece for line in (outcome.report or "").split("\n") if line
              for piece in textwrap.wrap(line, 84, initial_indent=line[:len(line) - len(line.lstrip())],
                                         subsequent_indent="      ")]
    shapes += [text(12, low + 42 + 19 * k, line, 13) for k, line in enumerate(wrapped)]
    under = low + 52 + 19 * len(wrapped)
    if report:
        shapes.append(text(12, under + 14, f"{outcome.error}, as the run reports it", 12, bold=True))
        shapes += [text(12, under + 34 + 16 * k, line, 12, kind="ink mono") for k, line in enumerate(report)]
    middle = 150 if P < 4 else low + 88                                   # of the circle: beside the programs, or below
    shapes += who_waits(outcome, 770, middle, 62)
    bottom = max(under + 14 + (26 + 16 * len(report)) * bool(report), middle + 116)
    return picture(max(12 + P * wide, 860), bottom, *shapes, title=f"{title}: sends and receives of {P} ranks",
                   words=explain(outcome))


def column(outcome, rank, x, y, width):
    """A rank's program: done lines with their numbers, the one at which it waits, those never reached."""
    done = outcome.done[rank]
    out = [text(x, y + 14, f"rank {rank}" + ("" if outcome.programs[rank] else ": returns at once"), 13, bold=True)]
    for number, line in enumerate(outcome.programs[rank]):
        waiting = rank in outcome.waits and number == len(done)
        kind = "weight" if number in done else "backward" if waiting else "idle"
        top = y + 24 + 30 * number
        out += [box(x, top, width, 26, kind=kind, hint=f"rank{rank}.py:{number + 1}"),
                text(x + 8, top + 17, line, 12, kind=f"{'ink' if kind == 'idle' else f'on-{kind}'} mono")]
        if number in done:
            out.append(text(x + width - 6, top + 17, done[number], 11, "end", True, "on-weight"))
        elif waiting:
            out.append(text(x + width - 6, top + 17, "waits", 11, "end", True, "on-backward"))
    return "".join(out)


def who_waits(outcome, x, y, radius):
    """The ranks in a circle, an arrow from each that waits to the one it waits for."""
    P = len(outcome.programs)
    at = [(x + radius * math.sin(2 * math.pi * r / P), y - radius * math.cos(2 * math.pi * r / P)) for r in range(P)]
    shapes = []
    for rank, other in outcome.waits.items():
        (x1, y1), (x2, y2) = at[rank], at[other]
        step = 19 / math.hypot(x2 - x1, y2 - y1)
        both = outcome.waits.get(other) == rank
        shapes.append(arrow(x1 + step * (x2 - x1), y1 + step * (y2 - y1), x2 - step * (x2 - x1), y2 - step * (y2 - y1),
                            kind="backward", width=2.5, bend=14 if both else 0))
    shapes += [disc(*at[rank], 16, rank, "backward" if rank in outcome.waits else "weight", bold=True)
               for rank in range(P)]
    caption = "who waits for whom" if outcome.waits else "nobody waits"
    return [*shapes, text(x, y + radius + 40, caption, 12, "middle", kind="faint")]


def DeadlockPlayground(orders=ALL_SEND, large=True):
    """The widget: orders for each rank, how a send behaves, and a menu of examples."""
    return Explorer(draw_deadlock, {"orders": words_area("Orders, a line a rank", orders, rows=5),
                                    "large": switch("large arrays (a send waits until it is received)", large)},
                    name="deadlock-playground", presets=PRESETS)
