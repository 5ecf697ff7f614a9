"""The ring all-reduce, step by step: which chunk moves where, and what the sums are by then.

    rows are ranks, columns are chunks; in each step every rank sends one chunk to the rank below it, the last to rank 0

    rank 0    [  1  ][  1  ][  1  ][1+8=9]        Rank r brings the number 2^r in every chunk, so that a sum says
                                 |                whose numbers are in it: 9 = 1 + 8 is from ranks 0 and 3.
    rank 1    [1+2=3][  2  ] ... v                Squares below a number are the ranks that it has so far.

Nothing is drawn from a formula: `trace` runs `collectives.ring.all_reduce_` on ranks and notes what it sends.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from refimpl.collectives.ring import all_reduce_
from refimpl.course.widgets.interactive import Explorer, whole
from refimpl.course.widgets.svg import arrow, box, disc, ink_on, legend, line, picture, text
from refimpl.world import run

MOST = 8
LEFT, TOP, WIDE, HIGH, GAP = 74, 96, 74, 34, 22                     # pixels: the table, a cell, the gap below


@dataclass(frozen=True)
class Trace:
    """A ring all-reduce as it ran on P ranks, of one number a chunk.

    before    before[s][r][k]: chunk k on rank r before step s; the last entry is the result
    sent      sent[s][r]: the chunk that rank r sends to rank r+1 in step s
    """

    P: int
    before: tuple
    sent: tuple


@lru_cache(maxsize=MOST)
def trace(P):
    """Run the ring on P ranks and note every step: a `Trace`."""
    def program(comm):
        x = np.full(P, 2**comm.rank)
        watched = Watched(comm, x)
        all_reduce_(x, watched)
        return [*watched.before, x.tolist()], watched.sent

    by_rank = run(program, P)
    before, sent = ([rows[k] for rows in by_rank] for k in (0, 1))
    return Trace(P, tuple(zip(*before, strict=True)), tuple(zip(*sent, strict=True)))


class Watched:
    """A communicator that notes, before each exchange, the whole array and which of its numbers leaves."""

    def __init__(self, comm, x):
        self.comm, self.x, self.rank, self.size = comm, x, comm.rank, comm.size
        self.before, self.sent = [], []

    def sendrecv(self, chunk, dst, src, out):
        """Exchange as the communicator would."""
        start = [array.__array_interface__["data"][0] for array in (self.x, chunk)]
        self.before.append(self.x.tolist())
        self.sent.append((start[1] - start[0]) // self.x.itemsize)
        return self.comm.sendrecv(chunk, dst=dst, src=src, out=out)


def draw_all_reduce(P=4, step=0):
    """The state after `step` of the 2(P-1) steps, and what moved in the last of them: a `Picture`."""
    ran = trace(P)
    steps = len(ran.sent)
    if not 0 <= step <= steps:
        raise ValueError(f"step={step}: a ring all-reduce on {P} ranks has steps 1 to {steps}; 0 is before the first")
    gap = GAP if P < 7 else GAP - 4
    bottom = TOP + P * HIGH + (P - 1) * gap
    across = LEFT + P * (WIDE + 2)
    ring = max(100, 21 * P)                                                      # from its middle to its edge
    title, words = what_happens(ran, step)
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, rule(P, step), 13, kind="faint"),
              *(text(LEFT + k * (WIDE + 2) + WIDE / 2, TOP - 26, f"chunk {k}", 12, "middle", kind="faint")
                for k in range(P))]
    for rank in range(P):
        y = TOP + rank * (HIGH + gap)
        shapes += [text(12, y + 22, f"rank {rank}", 13, bold=True), row(ran, step, rank, y)]
    shapes += table_arrows(ran, step, bottom, gap)
    shapes += ring_of_ranks(ran, step, across + 30 + ring, TOP + ring - 20, ring - 30)
    low = max(bottom + 28, TOP + 2 * ring - 24)
    shapes += [legend(12, low + 22, [("soft", "a rank's own number"), ("forward", "sum of some ranks"),
                                     ("weight", "sum of all ranks")]),
               line([(494, low + 11), (508, low + 11), (508, low + 23), (494, low + 23), (494, low + 11)], "ink", 3),
               text(513, low + 22, "arrived in this step", 12)]
    return picture(max(across + 2 * ring + 36, 660), low + 38, *shapes, title=title, words=words)


def what_happens(ran, step):
    """Title and sentence of a step."""
    P, steps = ran.P, len(ran.sent)
    if step == 0:
        return (f"Ring all-reduce on {P} ranks: before step 1 of {steps}",
                f"Rank r brings the number 2 to the power r in each of {P} chunks. Nothing has been sent.")
    lap = "reduce-scatter" if step < P else "all-gather"
    moves = ", ".join(f"rank {r} chunk {ran.sent[step - 1][r]}" for r in range(P))
    complete = sum(total == 2**P - 1 for total in ran.before[step][0])
    return (f"Step {step} of {steps}: {lap}",
            f"Each rank sends one chunk to the next: {moves}. "
            f"Complete sums on rank 0: {complete} of {P} chunks.")


def rule(P, step):
    """What a rank does with what arrives, in one line."""
    if step == 0:
        return f"Rank r brings 2^r in every chunk; the sum of all is {2**P - 1}."
    if step == P - 1:
        return "What arrives is added. Now rank r has the whole sum of chunk r."
    if step < P:
        return "What arrives is added to the rank's own chunk."
    return "What arrives is a finished sum: it replaces the rank's own." + (
        " Everybody has everything." if step == 2 * (P - 1) else "")


def row(ran, step, rank, y):
    """A rank's chunks: numbers, the ranks that are in them, a frame around what has just arrived."""
    P, now = ran.P, ran.before[step][rank]
    came = ran.sent[step - 1][rank - 1] if step else None
    kinds = ["weight" if total == 2**P - 1 else "forward" if total != 2**rank else "soft" for total in now]
    labels = [str(total) for total in now]
    if step and step < P:
        own = ran.before[step - 1][rank][came]
        labels[came] = f"{own}+{now[came] - own}={now[came]}"
    out = [box(LEFT + k * (WIDE + 2), y, WIDE, HIGH, kind=kind)
           + text(LEFT + k * (WIDE + 2) + WIDE / 2, y + 18, label, min(13, (WIDE - 6) / 0.63 / len(label)),
                  "middle", True, ink_on(kind)) + members(total, P, LEFT + k * (WIDE + 2), y, kind)
           for k, (label, kind, total) in enumerate(zip(labels, kinds, now, strict=True))]
    if came is not None:
        x = LEFT + came * (WIDE + 2)
        out.append(line([(x, y), (x + WIDE, y), (x + WIDE, y + HIGH), (x, y + HIGH), (x, y - 1.5)], "ink", 3))
    return "".join(out)


def members(total, P, x, y, kind):
    """A square for each rank that is in a sum: the bits of the sum."""
    first = x + WIDE / 2 - P * 3.5
    squares = "".join(f"M{first + 7 * r:g},{y + 24}h5v5h-5z" for r in range(P) if total >> r & 1)
    return f'<path class="{ink_on(kind)}" d="{squares}"/>'


def table_arrows(ran, step, bottom, gap):
    """What moved, in the table: down to the next rank, and from the last one back to the first."""
    if not step:
        return []
    out = []
    for rank, chunk in enumerate(ran.sent[step - 1]):
        x, y = LEFT + chunk * (WIDE + 2) + WIDE / 2, TOP + rank * (HIGH + gap) + HIGH
        if rank < ran.P - 1:
            out.append(arrow(x, y + 1, x, y + gap - 2))
        else:
            out += [arrow(x, bottom + 1, x, bottom + 17), text(x + 9, bottom + 16, "to rank 0", 11),
                    arrow(x, TOP - 20, x, TOP - 2)]
    return out


def ring_of_ranks(ran, step, x, y, radius):
    """The ranks in a circle, clockwise, with what each sends."""
    P = ran.P
    at = lambda r, share=0.0, out=0.0: (x + (radius + out) * math.sin(2 * math.pi * (r + share) / P),
                                        y - (radius + out) * math.cos(2 * math.pi * (r + share) / P))
    edge = 21 / (2 * math.pi * radius / P)                                        # of a disc, as a share of the way
    shapes = []
    for rank in range(P):
        begin, end = at(rank, edge), at(rank, 1 - edge)
        bend = radius * (1 - math.cos(math.pi * (1 - 2 * edge) / P))
        if step:
            shapes.append(arrow(*begin, *end, kind="ink", bend=bend))
            shapes.append(text(*_lower(at(rank, 0.5, 17)), f"c{ran.sent[step - 1][rank]}", 13, "middle", True))
        else:
            shapes.append(arrow(*begin, *end, kind="plain", bend=bend))
        shapes.append(disc(*at(rank), 15, rank, "plain", bold=True))
    return shapes


def _lower(point):
    """The baseline of words whose middle is this point."""
    return point[0], point[1] + 5


def AllReduceStepper(P=4, step=0):
    """The widget: number of ranks, and the step."""
    return Explorer(draw_all_reduce, {"P": whole("Ranks", P, 2, MOST), "step": whole("Step", step, 0, 2 * (P - 1))},
                    adjust=lambda P, step: {"step": {"max": 2 * (P - 1)}}, name="all-reduce-stepper")
