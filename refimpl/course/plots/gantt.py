"""A pipeline's timeline as a picture: a lane for each rank, a box for each action. SVG, and letters for a terminal.

    rank 0 |F0F1....B0--..B1--|      F blue and short, B (or I) vermilion and tall, W green and low: shape and label say
    rank 1 |..F0B0--F1B1--....|      what the colour says; grey is idle, and its title says what the rank waits for

Written by hand, without a drawing library: a thousand boxes in a few milliseconds, small enough for a page that redraws
with every move of a slider.
"""

import math
import os
from html import escape
from itertools import groupby
from pathlib import Path

from refimpl.course.plots.files import check_plot_file
from refimpl.pipeline.action import KINDS, parts

COLOURS = {"F": "#0072B2", "B": "#D55E00", "I": "#D55E00", "W": "#009E73"}          # told apart by every kind of eyes
INK = {"F": "#FFFFFF", "B": "#000000", "I": "#000000", "W": "#000000"}              # contrast 4.5 : 1 or more on them
LANE, GAP, LEFT, TOP = 24, 6, 62, 40                                                # pixels
SHAPE = {"F": (0, 16), "B": (0, 24), "I": (0, 24), "W": (8, 16)}                    # top and height in a lane
WIDEST, LETTER = 1600, 6.6                                                          # pixels of a chart; of a character
ANSI = {"F": "\x1b[97;44m", "B": "\x1b[30;43m", "I": "\x1b[30;43m", "W": "\x1b[30;42m"}
RESET = "\x1b[0m"


def describe(timeline):
    """The picture in words: what somebody who cannot see it needs to know."""
    s, t = timeline.schedule, timeline
    chunks = f", {s.chunks} chunks each" if s.chunks > 1 else ""
    lines = [f"Schedule {s.name}: {s.stages} ranks{chunks}, {s.microbatches} micro-batches. "
             f"A step takes {t.makespan:g}, of which {t.bubble_of_total:.1%} is bubble ({t.bubble_of_ideal:.1%} of the "
             f"ideal time, {t.bubble_of_span:.1%} of the longest rank's span)."]
    for rank, (starts, ends, busy, peak) in enumerate(zip(t.starts, t.ends, t.busy, t.peak_activations)):
        lines.append(f"Rank {rank} works {busy:g} between {starts[0]:g} and {ends[-1]:g}, "
                     f"and keeps {peak:g} activations at most.")
    return " ".join(lines)


def svg(timeline, title=None, width=None):
    """The timeline as an SVG element, with its text alternative.

    title    None: the schedule's name, sizes and figures
    width    pixels; None: wide enough for labels, 1600 at most
    """
    s, makespan = timeline.schedule, timeline.makespan
    if title is None:
        title = (f"{s.name}: {s.stages} ranks, {s.microbatches} micro-batches; takes {makespan:g}, "
                 f"of which {timeline.bubble_of_total:.1%} is bubble")
    words = describe(timeline)
    shortest = min((t for kind in "FIW" for t in timeline.times.of_kind[kind] if t > 0), default=1.0)
    label = len(f"{len(s.placement) - 1}F{s.microbatches - 1}") * LETTER + 4
    width = round(width or min(max(720, LEFT + makespan / shortest * label + 20), WIDEST))
    scale = (width - LEFT - 16) / makespan if makespan else 0.0
    height = TOP + s.stages * (LANE + GAP) + 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
           f'height="{height}" role="img" aria-label="{escape(f"{title}. {words}")}" '
           f'font-family="sans-serif" font-size="10">'
           f"<title>{escape(title)}</title><desc>{escape(words)}</desc>"
           f'<rect width="{width}" height="{height}" fill="#FFFFFF"/>'
           f'<text x="4" y="14" font-size="13" fill="#000000">{escape(title)}</text>', legend(), axis(timeline, scale)]
    for rank in range(s.stages):
        out.append(f'<g transform="translate({LEFT},{TOP + rank * (LANE + GAP)})">'
                   f'<text x="{6 - LEFT}" y="16" font-size="12" fill="#000000">rank {rank}</text>'
                   f'<rect width="{makespan * scale:.1f}" height="{LANE}" fill="#E8E8E8"/>')
        out += lane(timeline, rank, scale)
        out.append("</g>")
    out.append("</svg>")
    return "".join(out)


def lane(timeline, rank, scale):
    """The boxes, labels and reasons to wait of one rank: pieces of SVG, for `svg`. scale: pixels a second."""
    rects, labels = {kind: [] for kind in KINDS}, {kind: [] for kind in KINDS}
    for action, start, end in zip(timeline.schedule.ranks[rank], timeline.starts[rank], timeline.ends[rank]):
        halves = parts(action)
        x, width = start * scale, (end - start) * scale
        for number, half in enumerate(halves):
            kind = half.kind
            top, height = SHAPE[kind] if len(halves) == 1 else (12 * number, 12)      # a pair: one above the other
            name = str(action)
            rects[kind].append(f'<rect x="{x:.1f}" y="{top}" width="{max(width - 0.5, 0.2):.1f}" height="{height}">'
                               f"<title>{name}: {start:g} to {end:g}</title></rect>")
            text = str(half)
            if len(text) * LETTER > width:                       # the whole name, or its letter, or nothing
                text = kind if LETTER <= width else ""
            if text:
                labels[kind].append(f'<text x="{x + width / 2:.1f}" y="{top + height / 2 + 3.5:.1f}">{text}</text>')
    waits = "".join(f'<rect x="{gap.start * scale:.1f}" width="{(gap.end - gap.start) * scale:.1f}" height="{LANE}">'
                    f"<title>idle {escape(str(gap))}</title></rect>" for gap in timeline.idle[rank])
    return [f'<g fill="#E8E8E8">{waits}</g>',
            *(f'<g fill="{COLOURS[kind]}">{"".join(found)}</g>' for kind, found in rects.items() if found),
            *(f'<g fill="{INK[kind]}" text-anchor="middle">{"".join(found)}</g>'
              for kind, found in labels.items() if found)]


def legend():
    """What the colours and shapes mean."""
    out, x = [], LEFT
    for kind, words in (("F", "F forward"), ("B", "B backward (I: input gradient)"), ("W", "W weight gradient")):
        top, height = SHAPE[kind]
        out.append(f'<rect x="{x}" y="{20 + top / 2}" width="12" height="{height / 2}" fill="{COLOURS[kind]}"/>'
                   f'<text x="{x + 16}" y="30" fill="#000000">{words}</text>')
        x += 34 + 5.5 * len(words)
    return "".join(out) + f'<rect x="{x}" y="20" width="12" height="12" fill="#E8E8E8"/>' \
        f'<text x="{x + 16}" y="30" fill="#000000">idle</text>'


def axis(timeline, scale):
    """Times below the lanes, a dozen at most."""
    y = TOP + timeline.schedule.stages * (LANE + GAP)
    return "".join(f'<text x="{LEFT + t * scale:.1f}" y="{y + 12}" text-anchor="middle" fill="#000000">{t:g}</text>'
                   f'<rect x="{LEFT + t * scale:.1f}" y="{y - 2}" width="0.7" height="4" fill="#000000"/>'
                   for t in ticks(timeline.makespan))


def ticks(last):
    """Round numbers from 0 on, 12 at most, 1, 2 or 5 times a power of ten apart; and `last` itself."""
    if not last:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(last / 11))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if last / step <= 11)
    return [number * step for number in range(int(last / step) + 1) if number * step < last - step / 2] + [last]


def terminal(timeline, columns=100, colour=False):
    """The timeline in letters, one line a rank: F3 or B3---, or the letter alone, where a box is that short; . is idle.

    columns    characters of a line at most; where a step needs more, its middle is left out: ~
    colour     ANSI colours as well
    """
    s, makespan = timeline.schedule, timeline.makespan
    name = len(f"rank {s.stages - 1} |")
    room = max(columns - name - 1, 20)
    lengths = [t for kind in "FIW" for t in timeline.times.of_kind[kind] if t > 0] or [1.0]
    unit = max(min(lengths), max(lengths) / 4)                                # at least a character for so many seconds
    label = len(f"F{s.microbatches - 1}") + (len(f"{len(s.placement) - 1}-") if s.chunks > 1 else 0)
    per_unit = next((width for width in range(label, 1, -1) if makespan / unit * width <= room), 1)
    dt = unit / per_unit
    across = max(math.ceil(makespan / dt - 1e-9), 1)
    shown, middle = range(across), []
    if across > room:
        shown, middle = [*range(room // 2), *range(across - (room - room // 2 - 1), across)], [room // 2]
    times = [(column + 0.5) * dt for column in shown]
    lines = []
    for rank in range(s.stages):
        line = cells(timeline, rank, times, s.chunks > 1 and per_unit >= label, colour)
        for column in middle:
            line = [*line[:column], "~", *line[column:]]
        lines.append(f"rank {rank} |".rjust(name) + "".join(line) + "|")
    last = f"{makespan:g}"
    return "\n".join([*lines, " " * name + "0" + last.rjust(max(len(times) + len(middle), len(last) + 2) - 1)])


def cells(timeline, rank, times, with_stage, colour):
    """A rank's line, a character a column: what it does at each of the `times`; an action's columns spell its name."""
    row, starts, ends = timeline.schedule.ranks[rank], timeline.starts[rank], timeline.ends[rank]
    running = []                                                              # position of the action in each column
    position = 0
    for time in times:
        while position < len(row) and ends[position] <= time:
            position += 1
        running.append(position if position < len(row) and starts[position] <= time else None)
    out = []
    for position, run in groupby(running):
        width = len(list(run))
        text = "." * width if position is None else label_in(row[position], width, with_stage)
        if colour and position is not None:
            kind = parts(row[position])[0].kind
            out += [f"{ANSI[kind]}{letter}{RESET}" for letter in text]
        else:
            out += text
    return out


def label_in(action, width, with_stage):
    """An action's name in `width` characters: "4B3-" with its stage, "B3--", or only "B"; "FB--" for a pair."""
    halves = parts(action)
    short = "&".join(f"{half.kind}{half.microbatch}" for half in halves)
    letters = "".join(half.kind for half in halves)
    names = ["&".join(map(str, halves))] * with_stage + [short, letters, letters[:width]]
    return next(name for name in names if len(name) <= width).ljust(width, "-")


def check_svg_file(path):
    """ValueError unless an SVG can be written to `path`: said before the work, not after it."""
    check_plot_file(path, suffixes=(".svg",), option="--svg")


def save_svg(path, picture):
    """Write the SVG under a temporary name, then rename it: never half a file. ValueError as in `check_svg_file`."""
    check_svg_file(path)
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.svg")
    try:
        temporary.write_text(picture, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
