"""python -m refimpl progress: take your attempts along to another machine, or begin anew."""

import sys

HELP = "export, import or reset what is remembered of your attempts"


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("what", choices=["show", "export", "import", "reset"], nargs="?", default="show",
                        help="show (default): how far you are; export to, or import from, a file; reset: begin anew, "
                             "the old attempts exported to the file")
    parser.add_argument("file", metavar="FILE", nargs="?", help="of attempts, one JSON object a line (.jsonl)")


def main(args):
    """Do it; the exit status."""
    from refimpl.course import moving
    from refimpl.course.progress import progress

    if args.what != "show" and args.file is None:
        raise ValueError(f"progress {args.what}: give a FILE, such as progress.jsonl")
    me = progress()
    if args.what == "show":
        print(moving.overview(me))
    elif args.what == "export":
        print(f"{moving.counted(moving.export(me, args.file))}: {args.file}")
    elif args.what == "import":
        new, known = moving.take_in(me, args.file)
        print(f"{moving.counted(new)} added, {known} known already: {me.path}")
    else:
        print(f"{moving.counted(moving.reset(me, args.file))} moved to {args.file}; you begin anew")
    for message in me.messages():
        print(f"note: {message}", file=sys.stderr)
    return 0
