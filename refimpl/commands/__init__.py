"""The verbs of the command line: a module each, and one parser for all of them.

    HELP, add_arguments(parser), main(args)        what every verb has
    world(args)                                    what some have: on how many ranks these options run, under mpirun

`launch` reads the command that it is to start with the same parser: what is wrong with it is said once, before there is
a job whose every rank says so.
"""

import argparse
import importlib
import pkgutil
import sys
from difflib import get_close_matches

from refimpl import __version__
from refimpl.world.launch import is_root


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and said once, not by every rank."""

    def error(self, message):
        """Say what is wrong and where the help is; exit status 2."""
        if is_root():
            print(f"error: {message} (help: {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


def parsers():
    """The parser of all, and {verb: its parser}; what is parsed has the verb's module as `command`."""
    whole = Parser(prog="python -m refimpl", description="Distributed training in NumPy, proven by running it.")
    whole.add_argument("--version", action="version", version=f"refimpl {__version__}")
    verbs = whole.add_subparsers(metavar="VERB", title="verbs", required=True)
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        try:
            command = importlib.import_module(f"{__name__}.{module}")
        except ModuleNotFoundError as error:
            sys.exit(f"error: {error.name} is not installed in this Python: python3 start.py VERB ... installs what is "
                     "needed, or source .venv/bin/activate")
        verb = verbs.add_parser(module.replace("_", "-"), help=command.HELP, description=command.HELP)
        command.add_arguments(verb)
        verb.set_defaults(command=command)
    return whole, verbs.choices


def parse(words):
    """The words of a command as a namespace, or one line of what is wrong with them, and exit status 2."""
    whole, verbs = parsers()
    if words and words[0] not in verbs and not words[0].startswith("-"):
        near = get_close_matches(words[0], verbs, n=1, cutoff=0.5)
        hint = f"perhaps {near[0]!r}?" if near else f"one of {', '.join(verbs)}"
        whole.error(f"there is no verb {words[0]!r}: {hint}")
    return whole.parse_args(words)
