"""python -m refimpl check: run your exercises, and hear what is wrong with them.

    check ring_all_reduce            one exercise; --all, or nothing, all of them
    check ring_all_reduce --watch    again each time you save the file
    check --status                   what you have solved
    check --kind "find the bug"      one kind of exercises, here and with --status and --watch
"""

import contextlib
import json
import sys
from pathlib import Path

from refimpl.world.launch import is_root

HELP = "check your solutions of the exercises, and say what is wrong with them"


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("name", nargs="?", metavar="NAME",
                        help="an exercise, by its name, number or file (default: all)")
    parser.add_argument("--all", action="store_true", help="all exercises")
    parser.add_argument("--kind", metavar="KIND", help="those of a kind: implement, count, find the bug or design")
    parser.add_argument("--impl", choices=["exercises", "solutions"], default="exercises",
                        help="check your files, or the solutions (default exercises)")
    parser.add_argument("--folder", metavar="DIR", help="read the files from this folder instead")
    parser.add_argument("--watch", action="store_true", help="check again each time a file is saved; Ctrl-C ends it")
    parser.add_argument("--status", action="store_true", help="show what is solved, and run nothing")
    parser.add_argument("--json", action="store_true",
                        help="print one JSON object, nothing else (--watch: one for each save)")


def main(args):
    """Check, watch or report; the exit status: 0 if all that was checked is right, else 1."""
    from refimpl.course.exercises import catalogue, learner, stubs, watching

    if args.name is not None and args.all:
        raise ValueError(f"{args.name} --all: give the name of one exercise, or --all")
    if args.name is not None and args.kind is not None:
        raise ValueError(f"{args.name} --kind {args.kind}: give the name of one exercise, or a kind")
    if not is_root():
        return 0
    chosen = catalogue.of_kind(args.kind) if args.name is None else [catalogue.find(args.name)]
    if args.status:
        names = {exercise.name for exercise in chosen}
        report_status([row for row in learner.status() if row["name"] in names], args.json)
        return 0
    folder = Path(args.folder) if args.folder else stubs.folder(args.impl)
    paths = {folder / exercise.filename: exercise for exercise in chosen}
    mine = args.impl == "exercises"                   # the solutions are nobody's attempts
    saved = watching.saved(list(paths))               # before the first check: it may take a moment
    if args.watch and len(paths) > 1:                 # the rest of the course is not wanted on every start
        verdicts = []
    else:
        verdicts = [check_file(path, exercise, mine, args.json) for path, exercise in paths.items()]
        report(verdicts, args.json)
    if args.watch:
        watch(saved, paths, mine, args.json)
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def watch(saved, paths, mine, as_json):
    """Check each file that is saved, until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        files = ", ".join(str(path) for path in paths) if len(paths) == 1 else f"{len(paths)} files"
        say(f"watching {files}; Ctrl-C ends", sys.stderr)
        for path in saved:
            report([check_file(path, paths[path], mine, as_json)], as_json)


def check_file(path, exercise, mine, as_json):
    """The verdict on one file; what the learner's code prints must not get into the JSON."""
    from refimpl.course.exercises import checks, learner
    from refimpl.course.progress import progress

    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        verdict = checks.examine_file(path, exercise.name)
    if mine:
        verdict = learner.remembered(verdict)
        for message in progress().messages():
            say(message, sys.stderr)
    return verdict


def report(verdicts, as_json):
    """Print verdicts."""
    if as_json:
        results = [{"name": v.name, "passed": v.passed, "diagnosis": v.diagnosis, "text": str(v)} for v in verdicts]
        print(json.dumps({"results": results}), flush=True)
        return
    for verdict in verdicts:
        say(str(verdict))
    if len(verdicts) > 1:
        score, points = sum(v.score for v in verdicts), sum(v.points for v in verdicts)
        say(f"\n{sum(v.passed for v in verdicts)} of {len(verdicts)} exercises solved, {score:g} of {points:g} points")


def report_status(rows, as_json):
    """Print what is solved and what was tried."""
    from refimpl.course.progress import progress, progress_file

    for message in progress().messages():
        say(message, sys.stderr)
    if as_json:
        print(json.dumps({"exercises": rows, "progress": str(progress_file())}))
        return
    say(f"   {'exercise':24} {'lesson':>6}  {'kind':12} {'minutes':>7} {'attempts':>9} {'hints':>6}  state")
    for row in rows:
        state = f"solved {row['solved'][:10]}" if row["passed"] else row["diagnosis"] or "not begun"
        say(f" {'✓' if row['passed'] else ' '} {row['name']:24} {row['lesson']:>6}  {row['kind']:12} "
            f"{row['minutes']:>7} {row['attempts']:>9} {row['hints']:>6}  {state}")
    say(f"\n{sum(row['passed'] for row in rows)} of {len(rows)} solved, {sum(row['score'] for row in rows)} of "
        f"{sum(row['points'] for row in rows)} points; remembered in {progress_file()}")


def say(text, file=None):
    """Print, whatever the terminal's encoding can show."""
    file = file or sys.stdout
    encoding = getattr(file, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), file=file, flush=True)
