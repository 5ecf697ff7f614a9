"""python -m refimpl facts: what popular material claims about large-scale training, computed again."""

import json
import textwrap
from dataclasses import asdict

from refimpl.world.launch import is_root

HELP = "claims of popular material, computed again: right, incomplete or wrong"
WIDTH = 116


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("id", nargs="*", metavar="ID", help="only these: a to t, or the words in front (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--explain", action="store_true", help="how each number comes about, and its source")


def main(args):
    """Compute and show; the exit status."""
    from refimpl.cost.facts import claims

    found = claims()
    if args.id:
        known = {one.id: one for one in found}
        for name in args.id:
            if name not in known:
                raise ValueError(f"there is no claim {name!r}: there are {', '.join(known)}")
        found = [known[name] for name in dict.fromkeys(args.id)]
    if is_root():
        print(json.dumps({"claims": [asdict(one) for one in found]}, allow_nan=False) if args.json
              else "\n".join(shown(one, args.explain) for one in found))
    return 0


def shown(one, explain):
    """A claim as text."""
    first, rest = f"{one.id:15}{one.verdict:12}", " " * 27
    lines = textwrap.wrap(one.claim, WIDTH, initial_indent=first, subsequent_indent=rest)
    number = f"{one.value:,.0f}" if one.value == int(one.value) else f"{one.value:.6g}"
    lines.append(f"{rest}{number} {one.unit}")
    if explain:
        for text in (one.derivation, f"({one.source})"):
            lines += textwrap.wrap(text, WIDTH, initial_indent=rest, subsequent_indent=rest)
    return "\n".join(lines)
