"""The planner's map: every tp and pp for a number of GPUs, the fastest that fits, and what keeps the others out.

              TP 1      TP 2      TP 4      TP 8      TP 16
    PP 1      3143 GB   1572 GB   ...                            does not fit: the least that it would take
    PP 8      786 GB    84 GB     18.7 s #1  19.5 s #3  27 s     fits: seconds of a step, and its place
    PP 16     ...                           [19.6 s]             in a frame: the classical rule

    the classical rule    TP fills the node, PP across nodes until it fits, DP is the rest (Narayanan et al. 2021)

The search is cost/planner.py with some settings held, so that a picture takes a moment. Nothing is ranked here.
"""

from dataclasses import replace
from functools import lru_cache

from refimpl.cost.hardware import Link
from refimpl.cost.hardware import find as find_gpu
from refimpl.cost.models import find as find_model
from refimpl.cost.planner import Question, plan
from refimpl.course.widgets.cases import CASES, FIRST
from refimpl.course.widgets.interactive import Explorer, option, stops
from refimpl.course.widgets.svg import box, legend, line, picture, text
from refimpl.course.widgets.what_if import layout_words

COLUMNS = (1, 2, 4, 8, 16)
ROWS = (1, 2, 4, 8, 16, 32)
WIDE, HIGH, LEFT, TOP = 156, 40, 92, 92                    # of a cell, and where the map begins
BEST = 5                                                   # layouts that are listed


@lru_cache(64)
def planned(case, cp, zero, recompute, micro_batch, network, gpus):
    """The `Plan` of a case with these settings held."""
    known = CASES[case]
    card = find_gpu(known.gpu)
    card = replace(card, network=Link(card.network.alpha, card.network.bandwidth * network))
    fixed = {"cp": cp, "zero": zero, "recompute": recompute, "micro_batch": micro_batch}
    if find_model(known.model).experts:
        fixed |= {"expert_tp": 1, "ep": known.start["ep"], "chunks": known.start["chunks"]}
    return plan(Question(find_model(known.model), card, round(known.gpus * gpus), known.batch, known.sequence,
                         flash=known.flash, grad_dtype="float32", fixed=tuple(fixed.items())))


def draw_plan(case=FIRST, cp=1, zero=1, recompute="selective", micro_batch=1, network=1.0, gpus=1.0):
    """The map and the fastest layouts: a `Picture`."""
    known, found = CASES[case], planned(case, cp, zero, recompute, micro_batch, network, gpus)
    card, rule = find_gpu(known.gpu), classical(found, find_gpu(known.gpu).node_size)
    shown = places(found)
    fit = f"{len(found.layouts)} layout{'s fit' if len(found.layouts) > 1 else ' fits'}"
    title = (f"{fit}, {len(found.refused)} do not; the fastest takes "
             f"{found.layouts[0].seconds:.3g} s" if found.layouts else f"None of {len(found.refused)} layouts fits")
    shapes = [text(12, 24, f"{case}: {title}", 16, bold=True),
              text(12, 44, f"Each cell: its best chunks with CP {cp}, ZeRO {zero}, recompute {recompute}, "
                   f"micro-batches of {micro_batch}; GB of {card.memory / 1e9:.1f} on the fullest", 12, kind="faint")]
    shapes += [text(LEFT + WIDE * (k + 0.5), TOP - 10, f"TP {tp}", 13, "middle") for k, tp in enumerate(COLUMNS)]
    for row, pp in enumerate(ROWS):
        shapes.append(text(LEFT - 10, TOP + HIGH * row + 25, f"PP {pp}", 13, "end"))
        for column, tp in enumerate(COLUMNS):
            where = LEFT + WIDE * column, TOP + HIGH * row
            shapes.append(cell(*where, shown.get((tp, pp)), rule is not None and (tp, pp) == rule[:2]))
    y = TOP + HIGH * len(ROWS) + 22
    shapes.append(legend(LEFT, y, [("weight", "fastest"), ("forward", "at most 10% slower"), ("soft", "fits"),
                                   ("none", "does not fit, or cannot be cut so")]))
    y += 34
    shapes += [text(12, y, "The fastest", bold=True)]
    for k, one in enumerate(found.layouts[:BEST]):
        y += 22
        figures = f"{k + 1}.  {one.seconds:.3g} s, {one.bytes / 1e9:.1f} GB"
        shapes += [text(24, y, figures, 12), text(180, y, layout_words(one.training), 12)]
    y += 30
    shapes.append(text(12, y, f"The classical rule: {rule_words(found, rule)}", 13))
    first = found.refused[0] if found.refused else None
    shapes.append(text(12, y + 24, f"Refused, for one: {refused_words(first)}", 12, kind="faint") if first else "")
    best = f"Fastest: {layout_words(found.layouts[0].training)}. " if found.layouts else ""
    return picture(930, y + 44, *shapes, title=f"{case}: {title}",
                   words=f"{best}The classical rule: {rule_words(found, rule)}")


def places(found):
    """{(tp, pp): (place in the ranking, Ranked) or the `Refused`} of what the map shows."""
    shown = {}
    for one in found.refused:
        shown.setdefault((one.layout.tp, one.layout.pp), (None, one))
    for number, one in reversed(list(enumerate(found.layouts, 1))):
        layout = one.training.layout
        shown[layout.tp, layout.pp] = number, one, one.seconds / found.layouts[0].seconds
    return shown


def cell(x, y, what, framed):
    """One tp and pp: its time and memory, or what it lacks."""
    left, right, high, low = x - 1, x + WIDE - 3, y - 1, y + HIGH - 3
    corners = [(left, high), (right, high), (right, low), (left, low), (left, high)]
    frame = line(corners, "ink", 2.5) if framed else ""
    if what is None:
        return text(x + WIDE / 2 - 2, y + 25, "\u2013", 12, "middle", kind="faint") + frame
    if what[0] is None:
        return (box(x + 2, y + 2, WIDE - 8, HIGH - 8, kind="none", hint=what[1].reason)
                + text(x + WIDE / 2 - 2, y + 25, lacks(what[1]), 12, "middle", kind="faint") + frame)
    number, one, slower = what
    kind = "weight" if number == 1 else "forward" if slower <= 1.1 else "soft"
    return box(x + 2, y + 2, WIDE - 8, HIGH - 8, f"{one.seconds:.3g} s, {one.bytes / 1e9:.0f} GB", kind, 13,
               bold=number == 1, hint=layout_words(one.training)) + frame


def lacks(refused):
    """Why a layout was refused, in a word or two."""
    first = refused.reason.split(" ")
    return f"{int(first[0]):,} GB" if first[0].isdigit() and first[1] == "GB" else "cannot be cut"


def classical(found, node):
    """(tp, pp, Ranked) of the rule: TP fills the node, then the fewest pipeline ranks that fit; None if none does."""
    fits = [(one.training.layout.pp, one.seconds, one) for one in found.layouts if one.training.layout.tp == node]
    if not fits:
        return None
    pp, _, one = min(fits, key=lambda row: row[:2])
    return node, pp, one


def rule_words(found, rule):
    """What the rule gives, beside the search."""
    if rule is None:
        return "TP that fills the node does not fit here, with any number of stages."
    tp, pp, one = rule
    slower = one.seconds / found.layouts[0].seconds - 1
    return f"TP {tp} fills the node, PP {pp} is the first to fit: {one.seconds:.3g} s, {slower:.0%} behind the fastest."


def refused_words(refused):
    """A layout and the reason."""
    layout = refused.layout
    return f"DP {layout.dp} x TP {layout.tp} x PP {layout.pp}: {refused.reason}"[:150]


def PlannerExplorer(case=FIRST):
    """The widget: a case, and the settings that are held."""
    start = lambda case: {"cp": CASES[case].start.get("cp", 1), "zero": CASES[case].start["zero"],
                          "recompute": CASES[case].start["recompute"], "micro_batch": 1, "network": 1.0, "gpus": 1.0}
    first, menu = start(case), option("Case", list(CASES), case)
    menu.observe(lambda change: explorer.set(**start(change["new"])), "value")      # before the Explorer draws it
    explorer = Explorer(draw_plan, {
        "case": menu, "cp": stops("CP", first["cp"], [1, 2, 4, 8, 16]),
        "zero": stops("ZeRO stage", first["zero"], [0, 1, 2, 3]),
        "recompute": option("Recompute", ["none", "selective", "full"], first["recompute"]),
        "micro_batch": stops("Micro-batch", 1, [1, 2, 4, 8]),
        "network": stops("Network, times", 1.0, [0.1, 0.25, 0.5, 1.0, 2.0, 4.0]),
        "gpus": stops("GPUs, times", 1.0, [0.5, 1.0, 2.0]),
    }, name="planner-explorer")
    return explorer
