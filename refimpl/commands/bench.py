"""python -m refimpl bench NAME: claims about speed, measured side by side in one run, under MPI where it is theirs."""

import argparse
import importlib
import json
from pathlib import Path

from refimpl.device import add_argument, open_device
from refimpl.world import run
from refimpl.world.launch import is_root, under_mpi

HELP = "measure speed, side by side with MPI's own and with what memory allows"
IN_A_JOB = {"all-reduce": "all_reduce", "attention": "attention", "collectives": "collectives", "overlap": "overlap",
            "pipeline": "pipeline", "scaling": "scaling", "tensor-parallel": "tensor_parallel"}      # of --ranks ranks
HERE = {"local": "local", "import": "imports", "train": "train", "widgets": "widgets"}
ALL = ("all-reduce", "collectives", "overlap", "scaling", "attention", "tensor-parallel", "pipeline", "train", "local",
       "widgets", "import")
DRAWN = ("all-reduce", "collectives", "scaling", "pipeline")
ON_DEVICE = ("all-reduce", "pipeline", "scaling")
RANKS, ROUNDS = 4, 7                                     # unless a bench has its own
REPORT = "docs/bench"                                    # the folder of bench all's


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("name", choices=[*IN_A_JOB, *HERE, "all"], help="what to measure")
    parser.add_argument("--ranks", type=int, metavar="P", help="ranks under MPI (default 4; 2 for "
                        "attention, pipeline, scaling and tensor-parallel)")
    parser.add_argument("--sizes", metavar="LIST", help="sizes of the array, as in 4KiB,64MiB")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds (default 7; pipeline, scaling 3; widgets 1)")
    parser.add_argument("--full", action="store_true", help="all sizes that there is something to say about")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--plot", metavar="FILE", help="draw it (.png, .svg or .pdf)")
    parser.add_argument("--into", metavar="DIR", help=f"bench all: the report's folder (default {REPORT})")
    add_argument(parser)


def world(args):
    """How many ranks the bench has. ValueError if it starts processes of its own, or cannot be cut for so many."""
    if args.name not in IN_A_JOB:
        raise ValueError(f"bench {args.name} starts processes of its own: run it without mpirun")
    bench = module(args.name)
    ranks = getattr(bench, "RANKS", RANKS) if args.ranks is None else args.ranks
    if hasattr(bench, "check"):
        bench.check(ranks, sizes(args))
    return ranks


def sizes(args):
    """What `--sizes` or `--full` says, or the bench's own: numbers; None for a bench of one size."""
    from refimpl.bench.timing import parse_size

    bench = module(args.name)
    usual = getattr(bench, "FULL", bench.SIZES) if args.full else bench.SIZES
    return [parse_size(text) for text in (usual if args.sizes is None else args.sizes).split(",")] if usual else None


def module(name):
    """What measures: refimpl/bench/NAME.py."""
    return importlib.import_module(f"refimpl.bench.{(IN_A_JOB | HERE)[name]}")


def main(args):
    """Measure and report; the exit status. Outside a job, benches of MPI start one of `--ranks` ranks."""
    from refimpl.bench.timing import pin

    check(args)
    if args.name not in IN_A_JOB and under_mpi():
        world(args)
    if args.name == "all":
        return write_report(args)
    bench = module(args.name)
    args.rounds = getattr(bench, "ROUNDS", ROUNDS) if args.rounds is None else args.rounds
    measured = sizes(args)
    if args.name == "widgets":                           # of the course, which no bench may import: given to it
        from refimpl.course.browser import course_in_browser
        from refimpl.course.widgets import WIDGETS

        result = bench.bench(course_in_browser, WIDGETS, args.rounds)
    elif args.name in HERE:
        result = bench.bench(measured, args.rounds)
    else:
        args.ranks = world(args)
        device = open_device(args.device, args.ranks)    # says here, before a job is started, that there is no GPU
        if not under_mpi():
            return start_job(args)

        def program(comm):
            pin(comm.rank)
            return bench.bench(comm, measured, args.rounds, *[device.like] * (args.name in ON_DEVICE))

        result = {"ranks": args.ranks} | run(program, args.ranks, rendezvous=False)[0]
        result |= {"device": device.words} if device.words else {}
    if is_root():
        report(args, bench, result)
    return 0


def check(args):
    """ValueError for options that this bench would ignore, or that are none."""
    from refimpl.course.plots.files import check_plot_file

    if args.rounds is not None and args.rounds < 1:
        raise ValueError(f"--rounds {args.rounds}: measure 1 round or more")
    if args.plot is not None and args.name not in DRAWN:
        raise ValueError(f"--plot: {args.name} has no curve to draw; {', '.join(DRAWN[:-1])} and {DRAWN[-1]} have")
    if args.device != "cpu" and args.name not in ON_DEVICE:
        raise ValueError(f"--device {args.device}: {args.name} measures the host; on a GPU there are "
                         f"{', '.join(ON_DEVICE)}")
    if args.full and args.sizes is not None:
        raise ValueError(f"--full --sizes {args.sizes}: give one of the two")
    takes = taken(args.name)
    given = {"ranks": args.ranks, "sizes": args.sizes, "rounds": args.rounds, "json": args.json or None,
             "into": args.into}
    for name, value in given.items():
        if value is not None and name not in takes:
            words = f"--{name}" if name == "json" else f"--{name} {value}"
            raise ValueError(f"{words}: bench {args.name} would ignore it; it takes --{', --'.join(takes)}")
    if args.plot is not None:
        check_plot_file(args.plot)


def taken(name):
    """The options that a bench heeds, of those that not all do."""
    if name == "all":
        return ["full", "into"]
    sizes = module(name).SIZES is not None
    return [*["ranks"] * (name in IN_A_JOB), *["sizes"] * sizes, "rounds", "full", "json"]


def start_job(args):
    """Start the same command on `--ranks` ranks, and wait for it; its exit status."""
    from refimpl.commands import launch

    given = {name: getattr(args, name) for name in ("ranks", "rounds", "sizes", "plot", "device")}
    options = [f"--{name}={value}" for name, value in given.items() if value]
    verb = ["bench", args.name, *options, *["--json"] * args.json, *["--full"] * args.full]
    return launch.main(argparse.Namespace(ranks=args.ranks, timeout=None, show=False, verb=verb))


def report(args, bench, result):
    """Print what was measured, and draw it."""
    if args.name == "overlap":
        result["virtual_hidden_share"] = bench.virtual_hidden_share()
    if not args.json and "device" in result:
        print(f"device: {result['device']}\n")
    print(json.dumps(result) if args.json else bench.describe(result))
    if args.plot:
        draw(args.plot, args.name, result)


def draw(path, name, result):
    """The rows as a picture: curves over the size, or shares as bars."""
    from refimpl.bench import scaling
    from refimpl.bench.timing import size_words
    from refimpl.course.plots.shares import plot_shares
    from refimpl.course.plots.speed import plot_speed

    rows, title = result["rows"], f"{name} on {result['ranks']} ranks under MPI, one machine"
    last = lambda key, share: {row[key]: row[share] for row in rows}           # of several sizes the largest
    if name == "scaling":
        plot_shares(path, last("axis", "share_of_ceiling"), f"{title}: of the ceiling", scaling.CLAIMED, "claimed")
    elif name == "pipeline":
        plot_shares(path, last("schedule", "busy_share"), f"{title}: busy", last("schedule", "predicted_share"),
                    "the timeline says")
    else:
        plot_speed(path, rows, title, size_words)


def write_report(args):
    """All benches, and a page with pictures in `--into`; 0 if all could run, else 1."""
    from refimpl.bench import report as all_of_them
    from refimpl.course.plots.files import write_text

    folder = Path(REPORT if args.into is None else args.into)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--into {folder}: expected a folder; nearest {folder.parent}")
    folder.mkdir(parents=True, exist_ok=True)
    tell = lambda found: print(f"{found.name:16} {found.seconds:>5.0f} s  {found.why}", flush=True)
    everything = all_of_them.collect(ALL, ["--full"] * args.full, tell)
    pictures = {}
    for found in everything:
        if found.result is not None and found.name in DRAWN:
            pictures[found.name] = f"{found.name}.svg"
            draw(folder / pictures[found.name], found.name, found.result)
    write_text(folder / "report.md", all_of_them.page(everything, IN_A_JOB | HERE, pictures))
    write_text(folder / "report.json", json.dumps({found.name: found.result for found in everything}, indent=1) + "\n")
    print(f"report: {folder / 'report.md'}")
    return 0 if all(found.result is not None for found in everything) else 1
