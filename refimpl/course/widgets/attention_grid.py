"""The blocks of ring attention: which pairs of a query and a key each rank computes in which step, and who waits.

    queries    keys 0 1 2 3 ...        a row is a query, a column is a key; below the diagonal is what causality leaves.
       0   rank 0   [x]                In step t rank r has the keys of rank r - t: those pairs are blue. Grey ones are
       1   rank 0   [x][x]             done, white ones will be. Beside it what each rank does in this step: the next
       2   rank 1   [.][.][x]          begins when the last one is done.

Positions and pairs are those of parallel/context_layout.py and context_work.py, which the ring itself asks.
"""

from functools import lru_cache

from refimpl.course.widgets.interactive import Explorer, option, switch, whole
from refimpl.course.widgets.svg import bars, box, legend, line, picture, text
from refimpl.parallel.context_layout import LAYOUTS, all_positions, check_layout
from refimpl.parallel.context_work import visible_pairs

MOST = 8
SIDE, LEFT, TOP = 384, 96, 108                                       # pixels: the grid's side, names, title
SPECK = 1                                                            # between boxes
BARS = {"height": 18, "gap": 5, "labels": 56}


def length(P):
    """Positions of the picture: a multiple of 2 P, 16 to 32."""
    return 2 * P * -(-16 // (2 * P))


@lru_cache(maxsize=128)
def balance(P, layout, causal):
    """pairs[t][r]: what rank r computes in step t."""
    everybody = all_positions(length(P), P, layout)
    return tuple(tuple(visible_pairs(everybody[r], everybody[(r - t) % P], causal) for r in range(P)) for t in range(P))


def efficiency(P, layout, causal):
    """Share of the time that ranks work, if each step takes as long as its busiest rank."""
    pairs = balance(P, layout, causal)
    return sum(map(sum, pairs)) / (P * sum(map(max, pairs)))


def draw_grid(P=4, layout="contiguous", causal=True, step=0, sort=False):
    """All pairs at one step of the ring, and the balance of this step and of all: a `Picture`.

    P    ranks    layout    of positions    step    0 to P - 1    sort    rows and columns by rank, not by position
    """
    check_layout(layout)
    if not 1 <= P <= MOST or not 0 <= step < P:
        raise ValueError(f"step={step} of a ring of {P}: expected 1 to {MOST} ranks and steps 0 to {P - 1}")
    s, everybody, pairs = length(P), all_positions(length(P), P, layout), balance(P, layout, causal)
    busiest, idle = max(pairs[step]), sum(max(pairs[step]) - n for n in pairs[step])
    name = f"{layout}{', causal' if causal else ', every key seen'}"
    title = f"Step {step} of a ring of {P}, {name}: {busiest} pairs on the busiest rank"
    told = (f"Each rank has {s // P} of {s} positions. "
            + (f"Ranks lose {idle} pairs' time in this step." if idle else "All ranks have the same to do.")
            + f" Over all steps they work {efficiency(P, layout, causal):.0%} of the time.")
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, told, 13, kind="faint"),
              cells_of(everybody, causal, step, sort)]
    low, x = TOP + SIDE, LEFT + SIDE + 34
    shapes.append(text(x, TOP - 26, "Pairs in this step", 13, bold=True))
    most = max(map(max, pairs))
    kind = lambda n: "forward" if n == busiest or not idle else "idle"
    shapes.append(bars(x, TOP - 12, [(f"rank {r}", n, str(n) if n else "0: waits", kind(n))
                                     for r, n in enumerate(pairs[step])], 120, longest=most, **BARS))
    y = TOP - 12 + 23 * P + 30
    totals = [sum(row[r] for row in pairs) for r in range(P)]
    shapes.append(text(x, y, "Pairs in all steps", 13, bold=True))
    shapes.append(bars(x, y + 14, [(f"rank {r}", n, str(n), "forward") for r, n in enumerate(totals)], 120,
                       longest=max(totals), **BARS))
    shapes.append(legend(12, max(low, y + 14 + 23 * P) + 26,
                         [("forward", "computed in this step"), ("idle", "in an earlier one"),
                          ("plain", "in a later one"), ("none", "empty: never, the key is later")]))
    who = ", ".join(f"rank {r} {n} with the keys of rank {(r - step) % P}" for r, n in enumerate(pairs[step]))
    return picture(x + 56 + 120 + 70, max(low, y + 14 + 23 * P) + 40, *shapes, title=title,
                   words=f"{told} In this step: {who}. In all: {', '.join(map(str, totals))}.")


def cells_of(everybody, causal, step, sort):
    """The grid: neighbours in a row that are alike are one box."""
    P, s = len(everybody), sum(map(len, everybody))
    owner = {p: r for r, mine in enumerate(everybody) for p in mine}
    order = [p for mine in everybody for p in mine] if sort else list(range(s))
    size, out = SIDE / s, []
    for i, query in enumerate(order):
        rank, row = owner[query], []
        for key in order:
            when = (rank - owner[key]) % P
            now = "forward" if when == step else "idle" if when < step else "plain"
            row.append("" if causal and key > query else now)
        begin = 0
        while begin < s:
            end = next((k for k in range(begin, s) if row[k] != row[begin]), s)
            if row[begin]:
                out.append(box(LEFT + begin * size, TOP + i * size, (end - begin) * size - SPECK, size - SPECK,
                               kind=row[begin], round=1))
            begin = end
    out += names(order, owner, size)
    return "".join(out)


def names(order, owner, size):
    """Which rank has which rows and columns, and lines between those of different ones."""
    keys = "keys, by position" if order == sorted(order) else "keys, by rank"
    out = [text(LEFT + SIDE / 2, TOP - 34, keys, 12, "middle", kind="faint"),
           text(12, TOP - 10, "queries of", 12, kind="faint")]
    begin = 0
    while begin < len(order):
        rank = owner[order[begin]]
        end = next((k for k in range(begin, len(order)) if owner[order[k]] != rank), len(order))
        middle = (begin + end) / 2 * size
        out.append(text(LEFT + middle, TOP - 12, rank, 12, "middle"))
        out.append(text(LEFT - 10, TOP + middle + 4, f"rank {rank}", 12, "end"))
        if begin:
            at = begin * size - SPECK / 2
            out += [line([(LEFT + at, TOP - 24), (LEFT + at, TOP)], "plain", 1),
                    line([(LEFT - 66, TOP + at), (LEFT, TOP + at)], "plain", 1)]
        begin = end
    return out


def AttentionGrid(P=4, layout="contiguous", causal=True, step=0):
    """The widget: ranks, layout, causal or not, the step, and the order of rows and columns."""
    return Explorer(draw_grid, {
        "P": whole("Ranks", P, 1, MOST), "layout": option("Layout", LAYOUTS, layout),
        "causal": switch("Causal", causal), "sort": switch("Sort by rank"), "step": whole("Step", step, 0, P - 1),
    }, adjust=lambda P, step, **others: {"step": {"max": P - 1}}, name="attention-grid")
