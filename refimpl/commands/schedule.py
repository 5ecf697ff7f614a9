"""python -m refimpl schedule NAME: a pipeline schedule as a chart, with what it costs in time, memory and messages.

    python -m refimpl schedule 1f1b --stages 4 --microbatches 8 --compare gpipe,zb_h1
    python -m refimpl schedule custom --actions my_schedule.txt          a line for every rank: 0F0 0F1 0B0 0B1
"""

import json
import math
import os
import shutil
import sys
from pathlib import Path

from refimpl.world.launch import is_root

HELP = "a pipeline schedule: its chart, bubble, memory and messages"
MOST, LONGEST = 100_000, 1e100             # forwards of a chart, and a time
FIGURES = ("makespan", "max_rank_span", "bubble_of_ideal", "bubble_of_total", "bubble_of_span", "peak_activations")
TITLES = dict(zip(FIGURES, ("makespan", "longest rank's span", "bubble, of the ideal time", "bubble, of the total time",
                            "bubble, of that span", "most activations kept")))


def add_arguments(parser):
    """Options of the command."""
    from refimpl.pipeline import NAMES

    parser.add_argument("name", nargs="?", metavar="NAME", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--stages", type=int, metavar="P", help="pipeline ranks (default 4)")
    parser.add_argument("--microbatches", type=int, metavar="M", help="micro-batches a step (default 8)")
    parser.add_argument("--chunks", type=int, metavar="V",
                        help="stages on each rank (default: the schedule's own, 1 or 2)")
    for kind, what in (("forward", "forward"), ("input", "input gradient"), ("weight", "weight gradient")):
        parser.add_argument(f"--{kind}", default="1", metavar="T", help=f"time of a rank's {what}, a chunk's is 1/V; "
                            "or one for each rank or stage: 1,2,1,1 (default 1)")
    parser.add_argument("--hop", default="0", metavar="T", help="time of a message to another rank (default 0)")
    parser.add_argument("--actions", metavar="FILE", help="of custom: a file with a line of actions for each rank")
    parser.add_argument("--compare", default="", metavar="NAME,NAME", help="figures of these schedules beside it")
    parser.add_argument("--svg", metavar="FILE", help="write the chart to this file")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")


def main(args):
    """Build, time, show; the exit status."""
    from refimpl.course.plots import gantt
    from refimpl.pipeline import NAMES

    if args.name is None:
        raise ValueError(f"which schedule? One of {', '.join(NAMES)}, as in `schedule 1f1b`")
    if args.svg is not None:
        gantt.check_svg_file(args.svg)
    timelines = {args.name: timed(args, args.name, args.chunks)}
    for name in filter(None, (name.strip() for name in args.compare.split(","))):
        timelines.setdefault(name, timed(args, name, own_chunks(name, args.chunks)))
    timeline = timelines[args.name]
    if is_root():
        if args.svg is not None:
            gantt.save_svg(args.svg, gantt.svg(timeline))
        if args.json:
            others = {name: figures(t) for name, t in timelines.items() if t is not timeline}
            print(json.dumps(figures(timeline) | {"compare": others}, allow_nan=False))
        else:
            columns = shutil.get_terminal_size((100, 24)).columns
            print(gantt.terminal(timeline, columns, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
            print("F forward   B backward   I input gradient   W weight gradient   . idle   ~ left out\n")
            print(as_text(timelines))
            if args.svg is not None:
                print(f"chart: {args.svg}")
    return 0


def timed(args, name, chunks):
    """The timeline of the schedule `name` with the sizes and times of the command line."""
    from refimpl.pipeline import build, simulate
    from refimpl.pipeline.action import parts

    sizes = {"stages": args.stages, "microbatches": args.microbatches, "chunks": chunks}
    usual, lists = {"stages": 4, "microbatches": 8}, {}
    if name == "custom":
        if args.actions is None:
            raise ValueError("custom: give --actions FILE, with a line for every rank, such as 0F0 0F1 0B0 0B1")
        rows = lists["ranks"] = read_actions(args.actions)
        written = [half for row in rows for action in row for half in parts(action)]
        usual = {"stages": len(rows), "microbatches": 1 + max(half.microbatch for half in written),
                 "chunks": -(-(1 + max(half.stage for half in written)) // len(rows))}
    elif args.actions is not None and args.name != "custom":
        raise ValueError(f"--actions {args.actions}: {name} makes its own lists; --actions is for custom")
    usual |= {size: n for size, n in sizes.items() if n is not None}
    stages = usual["stages"] * max(usual.get("chunks", 1), 1)
    if stages * usual["microbatches"] > MOST:
        raise ValueError(f"{stages} stages x {usual['microbatches']} micro-batches: expected at most {MOST} together")
    schedule = build(name, **usual, **lists)
    return simulate(schedule, *(numbers(f"--{kind}", getattr(args, kind)) for kind in ("forward", "input", "weight")),
                    hop=numbers("--hop", args.hop))


def own_chunks(name, chunks):
    """The chunks to compare `name` with: as many as asked for, where it takes any number; else its own."""
    from refimpl.pipeline import FAMILIES

    return chunks if name in FAMILIES and FAMILIES[name].any_chunks else None


def numbers(option, text):
    """A number, or a list of them, from "1.5" or "1,2,1,1"."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text}: must be a number, such as 1.5, or several, such as 1,2,1,1") from None
    if any(LONGEST < number < math.inf for number in found):               # their sum would be no number
        raise ValueError(f"{option} {text}: expected times of at most {LONGEST:g}")
    return found[0] if len(found) == 1 else found


def read_actions(path):
    """Per rank the actions of its line. A "rank0:" in front, empty lines and lines with # in front are passed over."""
    from refimpl.pipeline.schedules.custom import read

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--actions {path}: cannot be read: {error}") from None
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = [row[1:] if row[0].startswith("rank") else row for row in rows]
    if not any(rows):
        raise ValueError(f"--actions {path}: there is no action in it; a line for every rank, such as 0F0 0B0, works")
    return [[read(word, rank) for word in row] for rank, row in enumerate(rows)]


def figures(timeline):
    """Everything that --json says about one schedule."""
    schedule = timeline.schedule
    return {
        **{key: getattr(schedule, key) for key in ("name", "stages", "microbatches", "chunks")},
        "ranks": [[str(action) for action in row] for row in schedule.ranks],
        **{name: getattr(timeline, name) for name in FIGURES},
        "idle": [[{"start": gap.start, "end": gap.end, "before": gap.before and str(gap.before),
                   "waits_for": str(gap.waits_for), "of_rank": gap.of_rank} for gap in gaps] for gaps in timeline.idle],
        "messages": timeline.messages,
    }


def as_text(timelines):
    """All schedules' figures side by side; of the first one each rank's work and its longest wait, with the cause."""
    names = list(timelines)
    width = max(14, *map(len, names)) + 2
    lines = [" " * 28 + "".join(name.rjust(width) for name in names)]
    for figure in FIGURES:
        lines.append(f"{TITLES[figure]:28}" + "".join(
            shown(figure, getattr(timelines[name], figure)).rjust(width) for name in names))
    for way in ("forward", "backward"):
        counts = (f"{t.messages[way]:,}" for t in timelines.values())
        lines.append(f"messages {way}".ljust(28) + "".join(count.rjust(width) for count in counts))
    timeline = timelines[names[0]]
    lines += ["", f"{'rank':>4}  {'works':>8}  {'idle':>8}  {'keeps':>6}  longest wait"]
    for rank, (busy, gaps, peak) in enumerate(zip(timeline.busy, timeline.idle, timeline.peak_activations)):
        longest = max(gaps, key=lambda gap: gap.end - gap.start, default="none")
        lines.append(f"{rank:>4}  {busy:>8g}  {timeline.makespan - busy:>8g}  {peak:>6.4g}  {longest}")
    return "\n".join(lines)


def shown(figure, value):
    """A figure for people."""
    if figure == "peak_activations":
        return f"{max(value):.4g}"
    return f"{value:.2%}" if figure.startswith("bubble") else f"{value:.6g}"
