"""python -m refimpl gpu-check: does all this work on the GPU of this machine? One prepared run of under 6 minutes.

    passed     collectives                      ... runs on up to 8 ranks, bit by bit the host's
    not run    transport, CUDA-aware, 2 ranks   this MPI is not CUDA-aware ...

Exit status: 0 all passed, on a GPU; 1 something failed; 3 nothing failed, but something did not run, or only as a
rehearsal. `--rehearse numpy` proves, on a machine without a GPU, that the command itself works, and nothing else.
"""

import json

HELP = "check operators, collectives, MPI and the trainer on the GPU, in one run of under 6 minutes"
STATUS = {"passed": 0, "failed": 1, "not run": 3, "rehearsed": 3}


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("--json", metavar="FILE", help="write all figures into this file, too")
    parser.add_argument("--rehearse", metavar="MODULE", help="no GPU: with numpy, or what acts like CuPy")
    parser.add_argument("--step", help="only one: device, operators, collectives or layouts; prints JSON")


def world(args):
    """On no ranks of a job: ValueError."""
    raise ValueError("gpu-check starts MPI jobs itself: run it without mpirun")


def main(args):
    """Run the steps and report; the exit status."""
    from refimpl.course.plots.files import check_plot_file, write_text
    from refimpl.device import library, rehearsing
    from refimpl.gpu import check
    from refimpl.world.launch import under_mpi

    if under_mpi():
        world(args)
    if args.rehearse is not None:
        library(args.rehearse)
        check.rehearse(args.rehearse)
    if args.step is not None:
        return one_step(args.step)
    if args.json is not None:
        check_plot_file(args.json, (".json",), option="--json")
    if rehearsing():
        print(f"A rehearsal with {rehearsing()}: it shows that the command works, and nothing about a GPU.\n")
    width = max(len(step.name) for step in check.STEPS)
    outcomes = check.check(lambda one: print(f"{one.status:10} {one.name:{width}}  {one.seconds:>5.1f} s  {one.words}",
                                             flush=True))
    verdict = check.verdict(outcomes)
    print("\n" + words(outcomes, verdict))
    if args.json is not None:
        report = {"verdict": verdict, "rehearsed_with": rehearsing() or None,
                  "seconds": sum(one.seconds for one in outcomes), "steps": [one._asdict() for one in outcomes]}
        write_text(args.json, json.dumps(report, indent=1) + "\n")
    return STATUS[verdict]


def one_step(name):
    """Run one step in this process and print what came of it as JSON; the exit status."""
    from refimpl.gpu import check, steps

    alone = [step.name for step in check.STEPS if step.ranks is None]
    if name not in alone:
        raise ValueError(f"--step {name}: expected one of {', '.join(alone)}")
    status, words, figures = steps.run_step(name)
    print(json.dumps([status, words, figures]))
    return STATUS[status]


def words(outcomes, verdict):
    """The last line of the report."""
    count = lambda status: sum(one.status == status for one in outcomes)
    return {
        "passed": f"All {len(outcomes)} steps passed.",
        "failed": f"{count('failed')} of {len(outcomes)} steps failed.",
        "not run": f"{count('not run')} of {len(outcomes)} steps did not run, {count('passed')} passed.",
        "rehearsed": f"All {len(outcomes)} steps were rehearsed; none has run on a GPU.",
    }[verdict]
