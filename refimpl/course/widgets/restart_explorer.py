"""How often to save: a day of training with failures, and what is lost for every interval between checkpoints.

    | work | save | work | save | wo X   restart | work again ...        X: some GPU of many fails
                           `--------' lost: done since the last checkpoint

    E = (between + restart) (e^((interval + save)/between) - 1)        time for `interval` minutes of work that counts
    least lost near  interval = sqrt(2 save between)                   (Young 1974)

Failures come at random, one every life/n from n GPUs that each fail once in a `life` on average. E is exact then (Daly
2006), as long as a restart itself does not fail; Young's rule is its first order. The tests let many days pass and
compare. The day that is drawn has always the same failures.
"""

import math
import random

from refimpl.course.widgets.axes import Axes
from refimpl.course.widgets.interactive import Explorer, stops
from refimpl.course.widgets.svg import bars, box, legend, line, picture, text

HOURS = 24                                                           # of the day that is drawn
YEAR = 365.25 * 24 * 60                                              # minutes
LEFT, WIDE = 12, 820                                                 # pixels of the day
GPUS = [8, 64, 512, 1024, 4096, 16384, 65536]
MINUTES = [1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360]


def between_failures(gpus, years):
    """Minutes from one failure to the next, on average, of so many GPUs of which each fails once in `years`."""
    return years * YEAR / gpus


def young(save, between):
    """The interval, in minutes, that loses least, to first order: sqrt(2 save between)."""
    return math.sqrt(2 * save * between)


def shares(interval, save, restart, between):
    """Shares of the time: {"work" that counts, "save", "lost", "restart"}; they add up to 1."""
    tries = math.expm1(min((interval + save) / between, 700.0))      # failures before an interval and its saving end
    whole = (between + restart) * tries
    found = {"work": interval / whole, "save": save / whole, "restart": restart / (between + restart)}
    return found | {"lost": max(1 - sum(found.values()), 0.0)}


def best_interval(save, between):
    """The interval that loses least, in minutes: work / whole is largest where its slope is 0. Found by halving."""
    low, high = 0.0, 10 * young(save, between) + 10 * save
    for _ in range(60):
        middle = (low + high) / 2
        grows = -math.expm1(-min((middle + save) / between, 700.0)) > middle / between
        low, high = (middle, high) if grows else (low, middle)
    return low


def day(interval, save, restart, between):
    """A day as [(what, begin, end)] in minutes: "work" that counts, "save", "lost" and "restart"."""
    rng, now, found = random.Random(1), 0.0, []
    fails = rng.expovariate(1 / between)
    while now < HOURS * 60:
        done = now + interval
        if fails >= done + save:
            found += [("work", now, done), ("save", done, done + save)]
            now = done + save
        else:
            found += [("lost", now, fails), ("restart", fails, fails + restart)]
            now = fails + restart
            fails = now + rng.expovariate(1 / between)
    return [(what, begin, min(end, HOURS * 60)) for what, begin, end in found if begin < HOURS * 60]


def draw_restarts(gpus=16384, years=5, save=2, restart=10, interval=30):
    """The curve of what is lost, and a day with these failures: a `Picture`. save, restart, interval in minutes."""
    if min(gpus, years, save, interval) <= 0 or restart < 0:
        raise ValueError(f"{gpus} GPUs, {years} years, {save}, {restart} and {interval} minutes: all must be above 0")
    between = between_failures(gpus, years)
    best, now = best_interval(save, between), shares(interval, save, restart, between)
    lost_at = lambda interval: 1 - shares(interval, save, restart, between)["work"]
    title = (f"{gpus:,} GPUs fail every {minutes(between)}; saved every {minutes(interval)}: "
             f"{lost_at(interval):.0%} is lost")
    told = (f"Least is lost with {minutes(best)} between checkpoints: {lost_at(best):.1%}. Young's rule says "
            f"{minutes(young(save, between))}.")
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, told, kind="faint")]
    axes = Axes(64, 74, 420, 230, (1, 600), (0, 1), "minutes between checkpoints", "share of time lost", log="x",
                write={"x": "{:g}".format, "y": "{:.0%}".format})
    grid = [10 ** (k / 60 * math.log10(600)) for k in range(61)]
    shapes += [axes.frame(), axes.curve([(x, lost_at(x)) for x in grid], "", "forward")]
    if 1 <= best <= 600:
        shapes.append(axes.point(best, lost_at(best), "best"))
    if 1 <= interval <= 600:
        shapes.append(axes.point(interval, lost_at(interval), "yours", side="below-right"))
    parts = [("saving", now["save"], "purple"), ("done again", now["lost"], "backward"),
             ("restarting", now["restart"], "idle")]
    shapes.append(text(530, 84, "Of the time, on average", 14, bold=True))
    shapes.append(bars(530, 98, [(name, share, f"{share:.1%}", kind) for name, share, kind in parts], 170,
                       longest=max(0.2, *(share for _, share, _ in parts)), labels=84))
    ran = day(interval, save, restart, between)
    fails = sum(what == "lost" for what, _, _ in ran)
    shapes.append(text(12, 360, f"One such day: {fails} failure{'s' * (fails != 1)}", 14, bold=True))
    shapes.append(lane(ran, 372))
    shapes.append(legend(12, 446, [("forward", "training that counts"), ("purple", "saving"),
                                   ("backward", "lost: done again"), ("idle", "restarting")]))
    useful = sum(end - begin for what, begin, end in ran if what == "work") / (HOURS * 60)
    return picture(850, 462, *shapes, title=title, words=(
        f"{told} On average {parts[0][1]:.1%} of the time goes into saving, {parts[1][1]:.1%} is done again, "
        f"{parts[2][1]:.1%} is spent restarting. In the day that is drawn {fails} failures leave {useful:.0%} of it."))


def lane(ran, y):
    """The day as a strip, with its hours."""
    kinds = {"work": "forward", "save": "purple", "lost": "backward", "restart": "idle"}
    at = lambda time: LEFT + WIDE * time / (HOURS * 60)
    shapes = [box(LEFT, y, WIDE, 30, kind="plain")]
    for what, begin, end in ran:
        shapes.append(box(at(begin), y, max(at(end) - at(begin), 0.8), 30, kind=kinds[what], round=0))
        if what == "lost":
            shapes.append(line([(at(end), y - 5), (at(end), y + 35)], "ink", 1.5))
    for hour in range(0, HOURS + 1, 6):
        anchor = "start" if hour == 0 else "end" if hour == HOURS else "middle"
        shapes.append(text(at(hour * 60), y + 46, f"{hour} h", 11, anchor, kind="faint"))
    return "".join(shapes)


def minutes(time):
    """Minutes in words, three digits."""
    if time < 100:
        return f"{time:.3g} min"
    return f"{time / 60:.3g} h" if time < 60 * 48 else f"{time / 1440:,.0f} days"


def RestartExplorer(gpus=16384, years=5, save=2, restart=10, interval=30):
    """The widget: how many GPUs, how often one fails, what a checkpoint and a restart cost, and how often you save."""
    return Explorer(draw_restarts, {
        "gpus": stops("GPUs", gpus, GPUS, "{:,}".format),
        "years": stops("Years to a GPU's failure", years, [1, 2, 5, 10, 20]),
        "save": stops("Minutes to save", save, [0.1, 0.5, 1, 2, 5, 10, 20]),
        "restart": stops("Minutes to restart", restart, [0, 2, 5, 10, 20, 30]),
        "interval": stops("Minutes between checkpoints", interval, MINUTES),
    }, name="restart-explorer")
