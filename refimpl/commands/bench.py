"""python -m refimpl bench NAME: claims about speed, measured side by side in one run, under MPI where it is theirs."""

import argparse
import importlib
import json

from refimpl.world import run
from refimpl.world.launch import is_root, under_mpi

HELP = "measure speed, side by side with MPI's own and with what memory allows"
IN_A_JOB = {"all-reduce": "all_reduce", "collectives": "collectives", "overlap": "overlap",
            "tensor-parallel": "tensor_parallel"}                                                # of --ranks ranks
HERE = {"local": "local", "import": "imports"}
DRAWN = ("all-reduce", "collectives")


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("name", choices=[*IN_A_JOB, *HERE], help="what to measure")
    parser.add_argument("--ranks", type=int, default=4, metavar="P", help="ranks under MPI (default 4)")
    parser.add_argument("--sizes", metavar="LIST", help="sizes of the array, as in 4KiB,64MiB")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="interleaved rounds (default 7)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--plot", metavar="FILE", help="draw time over size (.png, .svg or .pdf)")


def main(args):
    """Measure and report; the exit status. Outside a job, benches of MPI start one of `--ranks` ranks."""
    from refimpl.bench.timing import parse_size, pin
    from refimpl.course.plots.files import check_plot_file

    bench = importlib.import_module(f"refimpl.bench.{(IN_A_JOB | HERE)[args.name]}")
    if args.rounds < 1:
        raise ValueError(f"--rounds {args.rounds}: measure 1 round or more")
    if args.name in HERE and under_mpi():
        raise ValueError(f"bench {args.name} starts processes of its own: run it without mpirun")
    if args.plot and args.name not in DRAWN:
        raise ValueError(f"--plot: {args.name} has no curve to draw; {' and '.join(DRAWN)} have")
    if args.plot:
        check_plot_file(args.plot)
    sizes = [parse_size(text) for text in (args.sizes or bench.SIZES).split(",")] if bench.SIZES else None
    if args.name in HERE:
        result = bench.bench(sizes, args.rounds)
    elif not under_mpi():
        return start_job(args)
    else:
        def program(comm):
            pin(comm.rank)
            return bench.bench(comm, sizes, args.rounds)

        result = {"ranks": args.ranks} | run(program, args.ranks, rendezvous=False)[0]
    if is_root():
        report(args, bench, result)
    return 0


def start_job(args):
    """Start the same command on `--ranks` ranks, and wait for it; its exit status."""
    from refimpl.commands import launch

    given = {name: getattr(args, name) for name in ("ranks", "rounds", "sizes", "plot")}
    options = [f"--{name}={value}" for name, value in given.items() if value]
    verb = ["bench", args.name, *options, *["--json"] * args.json]
    return launch.main(argparse.Namespace(ranks=args.ranks, timeout=None, show=False, verb=verb))


def report(args, bench, result):
    """Print what was measured, and draw it."""
    if args.name == "overlap":
        result["virtual_hidden_share"] = bench.virtual_hidden_share()
    print(json.dumps(result) if args.json else bench.describe(result))
    if args.plot:
        from refimpl.bench.timing import size_words
        from refimpl.course.plots.speed import plot_speed

        plot_speed(args.plot, result["rows"], f"{args.name} on {args.ranks} ranks under MPI, one machine", size_words)
