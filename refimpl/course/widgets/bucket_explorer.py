"""Buckets of gradients behind backward: how large they should be, and what of their all-reduces stays hidden.

    backward      |  1  |  2  |  3  |  4  |               the gradients of a bucket are ready after each quarter
    network             |==1==|==2==|==3==|==4==|
                                          T     end       hidden up to T, paid for after it

    step |  \\           /     few large buckets: much is left over after T
         |   \\_______ /       many small ones: latencies; between the two is the best size
         +------------- bytes of a bucket

Times come from `cost/overlap.py`, which the suite holds against `parallel/data.py` as it runs on a virtual clock.
"""

import math

from refimpl.cost.overlap import best_buckets, bucketed_step, hidden
from refimpl.course.plots.gantt import ticks
from refimpl.course.widgets.alpha_beta_explorer import bytes_words, seconds_words
from refimpl.course.widgets.axes import Axes
from refimpl.course.widgets.interactive import Explorer, option, round_numbers, stops
from refimpl.course.widgets.svg import arrow, bars, box, legend, line, picture, text, width_of

RANKS = [2, 4, 8, 16, 32, 64, 128, 256]
BUCKETS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 200]
POINTS = 90                                                          # of a curve
LEFT, WIDE, LANE = 92, 808, 26                                       # pixels: where lanes begin, their width and height


def draw_buckets(P=8, K=4, backward_ms=20.0, megabytes=200.0, alpha_us=20.0, bandwidth=25.0):
    """One backward with its all-reduces in K equal buckets, and the step's time for buckets of all sizes: a `Picture`.

    P    ranks    K    buckets    backward_ms    milliseconds of backward alone    megabytes    of gradients
    alpha_us    latency in microseconds    bandwidth    GB/s of a link, each way
    """
    if P < 2 or K < 1:
        raise ValueError(f"{P} ranks, {K} buckets: 2 ranks or more send gradients, in 1 bucket or more")
    if min(backward_ms, megabytes, alpha_us, bandwidth) <= 0:
        raise ValueError(f"{backward_ms} ms, {megabytes} MB, {alpha_us} µs, {bandwidth} GB/s: all must be above 0")
    T, G, link = backward_ms * 1e-3, megabytes * 1e6, (P, alpha_us * 1e-6, 1e-9 / bandwidth)
    step, covered, best = bucketed_step(T, G, K, *link), hidden(T, G, K, *link), best_whole(T, G, *link)
    sent = covered + step - T
    title = f"{K} bucket{'s' * (K > 1)} of {bytes_words(G / K)}: backward and all-reduces take {seconds_words(step)}"
    computing = T + bucket_time(G, K, *link) >= step * (1 - 1e-12)
    decides = "Computing decides" if computing and K > 1 else "Nothing overlaps" if K == 1 else "The network decides"
    under = (f"{decides}. Hidden: {seconds_words(covered) if K > 1 else 0} of {seconds_words(sent)} of communication; "
             f"backward alone takes {seconds_words(T)}.")
    return picture(930, 500, text(12, 24, title, 16, bold=True), text(12, 44, under, kind="faint"),
                   lanes(T, G, K, step, link), chart(T, G, K, step, best, link), comparison(T, G, K, best, link),
                   title=title,
                   words=f"{under} Best: {best} bucket{'s' * (best > 1)} of {bytes_words(G / best)}, "
                   f"{seconds_words(bucketed_step(T, G, best, *link))}; one bucket takes "
                   f"{seconds_words(bucketed_step(T, G, 1, *link))}.")


def best_whole(T, G, P, alpha, beta):
    """The best number of equal buckets: of the two whole numbers beside that of the formula, the better one."""
    stated = best_buckets(T, G, P, alpha, beta)
    return min(math.floor(stated), math.ceil(stated), key=lambda K: bucketed_step(T, G, K, P, alpha, beta))


def bucket_time(G, K, P, alpha, beta):
    """Seconds of one bucket's all-reduce."""
    return bucketed_step(0.0, G / K, 1, P, alpha, beta)


def when(T, G, K, P, alpha, beta):
    """[(ready, begin, end)] of each bucket's all-reduce: it begins when it is ready and the one before has ended."""
    each, free, found = bucket_time(G, K, P, alpha, beta), 0.0, []
    for k in range(K):
        ready = (k + 1) * T / K
        begin = max(ready, free)
        free = begin + each
        found.append((ready, begin, free))
    return found


def lanes(T, G, K, step, link):
    """Two lanes of time: backward, bucket by bucket, and the network's all-reduces."""
    at = lambda seconds: LEFT + WIDE * seconds / step
    gap = 1 if WIDE * T / K / step > 3 else 0                        # between neighbours, where there is room for it
    backward, network = 66, 66 + LANE + 8                            # where the lanes are
    shapes = [text(12, backward + 18, "backward", bold=True), text(12, network + 18, "network", bold=True)]

    def part(first, last, y, kind, number="", after=gap):
        width = at(last) - at(first) - after
        shapes.append(box(at(first), y, width, LANE, number if width > 25 else "", kind, 12, round=1))

    for k, (ready, begin, end) in enumerate(when(T, G, K, *link)):
        part(ready - T / K, ready, backward, "backward", k + 1)
        behind = min(max(T, begin), end)                             # from then on nothing hides it
        mostly_hidden = behind - begin >= end - behind
        if behind > begin:
            part(begin, behind, network, "forward", k + 1 if mostly_hidden else "", gap * (behind == end))
        if end > behind:
            part(behind, end, network, "purple", "" if mostly_hidden else k + 1)
    low, exposed = network + LANE, f"{seconds_words(step - T)} more"
    shapes.append(line([(at(T), backward - 4), (at(T), low + 22)], "ink", 1.5, dash="3 3"))
    if at(step) - at(T) > width_of(exposed, 12) + 60:
        shapes += [arrow(at(T) + 2, low + 14, at(step), low + 14), text(at(T) + 8, low + 30, exposed, 12)]
    else:
        shapes.append(text(at(T) - 8, low + 18, f"backward ends; {exposed}", 12, "end"))
    shapes.append(legend(LEFT, low + 46, [("backward", "backward computes"), ("forward", "an all-reduce, hidden"),
                                          ("purple", "an all-reduce that is waited for")]))
    return "".join(shapes)


def chart(T, G, K, step, best, link):
    """The step's time over the size of a bucket, with the two bounds of which it is the larger."""
    one = bucketed_step(T, G, 1, *link)
    numbers = [BUCKETS[-1] ** (n / (POINTS - 1)) for n in range(POINTS)]
    network = lambda K: T / K + bucketed_step(0.0, G, K, *link)
    computing = lambda K: T + bucket_time(G, K, *link)
    highest = max(1.15 * one, 1.05 * step)
    highest = rounded_up(1e3 * highest) / 1e3
    sizes = G / BUCKETS[-1], G
    axes = Axes(92, 222, 470, 226, sizes, (0.0, 1e3 * highest), "bytes of a bucket", "ms", log="x",
                write={"x": bytes_words})
    drawn = lambda f: [(G / K, 1e3 * f(K)) for K in reversed(numbers) if f(K) <= highest]
    shapes = [axes.frame()]
    for f, kind in ((computing, "backward"), (network, "weight")):
        shapes.append(axes.curve(drawn(f), kind=kind, width=1.5))
    shapes.append(axes.curve(drawn(lambda K: max(computing(K), network(K))), kind="forward", width=3))
    shapes.append(line([axes.place(size, 1e3 * T) for size in sizes], "ink", 1, dash="3 3"))
    x, y = axes.place(sizes[0], 1e3 * T)
    shapes.append(text(x + 6, y + (14 if T > 0.15 * highest else -14), "backward alone", 11, kind="faint"))
    said = f"best: {best} of {bytes_words(G / best)}" + ", smaller than here" * (best > BUCKETS[-1])
    shapes.append(axes.point(G / best, 1e3 * bucketed_step(T, G, best, *link),
                             said if best != K else f"best, and yours: {K}", side="above"))
    if best != K:
        shapes.append(axes.point(G / K, 1e3 * step, "yours", "purple", "below-right" if K < best else "below-left"))
    return "".join(shapes)


def rounded_up(number):
    """The next round step of an axis above a number."""
    step = ticks(number)[1]
    return step * math.ceil(number / step)


def comparison(T, G, K, best, link):
    """Beside the chart: what the curves are, and three steps compared."""
    one = bucketed_step(T, G, 1, *link)
    rows = [("no overlap", one, seconds_words(one), "idle")]
    for number, kind in {K: "purple", best: "ink"}.items():
        time = bucketed_step(T, G, number, *link)
        rows.append((f"{number} bucket{'s' * (number > 1)}", time, seconds_words(time), kind))
    rows.append(("backward alone", T, seconds_words(T), "backward"))
    shapes = [text(600, 240, "The step, compared", bold=True), bars(600, 254, rows, 130, labels=106)]
    entries = [("forward", "the step: the larger of the two"), ("backward", "backward, and one bucket more"),
               ("weight", "one bucket, and all of the network")]
    for k, (kind, words) in enumerate(entries):
        shapes += [Axes.swatch(600, 394 + 22 * k, kind), text(630, 398 + 22 * k, words, 12)]
    return "".join(shapes)


def BucketExplorer(P=8, K=4, backward_ms=20.0, megabytes=200.0, alpha_us=20.0, bandwidth=25.0):
    """The widget: the number of buckets, and what decides which number is best."""
    return Explorer(draw_buckets, {
        "P": option("Ranks", [(str(P), P) for P in RANKS], P),
        "K": stops("Buckets", K, BUCKETS),
        "backward_ms": stops("Backward, ms", backward_ms, round_numbers(-1, 3)),
        "megabytes": stops("Gradients, MB", megabytes, round_numbers(0, 4)),
        "alpha_us": stops("Latency alpha, µs", alpha_us, round_numbers(-1, 3)),
        "bandwidth": stops("Bandwidth, GB/s", bandwidth, sorted({*round_numbers(-1, 3), 25.0})),
    }, name="bucket-explorer")
