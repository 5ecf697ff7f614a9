"""What every rank did in a step, as a picture: a lane for each rank, coloured by compute, communication, waiting. SVG.

    rank 0 |████▄▄████▂▂    ████|     compute tall, communication low, each dimension with a colour and a height of its
    rank 1 |    ████▄▄████▂▂████|     own, so that shape says what colour says; waiting is the grey behind
"""

from html import escape

from refimpl.course.plots.gantt import GAP, LANE, LEFT, TOP, ticks
from refimpl.train.activity import COMPUTE, WAITING, seconds

LOOK = {                                                     # colour, height in a lane; colours of Okabe & Ito (2008)
    COMPUTE: ("#0072B2", 24), "tp": ("#D55E00", 20), "ep": ("#CC79A7", 16), "cp": ("#009E73", 12),
    "pp": ("#E69F00", 8), "dp": ("#56B4E9", 4), WAITING: ("#E8E8E8", 24),
}
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def describe(ranks):
    """The picture in words. ranks: for each a list of `train.activity.Stretch`"""
    unit, name = unit_of(ranks)
    lines = [f"The last step on {len(ranks)} rank{'s' * (len(ranks) > 1)}, on the virtual clock."]
    for rank, stretches in enumerate(ranks):
        spent = seconds(stretches)
        words = [f"{what} {spent[what] / unit:.4g}" for what in LOOK if what in spent]
        lines.append(f"Rank {rank}, {name}: {', '.join(words)}.")
    return " ".join(lines)


def unit_of(ranks):
    """(seconds of it, its name) of a unit of time in which the step is a number of 1 or more."""
    start, end = span(ranks)
    return next((one for one in UNITS if end - start >= one[0]), UNITS[-1])


def span(ranks):
    """When the first rank began, and the last one ended."""
    everything = [stretch for stretches in ranks for stretch in stretches]
    return (min((s.start for s in everything), default=0.0), max((s.end for s in everything), default=0.0))


def svg(ranks, title="The last step, rank by rank", width=960):
    """The picture as an SVG element, with its text alternative. ranks as in `describe`; width in pixels"""
    (start, end), (unit, name), words = span(ranks), unit_of(ranks), describe(ranks)
    scale = (width - LEFT - 24) / (end - start) if end > start else 0.0
    height = TOP + len(ranks) * (LANE + GAP) + 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           f'role="img" aria-label="{escape(f"{title}. {words}")}" font-family="sans-serif" font-size="10">'
           f"<title>{escape(title)}</title><desc>{escape(words)}</desc>"
           f'<rect width="{width}" height="{height}" fill="#FFFFFF"/>'
           f'<text x="4" y="14" font-size="13" fill="#000000">{escape(title)}</text>', legend(ranks)]
    for rank, stretches in enumerate(ranks):
        out.append(f'<g transform="translate({LEFT},{TOP + rank * (LANE + GAP)})">'
                   f'<text x="{6 - LEFT}" y="16" font-size="12" fill="#000000">rank {rank}</text>')
        out += [box(stretch, start, scale, unit, name) for stretch in stretches]
        out.append("</g>")
    return "".join([*out, axis((end - start) / unit, name, scale * unit, height - 24), "</svg>"])


def box(stretch, start, scale, unit, name):
    """One stretch: a rectangle that stands on the lane's ground, and says on its own what it is."""
    colour, height = LOOK[stretch.what]
    left, right = ((t - start) / unit for t in stretch[:2])
    return (f'<rect x="{(stretch.start - start) * scale:.2f}" y="{LANE - height}" '
            f'width="{(stretch.end - stretch.start) * scale:.2f}" height="{height}" fill="{colour}">'
            f"<title>{stretch.what}: {left:.4g} to {right:.4g} {name}</title></rect>")


def legend(ranks):
    """What the colours and heights mean, of those that occur."""
    out, x = [], LEFT
    for what in LOOK:
        if any(stretch.what == what for stretches in ranks for stretch in stretches):
            colour, height = LOOK[what]
            words = what if what in (COMPUTE, WAITING) else f"{what} communication"
            out.append(f'<rect x="{x}" y="{32 - height / 2}" width="12" height="{height / 2}" fill="{colour}"/>'
                       f'<text x="{x + 16}" y="30" fill="#000000">{words}</text>')
            x += 34 + 5.5 * len(words)
    return "".join(out)


def axis(last, name, scale, y):
    """Times below the lanes, a dozen at most; scale: pixels per unit."""
    return "".join(f'<text x="{LEFT + t * scale:.1f}" y="{y + 12}" text-anchor="middle" fill="#000000">{t:.4g}'
                   f'{f" {name}" if t == last else ""}</text>'
                   f'<rect x="{LEFT + t * scale:.1f}" y="{y - 2}" width="0.7" height="4" fill="#000000"/>'
                   for t in ticks(last))
