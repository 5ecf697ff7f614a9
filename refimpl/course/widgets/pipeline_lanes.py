"""A pipeline's timeline as lanes of boxes, in the theme's colours: what all widgets on pipelines draw.

    rank 0 |F0F1....B0--..B1--|  keeps 2      F short, B and I tall, W low, as in plots/gantt.py; grey is idle, and
    rank 1 |..F0B0--F1B1--....|  keeps 1      says what it waits for under the mouse
"""

from refimpl.course.plots.gantt import LETTER, SHAPE, ticks
from refimpl.course.widgets.svg import box, line, text
from refimpl.pipeline.action import parts

KIND = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}          # of an action: its colour
LANE, GAP = 24, 5                                                                 # pixels
LEGEND = [("forward", "F forward"), ("backward", "B backward, I input gradient"), ("weight", "W weight gradient"),
          ("idle", "idle")]


def height(p):
    """Pixels of p lanes and the times below them."""
    return p * (LANE + GAP) + 22


def lanes(rows, starts, ends, makespan, x, y, width, idle=None, beside=()):
    """Lanes from (x, y) on, whose `width` pixels are `makespan` seconds: pieces of SVG.

    rows, starts, ends    per rank its actions and their times; only the actions that have times are drawn
    idle                  per rank the timeline's `Idle`: what a gap waits for        beside    words right of each lane
    """
    scale = width / makespan if makespan else 0.0
    out = []
    for rank, row in enumerate(rows):
        top = y + rank * (LANE + GAP)
        out += [text(x - 8, top + 16, f"rank {rank}", 12, "end", True), box(x, top, width, LANE, kind="idle", round=0)]
        if idle:
            out += [box(x + gap.start * scale, top, (gap.end - gap.start) * scale, LANE, kind="idle",
                        hint=f"idle {gap}", round=0) for gap in idle[rank]]
        for action, start, end in zip(row, starts[rank], ends[rank], strict=False):      # fewer times: it got stuck
            out.append(action_box(action, x + start * scale, top, (end - start) * scale - 0.7,
                                  f"{action}: {start:g} to {end:g}"))
        if beside:
            out.append(text(x + width + 8, top + 16, beside[rank], 12))
    return [*out, axis(makespan, x, y + len(rows) * (LANE + GAP), scale)]


def action_box(action, x, y, width, hint=None):
    """An action in its lane: its whole name, or its kind and micro-batch, or its letter, or nothing, as there is room.

    A pair has one half above the other.
    """
    halves, out = parts(action), []
    for number, half in enumerate(halves):
        top, tall = SHAPE[half.kind] if len(halves) == 1 else (LANE // 2 * number, LANE // 2)
        names = str(half), f"{half.kind}{half.microbatch}", half.kind, ""
        label = next(name for name in names if len(name) * LETTER <= width - 1)
        out.append(box(x, y + top, max(width, 0.3), tall, label, KIND[half.kind], 10, hint=hint, round=1))
    return "".join(out)


def axis(makespan, x, y, scale):
    """Times below the lanes, from 0 to the makespan."""
    return "".join(line([(x + t * scale, y - 3), (x + t * scale, y + 2)], "ink", 0.8)
                   + text(x + t * scale, y + 14, f"{t:g}", 11, "middle", kind="faint") for t in ticks(makespan))
