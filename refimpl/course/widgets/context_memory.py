"""What attention takes on one rank as the sequence grows: with its matrix, without, and dealt out over ranks.

    bytes |      / the matrix of scores: s^2            all axes logarithmic: a slope of two, and slopes of one
          |     /  __/ blockwise, one rank: s
          |    /__/  __/ the same over P ranks: s/P     parallel to it, P times lower, and never flat
          |   __/ __/
          +------------ s

Kept bytes come from cost/context.py, which the suite holds against the operators.
"""

from refimpl.cost import context
from refimpl.course.widgets.alpha_beta_explorer import bytes_words
from refimpl.course.widgets.axes import Axes
from refimpl.course.widgets.interactive import Explorer, option, stops
from refimpl.course.widgets.svg import bars, line, picture, text

HEADS, FEATURES, ITEM = 32, 128, 2                                   # of a layer: query heads, features, bfloat16
FIRST, LAST = 10, 20                                                 # powers of two: 1 Ki to 1 Mi positions
RANKS = [1, 2, 4, 8, 16, 32, 64, 128]


def scores(s):
    """Bytes of the matrix of scores, one sequence, all heads."""
    return HEADS * s * s * ITEM


def kept(s, kv_heads, P):
    """Bytes that a rank keeps of a layer's attention until backward."""
    return context.kept(1, s, HEADS, kv_heads, FEATURES, P, ITEM)


def passing(s, kv_heads, P, kind="ring"):
    """Bytes beside those while it computes: two blocks of keys and values that pass, or all that were gathered."""
    blocks = 0 if P == 1 else 2 if kind == "ring" else P
    return blocks * ITEM * context.kv_block(1, s, kv_heads, FEATURES, P)


def draw_memory(power=17, P=8, kv_heads=8):
    """Bytes over the length of the sequence, and what they are at 2**power positions: a `Picture`.

    P    ranks    kv_heads    of 32 query heads
    """
    if not FIRST <= power <= LAST or P not in RANKS or HEADS % kv_heads:
        raise ValueError(f"2**{power} positions on {P} ranks, {kv_heads} key-value heads: expected 2**{FIRST} to "
                         f"2**{LAST}, ranks {', '.join(map(str, RANKS))}, and heads that divide {HEADS}")
    s, grid = 2**power, [2**p for p in range(FIRST, LAST + 1)]
    mine, alone = kept(s, kv_heads, P), kept(s, kv_heads, 1)
    title = f"{positions(s)} positions on {P} rank{'s' * (P > 1)}: {bytes_words(mine)} a layer on each"
    twice = kept(2 * s, kv_heads, P)
    told = (f"Twice the positions take {bytes_words(twice)} on as many ranks, and "
            f"{bytes_words(kept(2 * s, kv_heads, 2 * P))} on {2 * P}: O(s/P), not O(1).")
    axes = Axes(84, 96, 400, 300, (grid[0], grid[-1]), (1e5, 1e14), "positions of the sequence", "bytes a rank",
                log="xy", write={"x": "{:,.0f}".format, "y": bytes_words})
    curves = {"the scores": ([(n, scores(n)) for n in grid], "backward"),
              "one rank": ([(n, kept(n, kv_heads, 1)) for n in grid], "purple"),
              f"{P} ranks": ([(n, kept(n, kv_heads, P)) for n in grid], "forward"),
              "s/P fixed": ([(n, mine) for n in grid if n >= s / P], "weight")}
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, told, 13, kind="faint"), axes.frame(),
              line([axes.place(s, 1e14), axes.place(s, 1e5)], "ink", 1, dash="3 3"),
              *(axes.curve(points, kind=kind) for points, kind in curves.values()), axes.point(s, mine)]
    rows = [("the scores", scores(s), bytes_words(scores(s)), "backward"),
            ("one rank", alone, bytes_words(alone), "purple"), (f"{P} ranks", mine, bytes_words(mine), "forward"),
            ("s/P fixed", mine, "the same for every s", "weight")]
    shapes += [text(512, 100, f"At {positions(s)} positions, kept of a layer", 13, bold=True)]
    shapes += [Axes.swatch(512, 128 + 28 * k, kind) + text(542, 132 + 28 * k, f"{name}: {words}", 13)
               for k, (name, _, words, kind) in enumerate(rows)]
    now = [(words, n, bytes_words(n), "forward") for words, n in
           (("kept", mine), ("ring", passing(s, kv_heads, P)), ("gather", passing(s, kv_heads, P, "gather")))]
    shapes += [text(512, 266, "Kept on a rank, and beside it at work", 13, bold=True),
               bars(512, 280, now, 170, labels=58),
               text(512, 384, "ring: two blocks that pass; gather: all keys", 12, kind="faint")]
    return picture(864, 446, *shapes, title=title, words=f"{told} On one rank it would be {bytes_words(alone)}, the "
                   f"matrix of scores {bytes_words(scores(s))}. While computing the ring holds {now[1][2]} more, "
                   f"gathered keys {now[2][2]}.")


def positions(n):
    """A number of positions as people write it: 128 Ki is 2**17."""
    for unit, words in ((2**20, "Mi"), (2**10, "Ki")):
        if n >= unit:
            return f"{n / unit:.3g} {words}"
    return str(n)


def ContextMemory(power=17, P=8, kv_heads=8):
    """The widget: the length of the sequence, ranks, and key-value heads."""
    return Explorer(draw_memory, {
        "power": stops("Positions", power, list(range(FIRST, LAST + 1)), lambda p: positions(2**p)),
        "P": stops("Ranks", P, RANKS),
        "kv_heads": option("Key-value heads", [(str(n), n) for n in (1, 2, 4, 8, 16, 32)], kv_heads),
    }, name="context-memory")
