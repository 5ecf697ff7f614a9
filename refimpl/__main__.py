"""python -m refimpl VERB ...: finds the verb's module in `commands`, parses, runs, turns errors into one line."""

import argparse
import importlib
import pkgutil
import sys

from refimpl import __version__, commands
from refimpl.world.launch import is_root


def main(argv=None):
    """Run one command; returns its exit status: 0 fine, 1 a check failed, 2 wrong input, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="refimpl", description="Distributed training in NumPy, proven by running it.")
    parser.add_argument("--version", action="version", version=f"refimpl {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for module in sorted(m.name for m in pkgutil.iter_modules(commands.__path__)):
        command = importlib.import_module(f"refimpl.commands.{module}")
        verb = verbs.add_parser(module.replace("_", "-"), help=command.HELP, description=command.HELP)
        command.add_arguments(verb)
        verb.set_defaults(command=command.main)
    args = parser.parse_args(argv)
    try:
        return args.command(args)
    except ValueError as error:
        from_a_rank = getattr(error, "__notes__", [])
        if is_root() or from_a_rank:                  # what every rank found alike is said once
            print(" ".join(["error:", str(error), *from_a_rank]), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
