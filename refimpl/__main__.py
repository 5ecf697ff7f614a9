"""python -m refimpl VERB ...: runs what `commands` has parsed, and turns errors into one line."""

import os
import sys

from refimpl import commands
from refimpl.world.launch import is_root

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
    if not argv:
        print(overview({name: verb.description for name, verb in commands.parsers()[1].items()}))
        return 0
    args = commands.parse(argv)
    try:
        status = args.command.main(args)
        sys.stdout.flush()                            # or the reader's leaving shows only when Python ends
        return status
    except BrokenPipeError:                           # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141                                    # as if SIGPIPE had ended us, which it would in another language
    except ValueError as error:
        from_a_rank = getattr(error, "__notes__", [])
        if is_root() or from_a_rank:                  # what every rank found alike is said once
            words = str(error).splitlines()           # a file's name may have two lines
            print(" ".join(["error:", *words, *from_a_rank]), file=sys.stderr)
        return 2
    except OSError as error:                          # a disk, a folder, a file that is not what it was a moment ago
        if is_root():
            print(f"error: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        what = f": {error}" if str(error) else ""
        print(f"error: there is not enough memory{what}; try smaller sizes", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
