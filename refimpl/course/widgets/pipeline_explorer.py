"""Two pipeline schedules on one scale of time: how long a step takes, who waits for whom, what is kept, what is sent.

    1f1b: takes 33, of which 27.3% is bubble; keeps 4 at most; 24 messages each way
    rank 0 |F0F1F2F3......B0--F4B1--...|  keeps 4, idle 9
    gpipe: takes 33, ...                             the same bubble, twice the memory

Everything is `build` and `simulate` of the pipeline package: what the command prints and the runner does.
"""

from functools import lru_cache

from refimpl.course.widgets.interactive import Explorer, option, stops, whole
from refimpl.course.widgets.pipeline_lanes import LEGEND, height, lanes
from refimpl.course.widgets.svg import legend, picture, text
from refimpl.pipeline import FAMILIES, build, simulate

WIDTH, LEFT, RIGHT = 960, 66, 138                                               # pixels; RIGHT: words beside the lanes
NOTHING = "nothing"
MOST_RANKS, MOST_MICROBATCHES, MOST_CHUNKS = 8, 16, 4
BEGIN = {"name": "1f1b", "other": "gpipe", "p": 4, "m": 8, "v": 2, "weight": 1.0, "hop": 0.0}
PRESETS = {
    "1F1B and GPipe": BEGIN,
    "1F1B and interleaved": BEGIN | {"name": "interleaved", "other": "1f1b"},
    "interleaved, and messages take time": BEGIN | {"name": "interleaved", "other": "1f1b", "hop": 0.5},
    "weight gradients in the bubble": BEGIN | {"name": "zb_h1", "other": "1f1b"},
    "zero bubble, for twice the memory": BEGIN | {"name": "zb_h2", "other": "zb_h1"},
}


@lru_cache(maxsize=64)
def timed(name, p, m, v, weight=1.0, hop=0.0):
    """The `Timeline` of a schedule: F and I take 1, W takes `weight`; v counts only where the schedule has a choice."""
    return simulate(build(name, p, m, v if FAMILIES[name].any_chunks else None), weight=weight, hop=hop)


def draw_pipelines(name="1f1b", other="gpipe", p=4, m=8, v=2, weight=1.0, hop=0.0):
    """One schedule, and below it another one, with their figures: a `Picture`.

    name, other    schedules; other may be "nothing"    p    ranks    m    micro-batches    v    chunks of a rank
    weight, hop    seconds of a weight gradient and of a message, where F and I take 1
    """
    shown = [timed(each, p, m, v, weight, hop) for each in (name, other) if each != NOTHING]
    longest = max(t.makespan for t in shown)
    room, y = WIDTH - LEFT - RIGHT, 66
    begin = text(12, 24, f"{p} ranks, {m} micro-batches: {' and '.join(t.schedule.name for t in shown)}", 16, bold=True)
    shapes = [begin, text(12, 44, f"F and I take 1 second, W takes {weight:g}, B = I + W; a message takes {hop:g}.", 13,
                          kind="faint")]
    for t in shown:
        beside = [f"keeps {kept:.3g}, idle {idle:.3g}" for kept, idle in zip(t.peak_activations, t.idle_seconds)]
        shapes += [text(12, y + 8, figures(t), 13, bold=True),
                   *lanes(t.schedule.ranks, t.starts, t.ends, t.makespan, LEFT, y + 18, room * t.makespan / longest,
                          t.idle, beside)]
        y += height(p) + 36
    shapes.append(legend(12, y + 4, LEGEND))
    return picture(WIDTH, y + 16, *shapes, title=f"{p} ranks, {m} micro-batches",
                   words=". ".join(figures(t) for t in shown) + ".")


def figures(t):
    """What a timeline comes to, in a line."""
    chunks = f" with {t.schedule.chunks} chunks" if t.schedule.chunks > 1 else ""
    return (f"{t.schedule.name}{chunks}: takes {t.makespan:g}, of which {t.bubble_of_total:.1%} is bubble; a rank "
            f"keeps {max(t.peak_activations):.3g} at most; {t.messages['forward']} messages each way")


def chunks_count(name, other, **_):
    """Settings: the slider for chunks rests where neither schedule has a choice of them."""
    return {"v": {"disabled": not any(FAMILIES[each].any_chunks for each in (name, other) if each != NOTHING)}}


def PipelineExplorer(**begin):
    """The widget: two schedules, sizes, times, and a menu of examples."""
    v = BEGIN | begin
    return Explorer(draw_pipelines, {
        "name": option("Schedule", list(FAMILIES), v["name"]),
        "other": option("Compare with", [NOTHING, *FAMILIES], v["other"]),
        "p": whole("Ranks", v["p"], 1, MOST_RANKS), "m": whole("Micro-batches", v["m"], 1, MOST_MICROBATCHES),
        "v": whole("Chunks a rank", v["v"], 1, MOST_CHUNKS),
        "weight": stops("W takes", v["weight"], [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0]),
        "hop": stops("A message takes", v["hop"], [0.0, 0.1, 0.25, 0.5, 1.0]),
    }, adjust=chunks_count, name="pipeline-explorer", presets=PRESETS)
