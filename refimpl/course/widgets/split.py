"""Two layers, y = relu(x w1) w2, cut over the ranks by columns or by rows, and the messages that each choice needs.

    rank 0   x   w1_0   relu(a_0)   w2_0   y_0 --|--> y      numbers, coloured by what a rank has of the matrix;
    rank 1   x   w1_1   relu(a_1)   w2_1   y_1 --|--> y      a bar across the ranks: a message, and what each sends
                                             all-reduce

Nothing is drawn from a formula: see split_run.py.
"""

from refimpl.course.widgets.interactive import Explorer, option, whole
from refimpl.course.widgets.split_run import CUTS, PASSES, Matrix, Message, messages, run_split
from refimpl.course.widgets.svg import arrow, bars, box, cells, legend, picture, text

MOST = 4                                                             # ranks
WIDE, HIGH = 24, 18                                                  # pixels: a number
SPACE, BAR, GAP, LEFT, TOP = 20, 92, 22, 70, 112                     # between matrices, for a message, between ranks


def draw_split(first="columns", second="rows", direction="forward", P=2):
    """All matrices of one pass on every rank, the messages between them, and the four ways compared: a `Picture`.

    first, second    how w1 and w2 are cut: "columns" or "rows"    direction    "forward" or "backward"    P    ranks
    """
    if direction not in PASSES or not 1 <= P <= MOST:
        raise ValueError(f"{direction!r} on {P} ranks: there is a forward and a backward pass, on 1 to {MOST} ranks")
    ran = run_split(first, second, P)
    ranks, sent = ran.passes[direction], sum(total[0] for total in ran.sent.values())
    title = f"w1 by {first}, w2 by {second}: rank 0 sends {sent} numbers a step"
    formula = {"forward": "a = x w1, h = relu(a), y = h w2",
               "backward": "dh = dy w2ᵀ, da = dh where h > 0, dx = da w1ᵀ"}[direction]
    tall = [HIGH * max(len(step.numbers) for step in found if isinstance(step, Matrix)) for found in ranks]
    tops = [TOP + sum(tall[:rank]) + GAP * rank for rank in range(P)]
    low = tops[-1] + tall[-1]
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, f"The {direction} pass: {formula}.", 13, kind="faint"),
              *(text(12, top + height / 2 + 5, f"rank {rank}", 13, bold=True)
                for rank, (top, height) in enumerate(zip(tops, tall, strict=True)))]
    x = LEFT
    for column in zip(*ranks, strict=True):
        draw = message_column if isinstance(column[0], Message) else matrix_column
        drawn, x = draw(column, x, tops, tall, low)
        shapes += drawn
    shapes += [legend(12, low + 34, [("soft", "whole, the same everywhere"), ("forward", "the rank's own"),
                                     ("backward", "an addend of a sum"), ("weight", "whole, by a message")]),
               text(12, low + 72, f"Numbers that rank 0 of {P} sends, forward and backward", 13, bold=True),
               four_ways(first, second, P, low + 84)]
    steps = messages(ranks[0])
    said = "; ".join(f"{step.words}, in which rank 0 sends {step.elements}" for step in steps) or "no message"
    return picture(max(x + 8, 720), low + 84 + 4 * 26 + 8, *shapes, title=title,
                   words=f"{direction.capitalize()} on {P} rank{'s' * (P > 1)}: {said}. {others(first, second, P)}")


def matrix_column(column, x, tops, tall, low):
    """A matrix on every rank, one below the other, from x on: (shapes, where the next one begins)"""
    wide = max(step.numbers.shape[1] for step in column) * WIDE
    shapes = [text(x + wide / 2, TOP - 10, column[0].name, 12, "middle", kind="faint")]
    for step, top, height in zip(column, tops, tall, strict=True):
        y = top + (height - HIGH * len(step.numbers)) / 2
        for k, row in enumerate(step.numbers):
            labels = [f"{number:g}" for number in row]
            shapes.append(cells(x, y + HIGH * k, labels, step.kinds, WIDE - 1, HIGH - 1, gap=1, size=11))
    return shapes, x + max(wide, 30) + SPACE


def message_column(column, x, tops, tall, low):
    """A message among all ranks, and what each sends in it."""
    middle, (verb, what) = x - SPACE + BAR / 2, column[0].words.split(" of ")
    shapes = [text(middle, TOP - 24, verb, 12, "middle", bold=True), text(middle, TOP - 10, f"of {what}", 12, "middle"),
              box(middle - 4, tops[0], 8, low - tops[0], kind="ink")]
    for step, top, height in zip(column, tops, tall, strict=True):
        y = top + height / 2
        shapes += [arrow(middle - 36, y, middle - 6, y), arrow(middle + 6, y, middle + 36, y),
                   text(middle - 8, y - 8, "sends", 11, "end"), text(middle + 8, y - 8, step.elements, 11, bold=True)]
    return shapes, x - SPACE + BAR + 4


def four_ways(first, second, P, y):
    """What rank 0 sends in a step, for each way to cut: bars."""
    rows = []
    for one in CUTS:
        for other in CUTS:
            forward, backward = (total[0] for total in run_split(one, other, P).sent.values())
            kind = "forward" if (one, other) == (first, second) else "idle"
            total = forward + backward
            rows.append((f"{one}, then {other}", total, f"{forward} + {backward} = {total}", kind))
    return bars(12, y, rows, 300, labels=150, height=18)


def others(first, second, P):
    """What the ways to cut send, in words."""
    total = lambda one, other: sum(sent[0] for sent in run_split(one, other, P).sent.values())
    return "A step sends " + ", ".join(f"{total(one, other)} with w1 by {one} and w2 by {other}"
                                       for one in CUTS for other in CUTS) + "."


def SplitExplorer(first="columns", second="rows", direction="forward", P=2):
    """The widget: how either matrix is cut, the pass, and the number of ranks."""
    return Explorer(draw_split, {
        "first": option("w1 by", CUTS, first), "second": option("w2 by", CUTS, second),
        "direction": option("Pass", PASSES, direction), "P": whole("Ranks", P, 1, MOST),
    }, name="split-explorer")
