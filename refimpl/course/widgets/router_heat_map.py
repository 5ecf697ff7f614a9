"""The router of a mixture of experts on one sequence: who goes where, how full experts get, and who is turned away.

                 token 0   1   2   3  ...
    expert 0     [ .6 ][ x ][ .5 ]              the bluer, the more probable; a weight where the expert takes the
    expert 1     [ .3 ][ .8 ]                   token, a cross where it chose the expert and there was no room
                                                beside it the load as a bar, and the capacity as a line

Nothing is drawn from a formula: the numbers are what `model/router.py` decides.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from refimpl.course.widgets.interactive import Explorer, option, stops, whole
from refimpl.course.widgets.svg import box, legend, line, picture, text
from refimpl.model import router

EXPERTS, TOKENS, HIDDEN = 8, 24, 6
RATE = 0.005                                                         # of the bias, a step
UNLIMITED = "no limit"
CELL, LEFT, TOP, LOAD = 26, 78, 92, 168                              # pixels: a token, names, title, the longest bar
DROPS = {"the last ones": router.BY_POSITION, "the lightest ones": router.BY_PROBABILITY}


@dataclass(frozen=True)
class Routing:
    """What became of a sequence: p (s, E), choice, weights and kept (s, k), load (E,), room or None, loss a token."""

    p: np.ndarray
    choice: np.ndarray
    weights: np.ndarray
    kept: np.ndarray
    load: np.ndarray
    room: int | None
    balance: float


@lru_cache(maxsize=256)
def routed(k=2, skew=1.0, factor=1.25, drop=router.BY_POSITION, steps=0):
    """Route one sequence of TOKENS tokens, the same every time, to EXPERTS experts: a `Routing`.

    skew      how much experts with low numbers are liked by all tokens    factor    of the capacity; inf: no limit
    steps     of the bias, each with the load that it leads to
    """
    rng = np.random.default_rng(9)
    x = np.concatenate([rng.normal(size=(1, TOKENS, HIDDEN)), np.ones((1, TOKENS, 1))], axis=-1)
    liked = skew * np.linspace(1, -1, EXPERTS)
    w = np.concatenate([rng.normal(size=(HIDDEN, EXPERTS)) / HIDDEN**0.5, liked[None]])
    bias = np.zeros(EXPERTS)
    for step in range(steps + 1):
        choice, weights, p, _ = router.route(x, w, k, bias=bias)
        load = router.load(choice, EXPERTS)[0]
        if step < steps:
            bias = router.update_bias(bias, load, RATE)
    room, kept = None, np.ones(choice.shape, bool)
    if factor < math.inf:
        room = router.capacity(k, TOKENS, EXPERTS, factor)
        kept = router.kept(choice, weights, range(TOKENS), room, EXPERTS, drop)
    f = router.frequency(load[None], k, TOKENS, p.dtype)[0]
    return Routing(p[0], choice[0], weights[0], kept[0], load, room, float((p[0] * f).sum() / TOKENS))


def draw_routing(k=2, skew=1.0, factor=1.25, drop=router.BY_POSITION, steps=0):
    """Tokens and experts, the loads beside them, and what is dropped: a `Picture`. Arguments as of `routed`."""
    if not 1 <= k <= EXPERTS or steps < 0:
        raise ValueError(f"k={k}, steps={steps}: a token chooses 1 to {EXPERTS} experts, and the bias takes 0 steps or "
                         "more")
    ran = routed(k, skew, factor, drop, steps)
    dropped, choices = int((~ran.kept).sum()), ran.choice.size
    title = f"{choices} choices, {dropped} dropped: {dropped / choices:.0%}"
    mean = choices / EXPERTS
    busiest = int(ran.load.argmax())
    told = (f"The mean load is {mean:g}; expert {busiest} has {ran.load[busiest]}. "
            + ("Experts take all." if ran.room is None else f"An expert takes {ran.room}.")
            + f" Auxiliary loss {ran.balance:.2f} a token.")
    right = LEFT + TOKENS * CELL + 14
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, told, 13, kind="faint"),
              text(LEFT, TOP - 24, "tokens of one sequence, in their order", 12, kind="faint"),
              text(right, TOP - 24, "load: who chose it", 12, kind="faint")]
    shapes += [text(LEFT + (t + 0.5) * CELL, TOP - 6, t, 11, "middle", kind="faint") for t in range(TOKENS)]
    for e in range(EXPERTS):
        y = TOP + e * CELL
        shapes.append(text(LEFT - 8, y + 17, f"expert {e}", 12, "end"))
        shapes += [cell(ran, t, e, LEFT + t * CELL, y) for t in range(TOKENS)]
        shapes.append(bar(ran, e, right, y))
    low = TOP + EXPERTS * CELL
    if ran.room is not None:
        x = right + LOAD * ran.room / TOKENS
        shapes += [line([(x, TOP - 6), (x, low + 6)], "ink", 2, dash="4 3"),
                   text(x, low + 20, f"capacity {ran.room}", 12, "middle")]
    shapes.append(shade(12, low + 12, 12, 12, 0.5) + text(29, low + 22, "probable", 12))
    shapes.append(legend(110, low + 22, [("forward", "taken, with its weight"), ("backward", "dropped: no room")]))
    lost = ", ".join(f"expert {e} {n}" for e in range(EXPERTS) if (n := int((ran.choice[~ran.kept] == e).sum())))
    return picture(right + LOAD + 40, low + 36, *shapes, title=title, words=f"{told} Loads of experts 0 to "
                   f"{EXPERTS - 1}: {', '.join(map(str, ran.load))}. Dropped: {lost or 'none'}.")


def cell(ran, t, e, x, y):
    """Token t at expert e: shaded by its probability, and what came of it if it chose the expert."""
    chosen = np.flatnonzero(ran.choice[t] == e)
    if not len(chosen):
        return box(x, y, CELL - 1, CELL - 1, kind="soft", round=1) + shade(x, y, CELL - 1, CELL - 1, ran.p[t, e])
    j = chosen[0]
    weight = f"{ran.weights[t, j]:.2f}".lstrip("0")
    hint = f"token {t}, expert {e}: weight {weight}"
    if ran.kept[t, j]:
        return box(x, y, CELL - 1, CELL - 1, weight, "forward", 11, hint=hint, round=1)
    return box(x, y, CELL - 1, CELL - 1, "×", "backward", 15, bold=True, hint=f"{hint}, dropped", round=1)


def shade(x, y, width, height, p):
    """A rectangle the bluer the more probable."""
    return (f'<rect class="forward" x="{x:g}" y="{y:g}" width="{width}" height="{height}" rx="1" '
            f'fill-opacity="{0.6 * math.sqrt(p):.2f}"/>')


def bar(ran, e, x, y):
    """The load of an expert: what it takes, and what it drops."""
    taken = int((ran.choice[ran.kept] == e).sum())
    unit = LOAD / TOKENS
    out = box(x, y + 4, max(taken * unit, 1), CELL - 9, kind="forward", round=1)
    if ran.load[e] > taken:
        out += box(x + taken * unit, y + 4, (ran.load[e] - taken) * unit, CELL - 9, kind="backward", round=1)
    return out + text(x + max(ran.load[e], ran.room or 0) * unit + 6, y + 17, ran.load[e], 12)


def RouterHeatMap(k=2, skew=1.0, factor=1.25, steps=0):
    """The widget: choices, how uneven the router is, the capacity, who is dropped, and steps of the bias."""
    factors = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, math.inf]
    return Explorer(draw_routing, {
        "k": whole("Choices of a token", k, 1, 4), "skew": stops("Favourites", skew, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0]),
        "factor": stops("Capacity factor", factor, factors, lambda f: UNLIMITED if f == math.inf else f"{f:g}"),
        "drop": option("Dropped are", DROPS), "steps": whole("Steps of the bias", steps, 0, 60),
    }, name="router-heat-map")
