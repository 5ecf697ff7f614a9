"""Write a pipeline schedule, a line for each rank, and see it run, get stuck, or beat par.

    F0 F1 B0 B1          the rank's own stage goes without saying: 0F0 0F1 0B0 0B1
    F0 B0 F1 B1          with chunks it has to be said: 4 stages on 2 ranks are 0 2 and 1 3, or in a V 0 3 and 1 2

The lists become a schedule; `check` says whether it can run, `simulate` how long it takes. One with actions missing is
drawn as it stands, with what it lacks; one in which ranks wait for each other, as far as it gets. Par is what the known
schedule for these sizes takes and keeps: 1F1B, or ZB-H1 where the backward is split, or interleaved.
"""

import re
from dataclasses import dataclass, field

from refimpl.course.widgets.interactive import Explorer, words_area
from refimpl.course.widgets.pipeline_lanes import GAP, LANE, LEGEND, action_box, height, lanes
from refimpl.course.widgets.svg import bars, box, legend, picture, text
from refimpl.pipeline import Schedule, ScheduleError, build, check, parse, simulate
from refimpl.pipeline.action import parts
from refimpl.pipeline.check import misplaced, missing, needs
from refimpl.pipeline.schedule import place
from refimpl.pipeline.timeline import Times

MOST_RANKS, MOST_MICROBATCHES, MOST_ACTIONS, MOST_FAULTS = 6, 12, 48, 6
WIDTH, LEFT = 960, 66
EXAMPLES = {
    "one micro-batch at a time": "F0 B0 F1 B1 F2 B2 F3 B3\nF0 B0 F1 B1 F2 B2 F3 B3\nF0 B0 F1 B1 F2 B2 F3 B3",
    "all forwards first (GPipe)": "F0 F1 F2 F3 B0 B1 B2 B3\nF0 F1 F2 F3 B0 B1 B2 B3\nF0 F1 F2 F3 B0 B1 B2 B3",
    "a circle": "F0 B0 F1 B1\nF1 F0 B0 B1",
    "one action missing": "F0 F1 B0 B1\nF0 B0 F1",
    "split backwards": "F0 F1 I0 W0 I1 W1\nF0 I0 F1 I1 W0 W1",
    "two chunks in a loop": "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
}
BEGIN = EXAMPLES["one micro-batch at a time"]
SHORT = re.compile(r"([FBIW])(\d+)")


@dataclass(frozen=True)
class Played:
    """What became of the lists.

    starts, ends    per rank the times of the actions that could be done, in order
    stuck           {rank: (the action it is at, what that needs, the rank that should do it)}; empty if all went well
    faults          what is missing or in the wrong place, in words
    timeline, par   the `Timeline`, and that of the schedule to compare with; None where it did not run
    """

    schedule: Schedule
    starts: list
    ends: list
    stuck: dict = field(default_factory=dict)
    faults: list = field(default_factory=list)
    timeline: object = None
    par: object = None


def read(lists):
    """The `Schedule` that the lines say, whether or not it can run. ValueError, in a sentence, for what is none."""
    lines = [line for line in lists.split("\n") if line.strip()]
    if not 1 <= len(lines) <= MOST_RANKS:
        raise ValueError(f"{len(lines)} lines: write one for each rank, for 1 to {MOST_RANKS} ranks")
    rows = [[read_action(word, rank) for word in line.split()] for rank, line in enumerate(lines)]
    actions = [half for row in rows for action in row for half in parts(action)]
    if not actions or max(map(len, rows)) > MOST_ACTIONS:
        raise ValueError(f"write 1 to {MOST_ACTIONS} actions for a rank, such as F0 F1 B0 B1")
    p, m = len(rows), 1 + max(half.microbatch for half in actions)
    v = 1 + max(half.stage for half in actions) // p
    if m > MOST_MICROBATCHES:
        raise ValueError(f"micro-batch {m - 1}: write 0 to {MOST_MICROBATCHES - 1} at most")
    in_v = v == 2 and any(half.stage == 2 * p - 1 for action in rows[0] for half in parts(action))
    return Schedule("your schedule", p, m, v, place("v" if in_v else "loop", p, v), rows)


def read_action(word, rank):
    """An action from its word; without a stage it is the rank's. ValueError that names the rank."""
    short = SHORT.fullmatch(word)
    try:
        return parse(f"{rank}{word}" if short else word)
    except ValueError:
        raise ValueError(f"rank {rank}: {word!r} is no action: write F, B, I or W and the micro-batch, such as F0, or "
                         "the stage before it, such as 2F0") from None


def play(lists):
    """Run the lists, F, I and W taking 1 second each: a `Played`. ValueError for what is no schedule."""
    schedule = read(lists)
    if faults := misplaced(schedule) or missing(schedule):
        return Played(schedule, [], [], faults=faults)
    try:
        check(schedule)
    except ScheduleError:                                               # nothing is missing: there is a circle
        return Played(schedule, *as_far_as_it_goes(schedule))
    t = simulate(schedule)
    return Played(schedule, t.starts, t.ends, timeline=t, par=par_for(schedule))


def as_far_as_it_goes(schedule):
    """Times of all actions that can be done, and where each rank gets stuck: starts, ends, stuck."""
    times, rows = Times(schedule), schedule.ranks
    starts, ends = [[] for _ in rows], [[] for _ in rows]
    blocker = lambda rank: next(((needed, *schedule.where[needed]) for part in parts(rows[rank][len(ends[rank])])
                                 for needed in needs(schedule, part)
                                 if schedule.where[needed][1] >= len(ends[schedule.where[needed][0]])), None)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while len(ends[rank]) < len(row) and blocker(rank) is None:
                action = row[len(ends[rank])]
                there = [ends[r][at] for part in parts(action) for r, at in map(schedule.where.get,
                                                                                 needs(schedule, part))]
                starts[rank].append(max([*there, *ends[rank][-1:], 0.0]))
                ends[rank].append(starts[rank][-1] + times(action))
                moved = True
    stuck = {rank: (row[len(ends[rank])], *blocker(rank)[:2]) for rank, row in enumerate(rows)
             if len(ends[rank]) < len(row)}
    return starts, ends, stuck


def par_for(schedule):
    """The timeline of the known schedule for these sizes."""
    p, m, v = schedule.stages, schedule.microbatches, schedule.chunks
    split = any(half.kind == "I" for row in schedule.ranks for action in row for half in parts(action))
    in_v = v == 2 and schedule.placement[-1] == 0 and p > 1
    name = "zbv" if in_v else "interleaved" if v > 1 else "zb_h1" if split else "1f1b"
    try:
        return simulate(build(name, p, m, v))
    except ValueError:                                                  # interleaved with a number it does not take
        return simulate(build("looped_bfs", p, m, v))


def draw_played(lists=BEGIN):
    """The lanes, and the score or where it got stuck: a `Picture`.

    lists    a line of text for each rank, as in the docstring above
    """
    played = play(lists)
    draw = draw_faulty if played.faults else draw_stuck if played.stuck else draw_score
    return draw(played)


def draw_score(played):
    """A schedule that runs, and par."""
    t, par = played.timeline, played.par
    time, memory = verdict(t.makespan, par.makespan), verdict(max(t.peak_activations), max(par.peak_activations))
    title = f"It runs: {time} in time, {memory} in memory"
    s, par_name = t.schedule, par.schedule.name
    low = 66 + height(s.stages) + 30
    keeps = [f"keeps {kept:.3g}, idle {idle:.3g}" for kept, idle in zip(t.peak_activations, t.idle_seconds)]
    both = lambda words, yours, pars, write: bars(
        12, low + (16 if words == "takes" else 100),
        [("yours", yours, f"{words} {write(yours)}", "forward"), ("par", pars, f"{words} {write(pars)}", "idle")],
        300, labels=60)
    shapes = [text(12, 24, title, 16, bold=True),
              text(12, 44, f"{s.stages} ranks, {s.microbatches} micro-batches; F, I and W take 1 second, B takes 2. "
                           f"Par is {par_name}.", 13, kind="faint"),
              *lanes(s.ranks, t.starts, t.ends, t.makespan, LEFT, 60, WIDTH - LEFT - 138, t.idle, keeps),
              text(12, low + 6, f"Time: bubble {t.bubble_of_total:.1%} of the step, par {par.bubble_of_total:.1%}", 13,
                   bold=True), both("takes", t.makespan, par.makespan, "{:g}".format),
              text(12, low + 90, "Memory: most activations kept on one rank", 13, bold=True),
              both("keeps", max(t.peak_activations), max(par.peak_activations), "{:.3g}".format),
              legend(12, low + 176, LEGEND)]
    most, pars = max(t.peak_activations), max(par.peak_activations)
    return picture(WIDTH, low + 190, *shapes, title=title,
                   words=f"It takes {t.makespan:g}, {par_name} {par.makespan:g}; it keeps {most:.3g} at most, "
                         f"{par_name} {pars:.3g}.")


def verdict(yours, par):
    """A score in words, as in golf: less is better."""
    off = yours - par
    return "par" if abs(off) < 1e-9 else f"{abs(off):.3g} {'over' if off > 0 else 'under'} par"


def draw_stuck(played):
    """A schedule in which ranks wait for each other: how far it gets, and who waits for what."""
    s, title = played.schedule, "Stuck: the ranks wait for each other"
    times = Times(s)
    makespan = max(sum(map(times, row)) for row in s.ranks)                                     # room for what is there
    makespan = max([makespan, *(ends[-1] + 2 for ends in played.ends if ends)])
    scale = (WIDTH - LEFT - 138) / makespan
    since = [ends[-1] if ends else 0.0 for ends in played.ends]
    boxes = [box(LEFT + since[rank] * scale, 60 + rank * (LANE + GAP), times(action) * scale - 1, LANE, str(action),
                 "plain", 10, hint=f"{action} needs {needed} of rank {other}")
             for rank, (action, needed, other) in played.stuck.items()]
    waits = [f"stuck at {played.stuck[rank][0]}" if rank in played.stuck else "done" for rank in range(s.stages)]
    low = 66 + height(s.stages) + 30
    lines = [f"rank {rank} is at {action}, which needs {needed} of rank {other}"
             + (", which stands later in its own list" if other == rank else "")
             for rank, (action, needed, other) in played.stuck.items()]
    shapes = [text(12, 24, title, 16, bold=True),
              text(12, 44, "Each rank does its list in order, so none of these actions ever starts.", 13, kind="faint"),
              *lanes(s.ranks, played.starts, played.ends, makespan, LEFT, 60, WIDTH - LEFT - 138, None, waits), *boxes,
              *(text(12, low + 6 + 20 * k, line, 13) for k, line in enumerate(lines)),
              text(12, low + 16 + 20 * len(lines), "Move one of the actions in the circle behind what it needs.", 13,
                   bold=True)]
    return picture(WIDTH, low + 34 + 20 * len(lines), *shapes, title=title, words="; ".join(lines) + ".")


def draw_faulty(played):
    """Lists in which something is missing or misplaced: the actions in a row, without times, and what is wrong."""
    s, faults = played.schedule, played.faults
    title = f"Not yet a schedule: {len(faults)} thing{'s' * (len(faults) > 1)} to mend"
    lines = faults[:MOST_FAULTS] + [f"and {len(faults) - MOST_FAULTS} more"] * (len(faults) > MOST_FAULTS)
    each = min(46, (WIDTH - LEFT - 20) / max(map(len, s.ranks)))
    low = 60 + s.stages * (LANE + GAP) + 28
    rule = "for each of them a stage has one F, and one B, or one I and one W"
    shapes = [text(12, 24, title, 16, bold=True),
              text(12, 44, f"{s.stages} ranks, {s.microbatches} micro-batches: {rule}.", 13, kind="faint")]
    for rank, row in enumerate(s.ranks):
        y = 60 + rank * (LANE + GAP)
        shapes += [text(LEFT - 8, y + 16, f"rank {rank}", 12, "end", True),
                   *(action_box(action, LEFT + k * each, y, each - 2) for k, action in enumerate(row))]
    shapes += [text(12, low + 20 * k, line, 13) for k, line in enumerate(lines)]
    return picture(WIDTH, low + 20 * len(lines), *shapes, title=title, words="; ".join(lines) + ".")


def SchedulePlayground(lists=BEGIN):
    """The widget: a field with a line for each rank, and a menu of examples."""
    return Explorer(draw_played, {"lists": words_area("Actions, a line a rank", lists, rows=5, columns=72)},
                    name="schedule-playground", presets={words: {"lists": text} for words, text in EXAMPLES.items()})
