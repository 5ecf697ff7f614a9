"""python -m refimpl VERB ...: finds the verb's module in `commands`, parses, runs, turns errors into one line."""

import argparse
import importlib
import os
import pkgutil
import sys
from difflib import get_close_matches

from refimpl import __version__, commands
from refimpl.world.launch import is_root


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and said once, not by every rank."""

    def error(self, message):
        """Say what is wrong and where the help is; exit status 2."""
        if is_root():
            print(f"error: {message} (help: {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


OVERVIEW = {                                          # what one may want, and the verbs for it
    "learn": ("check", "hint", "quiz", "drill", "mistakes", "progress", "exercises"),
    "run": ("train", "verify", "schedule", "demo", "launch"),
    "what it costs": ("memory", "traffic", "step", "plan", "facts"),
    "this machine": ("doctor", "bench", "gpu-check"),
}


def overview(helps):
    """What there is, for somebody who does not know what to type: helps {verb: what it does}."""
    lines = ["How large models are trained on many GPUs, in NumPy, proven by running it.", "",
             "The lessons: python3 start.py opens them in JupyterLab; begin with 00, a first run and the map.", ""]
    named = {verb for verbs in OVERVIEW.values() for verb in verbs}
    groups = OVERVIEW | {"more": tuple(verb for verb in helps if verb not in named)}
    for title, verbs in groups.items():
        there = [verb for verb in verbs if verb in helps]
        lines += [title, *(f"  {verb:10} {helps[verb]}" for verb in there), ""] if there else []
    return "\n".join([*lines, "python -m refimpl VERB --help says more."])


def main(argv=None):
    """Run one command; returns its exit status: 0 fine, 1 a check failed, 2 wrong input, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="python -m refimpl", description="Distributed training in NumPy, proven by running it.")
    parser.add_argument("--version", action="version", version=f"refimpl {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", title="verbs", required=True)
    for module in sorted(m.name for m in pkgutil.iter_modules(commands.__path__)):
        try:
            command = importlib.import_module(f"refimpl.commands.{module}")
        except ModuleNotFoundError as error:
            sys.exit(f"error: {error.name} is not installed in this Python: python3 start.py VERB ... installs what is "
                     "needed, or source .venv/bin/activate")
        verb = verbs.add_parser(module.replace("_", "-"), help=command.HELP, description=command.HELP)
        command.add_arguments(verb)
        verb.set_defaults(command=command.main)
    if not argv:
        print(overview({name: verb.description for name, verb in verbs.choices.items()}))
        return 0
    if argv[0] not in verbs.choices and not argv[0].startswith("-"):
        near = get_close_matches(argv[0], verbs.choices, n=1, cutoff=0.5)
        hint = f"perhaps {near[0]!r}?" if near else f"one of {', '.join(verbs.choices)}"
        parser.error(f"there is no verb {argv[0]!r}: {hint}")
    args = parser.parse_args(argv)
    try:
        status = args.command(args)
        sys.stdout.flush()                            # or the reader's leaving shows only when Python ends
        return status
    except BrokenPipeError:                           # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141                                    # as if SIGPIPE had ended us, which it would in another language
    except ValueError as error:
        from_a_rank = getattr(error, "__notes__", [])
        if is_root() or from_a_rank:                  # what every rank found alike is said once
            print(" ".join(["error:", str(error), *from_a_rank]), file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"error: there is not enough memory: {error}; try smaller sizes", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
