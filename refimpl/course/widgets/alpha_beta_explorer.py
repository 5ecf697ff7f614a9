"""Which all-reduce is fastest, and from which size on: the alpha-beta model over message size, ranks, and a link.

    seconds |          / doubling: the whole array in each of lg P exchanges
            |  ring __/_ ___        ring: 2(P-1) small messages, each a P-th of the array
            |______/_____           they cross where the latencies saved are worth the bytes saved
            +------------ size of the array

Times come from `cost/alpha_beta.py`, which the suite holds against the algorithms as they run on a virtual clock.
"""

import math
from functools import lru_cache

from refimpl.cost.alpha_beta import doubling_all_reduce, rabenseifner_all_reduce, ring_all_reduce, tree_all_reduce
from refimpl.course.widgets.axes import Axes
from refimpl.course.widgets.interactive import Explorer, option, round_numbers, stops
from refimpl.course.widgets.svg import bars, line, picture, text

ALGORITHMS = {"ring": (ring_all_reduce, "forward"), "doubling": (doubling_all_reduce, "backward"),
              "Rabenseifner": (rabenseifner_all_reduce, "weight"), "tree": (tree_all_reduce, "purple")}
SIZES = (1e2, 1e11)                                                  # bytes of the picture
RANKS = [2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024]
POINTS = 55                                                          # of a curve: six a decade


@lru_cache(maxsize=4096)
def seconds(name, size, P, alpha, beta):
    """Time of the all-reduce `name` for `size` bytes on P ranks: alpha seconds a message, beta seconds a byte."""
    return ALGORITHMS[name][0](P, alpha, size * beta)


def crossing(one, other, P, alpha, beta, sizes=SIZES):
    """The size in bytes from which on `one` is faster than `other`; None if it never is, 0.0 if always, within `sizes`.

    Found on the formulas by bisection; where they meet more than once, the last time.
    """
    gain = lambda size: seconds(other, size, P, alpha, beta) - seconds(one, size, P, alpha, beta)
    grid = spread(sizes)
    wins = [gain(size) > 1e-12 * seconds(one, size, P, alpha, beta) for size in grid]
    if not wins[-1]:
        return None
    if all(wins):
        return 0.0
    last = max(k for k, win in enumerate(wins) if not win)
    low, high = grid[last], grid[last + 1]
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if gain(middle) > 0 else (middle, high)
    return high


def spread(sizes):
    """Sizes of a curve's points, evenly apart on a logarithmic axis."""
    first, last = map(math.log10, sizes)
    return [10 ** (first + (last - first) * k / (POINTS - 1)) for k in range(POINTS)]


def draw_alpha_beta(P=64, alpha_us=10.0, bandwidth=50.0, size=1e6):
    """Time over size for the four algorithms, where the ring overtakes, and the four at one size: a `Picture`.

    P    ranks    alpha_us    latency in microseconds    bandwidth    GB/s of a link, each way    size    bytes
    """
    if P < 2:
        raise ValueError(f"P={P}: an all-reduce needs 2 ranks or more to send anything")
    if min(alpha_us, bandwidth, size) <= 0:
        raise ValueError(f"alpha {alpha_us} µs, {bandwidth} GB/s, {size} bytes: all must be above 0")
    link = P, alpha_us * 1e-6, 1e-9 / bandwidth
    times = {name: seconds(name, size, *link) for name in ALGORITHMS}
    overtakes = {name: crossing("ring", name, *link) for name in ("doubling", "tree", "Rabenseifner")}
    fastest = min(times, key=times.get)
    verdict = f"{bytes_words(size)} on {P} ranks: {fastest} is fastest, {seconds_words(times[fastest])}"
    under = f"alpha = {alpha_us:g} µs a message, beta = 1/({bandwidth:g} GB/s); free links, no compute."
    said = "; ".join(f"{name} {from_when(first)}" for name, first in overtakes.items())
    return picture(930, 432, text(12, 24, f"All-reduce: {verdict}", 16, bold=True), text(12, 44, under, kind="faint"),
                   chart(link, size, overtakes), comparison(times, size, overtakes),
                   title=f"Time of an all-reduce on {P} ranks over the size of the array",
                   words=f"{verdict}. " + ", ".join(f"{name} {seconds_words(time)}" for name, time in times.items())
                   + f". The ring beats {said}.")


def chart(link, size, overtakes):
    """The curves, the size at which the bars compare, and the points where the ring overtakes."""
    curves = {name: [(x, seconds(name, x, *link)) for x in spread(SIZES)] for name in ALGORITHMS}
    heights = [y for points in curves.values() for _, y in points]
    up = 10.0 ** math.floor(math.log10(min(heights))), 10.0 ** math.ceil(math.log10(max(heights)))
    axes = Axes(76, 84, 470, 300, SIZES, up, "size of the array, bytes", "seconds", log="xy",
                write={"x": bytes_words, "y": seconds_words})
    shapes = [axes.frame(), line([axes.place(size, up[1]), axes.place(size, up[0])], "ink", 1, dash="3 3")]
    shapes += [axes.curve(points, kind=ALGORITHMS[name][1]) for name, points in curves.items()]
    shapes += [axes.point(overtakes[name], seconds("ring", overtakes[name], *link),
                          f"ring = {name} at {bytes_words(overtakes[name])}", side=side)
               for name, side in (("tree", "above-left"), ("doubling", "below-right")) if overtakes[name]]
    return "".join(shapes)


def comparison(times, size, overtakes):
    """Beside the chart: the times at one size as bars, which are the curves' legend, and when the ring is faster."""
    rows = [(name, time, seconds_words(time), ALGORITHMS[name][1]) for name, time in times.items()]
    shapes = [text(574, 96, f"Time for {bytes_words(size)}", bold=True), bars(596, 112, rows, 150, labels=104)]
    shapes += [Axes.swatch(574, 122 + 28 * k, kind) for k, (*_, kind) in enumerate(rows)]
    shapes.append(text(574, 252, "The ring beats", bold=True))
    shapes += [text(574, 274 + 22 * k, f"{name}: {from_when(first)}")
               for k, (name, first) in enumerate(overtakes.items())]
    return "".join(shapes)


def from_when(size):
    """A crossing in words."""
    return "never" if size is None else "at every size" if size == 0 else f"from {bytes_words(size)} on"


def bytes_words(size):
    """A number of bytes as people write it: 1.5 MB is 1.5 million."""
    return _scaled(size, ["B", "kB", "MB", "GB", "TB"])


def seconds_words(time):
    """A time as people write it."""
    return _scaled(1e9 * time, ["ns", "µs", "ms", "s"])


def _scaled(number, units):
    """Three digits and the unit that suits, of units a thousand apart; the number is in the first of them."""
    for unit in units[:-1]:
        if float(f"{number:.3g}") < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{float(f'{number:.3g}'):,g} {units[-1]}"


def AlphaBetaExplorer(P=64, alpha_us=10.0, bandwidth=50.0, size=1e6):
    """The widget: ranks, latency, bandwidth and the size at which the bars compare."""
    return Explorer(draw_alpha_beta, {
        "P": option("Ranks", [(str(P), P) for P in RANKS], P),
        "alpha_us": stops("Latency alpha, µs", alpha_us, round_numbers(-1, 3)),
        "bandwidth": stops("Bandwidth, GB/s", bandwidth, round_numbers(-1, 3)),
        "size": stops("Size", size, round_numbers(2, 11), bytes_words),
    }, name="alpha-beta-explorer")
