"""A pipeline, moment by moment: what each rank does or waits for, what it keeps, what has just been sent.

    moment 5: time 4       the lanes, up to now and beyond, with a line at now
    rank 0  waits for 1B0 of rank 1     keeps 0F0 0F1        a moment is when some action ends, or begins
    rank 1  does 1B0                    keeps 1F0            arrows: what has been handed on at this moment

An activation is kept from the start of its forward to the end of its backward, or of its weight gradient.
"""

from functools import lru_cache

from refimpl.course.widgets.interactive import Explorer, option, whole
from refimpl.course.widgets.pipeline_explorer import LEFT, timed
from refimpl.course.widgets.pipeline_lanes import GAP, KIND, LANE, LEGEND, height, lanes
from refimpl.course.widgets.svg import arrow, box, cells, legend, line, picture, text
from refimpl.pipeline.action import parts

NAMES = ("gpipe", "1f1b", "interleaved", "zb_h1")
MOST_RANKS, MOST_MICROBATCHES = 4, 8
WIDTH, ROW = 960, 46                                                           # pixels; of a rank's row below the lanes
DOES, SENT, KEEPS = 72, 330, 430                                               # where its columns begin


@lru_cache(maxsize=64)
def moments(name, p, m):
    """The times at which something begins or ends, in order."""
    t = timed(name, p, m, 2)
    return sorted({time for times in (*t.starts, *t.ends) for time in times})


def state(t, rank, now):
    """What `rank` is doing at `now`: ("does", action), ("waits", the timeline's `Idle`) or ("done", None)."""
    for action, start, end in zip(t.schedule.ranks[rank], t.starts[rank], t.ends[rank], strict=True):
        if start <= now < end:
            return "does", action
    return next((("waits", gap) for gap in t.idle[rank] if gap.start <= now < gap.end and gap.before), ("done", None))


def kept(t, rank, now):
    """The (stage, micro-batch)es whose activations `rank` keeps at `now`, oldest first."""
    found = {}
    for action, start, end in zip(t.schedule.ranks[rank], t.starts[rank], t.ends[rank], strict=True):
        for stage, kind, k in parts(action):
            if kind == "F" and start <= now:
                found[stage, k] = True
            elif kind in "BW" and end <= now:
                del found[stage, k]
    return list(found)


def handed_on(t, now):
    """What has just been finished for another rank: [(action, from rank, to rank)]."""
    owner, found = t.schedule.placement, []
    for rank, row in enumerate(t.schedule.ranks):
        for action, end in zip(row, t.ends[rank], strict=True):
            for half in parts(action):
                stage = half.stage + {"F": 1, "B": -1, "I": -1, "W": 0}[half.kind]
                if end == now and 0 <= stage < len(owner) and owner[stage] != rank:
                    found.append((half, rank, owner[stage]))
    return found


def draw_moment(name="1f1b", p=4, m=6, moment=0):
    """The lanes with a line at now, and below them every rank's present: a `Picture`.

    name    one of NAMES; interleaved has 2 chunks    p    ranks    m    micro-batches    moment    see `moments`
    """
    t, times = timed(name, p, m, 2), moments(name, p, m)
    if not 0 <= moment < len(times):
        raise ValueError(f"moment={moment}: {name} on {p} ranks with {m} micro-batches has moments 0 to "
                         f"{len(times) - 1}")
    now, room, most = times[moment], WIDTH - LEFT - 100, [f"most: {peak:g}" for peak in t.peak_activations]
    x, low = LEFT + now * room / t.makespan, 62 + p * (LANE + GAP)
    title = f"{name}: time {now:g} of {t.makespan:g}"
    states = [state(t, rank, now) for rank in range(p)]
    holds = [kept(t, rank, now) for rank in range(p)]
    said = [f"rank {rank} {in_words(*states[rank])} and keeps {len(holds[rank])}" for rank in range(p)]
    top = 62 + height(p) + 34
    shapes = [text(12, 24, title, 16, bold=True),
              text(12, 44, "F takes 1, B takes 2, or I and W 1 each; a chunk takes half of it; messages are at once.",
                   13, kind="faint"),
              *lanes(t.schedule.ranks, t.starts, t.ends, t.makespan, LEFT, 62, room, t.idle, most),
              line([(x, 56), (x, low)], "ink", 2.5),
              *(text(at, top - 10, words, 12, kind="faint") for at, words in
                ((DOES, "does now"), (SENT - 20, "just sent"), (KEEPS, "keeps activations of")))]
    for rank in range(p):
        shapes.append(present(t, rank, *states[rank], holds[rank], top + rank * ROW))
    for half, source, target in handed_on(t, now):
        across = SENT + 16 * (half.kind != "F") + 26 * (abs(source - target) > 1)
        y1, y2 = (top + rank * ROW + 14 + 8 * (1 if target > source else -1) * (1 if rank == source else -1)
                  for rank in (source, target))
        shapes += [arrow(across, y1, across, y2, kind=KIND[half.kind], width=2.5),
                   text(across + (8 if half.kind != "F" else -8), (y1 + y2) / 2 + 4, half, 11,
                        "start" if half.kind != "F" else "end", True)]
    low = top + p * ROW
    shapes.append(legend(12, low + 14, LEGEND))
    return picture(WIDTH, low + 28, *shapes, title=title, words="; ".join(said) + ".")


def in_words(what, of):
    """A rank's state as a phrase."""
    return {"does": f"does {of}", "done": "is done"}.get(what) or f"waits for {of.waits_for} of rank {of.of_rank}"


def present(t, rank, what, of, holds, y):
    """A rank's row: what it does or waits for, and what it keeps."""
    words = in_words(what, of)
    kind = KIND[parts(of)[0].kind] if what == "does" else "idle"
    labels = [f"{stage}F{k}" if t.schedule.chunks > 1 else f"F{k}" for stage, k in holds]
    return "".join([text(12, y + 19, f"rank {rank}", 13, bold=True), box(DOES, y, 200, 28, words, kind, 12),
                    cells(KEEPS, y, labels, "soft", 40, 28, size=12),
                    "" if holds else text(KEEPS, y + 19, "nothing", 12, kind="faint")])


def PipelineStepper(name="1f1b", p=4, m=6, moment=0):
    """The widget: schedule, ranks, micro-batches, and the moment."""
    return Explorer(draw_moment, {
        "name": option("Schedule", NAMES, name), "p": whole("Ranks", p, 1, MOST_RANKS),
        "m": whole("Micro-batches", m, 1, MOST_MICROBATCHES),
        "moment": whole("Moment", moment, 0, len(moments(name, p, m)) - 1),
    }, adjust=lambda name, p, m, moment: {"moment": reach(name, p, m)}, name="pipeline-stepper")


def reach(name, p, m):
    """Of the slider for the moment: how far it goes; off where there is no schedule of that size, as drawing says."""
    try:
        return {"max": len(moments(name, p, m)) - 1, "disabled": False}
    except ValueError:
        return {"max": 0, "disabled": True}
