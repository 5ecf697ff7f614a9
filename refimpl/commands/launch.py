"""Run a command of the project on several ranks under mpirun: `launch -n 4 demo mlp --tp 4`.

The flags and variables that MPI needs on this machine are world/mpirun.py's business; `--show` prints the command and
what it adds to the environment instead of running it, as a start for a job script of your own.

The command is read here, too, before there is a job: what it cannot do on so many ranks is said in one line. In a job
every rank would say it, and MPI on top that it was aborted.
"""

import argparse
import math
import os
import shlex
import signal
import sys

from refimpl import commands
from refimpl.device import counted
from refimpl.world.mpirun import end_job, mpirun_command, mpirun_environment, start_job

HELP = "run a command on several ranks under mpirun"


def add_arguments(parser):
    """-n RANKS, --timeout SECONDS, --show, and the command with all its own options."""
    parser.add_argument("-n", dest="ranks", type=int, required=True, metavar="RANKS", help="how many ranks")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end the job after this long")
    parser.add_argument("--show", action="store_true", help="print what would be run, and do not run it")
    parser.add_argument("verb", nargs=argparse.REMAINDER, metavar="VERB ...", help="the command, with its options")


def main(args):
    """Start the job and wait for it. Returns its exit status, 130 after Ctrl-C; ValueError for bad arguments."""
    check(args)
    arguments = ["-m", "refimpl", *args.verb]
    if args.show:
        print(shown(args.ranks, arguments, args.timeout))
        return 0
    job = start_job(args.ranks, arguments, args.timeout)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))     # by way of `finally`, too
    try:
        status = job.wait()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    finally:
        end_job(job)
    return status if status >= 0 else 128 - status          # killed by a signal: as a shell reports it


def check(args):
    """ValueError that says what is wrong with the arguments, before anything is started."""
    if not args.verb:
        raise ValueError("nothing to run: name a command, as in `launch -n 4 demo mlp --tp 4`")
    mpirun_command(args.ranks)
    if args.timeout is not None and not 0 < args.timeout < math.inf:
        raise ValueError(f"--timeout {args.timeout:g}: a number of seconds above 0 is expected")
    if args.verb[0] == "launch":
        raise ValueError("launch in launch: a rank starts no ranks; name another command, such as demo mlp")
    words = commands.parse(args.verb)
    ranks = words.command.world(words) if hasattr(words.command, "world") else args.ranks
    if ranks != args.ranks:
        raise ValueError(f"-n {args.ranks}, but `{shlex.join(args.verb)}` runs on {counted(ranks, 'rank')}: "
                         f"-n {ranks}, or sizes that make {args.ranks}")


def shown(ranks, arguments, timeout):
    """The job as text for a POSIX shell: what is added to the environment, a line each, and the command."""
    environment = mpirun_environment(timeout)
    added = [f"{name}={shlex.quote(environment[name])}" for name in sorted(environment) if name not in os.environ]
    command = shlex.join([*mpirun_command(ranks), sys.executable, "-m", "mpi4py", *arguments])
    return "".join(f"{setting} \\\n" for setting in added) + command
