"""python -m refimpl exercises: make exercises/ from solutions/; with --check, say where the two have drifted apart."""

import json

from refimpl.world.launch import is_root

HELP = "make the exercises from their solutions, keeping what learners wrote"


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("--check", action="store_true",
                        help="write nothing; exit 1 if an exercise has drifted from its source")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")


def main(args):
    """Write or compare; the exit status."""
    from refimpl.course.exercises import stubs

    if not is_root():
        return 0
    if args.check:
        found = stubs.drift()
        words = "\n".join(found) or "all exercises are what their sources make"
        print(json.dumps({"drift": found}) if args.json else words)
        return 1 if found else 0
    changed = stubs.write()
    print(json.dumps({"written": changed}) if args.json
          else "\n".join(f"wrote exercises/{name}" for name in changed) or "nothing to do")
    return 0
