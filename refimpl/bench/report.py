"""All benches, one after the other, and one page of what they found.

    python -m refimpl bench all                docs/bench/report.md, with pictures beside it
    python -m refimpl bench all --into DIR     somewhere else

Every bench runs in processes of its own, as if called by hand. One that cannot run here says why on the page; one that
hangs is ended after 20 minutes, and the others get their turn.
"""

import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np

LIMIT_SECONDS = 50                          # of a bench with its default sizes, on 2 cores
ENDED_AFTER = 20 * 60                       # seconds: it hangs


class Found(NamedTuple):
    """What one bench found: the object that it prints as JSON, or None and why there is none; and seconds."""

    name: str
    result: dict | None
    why: str
    seconds: float


def collect(names, options=(), on_found=lambda found: None):
    """Run the benches. -> [Found]

    options    of the command line, for all        on_found    called after each
    """
    everything = []
    for name in names:
        began, result, why = time.perf_counter(), None, ""
        status, output, errors = output_of([sys.executable, "-m", "refimpl", "bench", name, "--json", *options])
        if status == 0:
            result = json.loads(output.splitlines()[-1])
        else:
            why = (errors.strip().splitlines() or [f"status {status}"])[-1].removeprefix("error: ")
        everything.append(Found(name, result, why, time.perf_counter() - began))
        on_found(everything[-1])
    return everything


def output_of(command):
    """(status, stdout, stderr) of a command; one that takes longer than ENDED_AFTER is ended, which stderr says."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
    try:
        output, errors = process.communicate(timeout=ENDED_AFTER)
        return process.returncode, output, errors
    except subprocess.TimeoutExpired:
        return None, "", f"it took longer than {ENDED_AFTER / 60:g} minutes and was ended"
    finally:
        interrupt(process)


def interrupt(process, patience=15.0):
    """End a bench that still runs: as Ctrl-C would, upon which it ends what it has started; then by force."""
    if process.poll() is None and os.name == "nt":
        process.kill()
    elif process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def page(everything, modules, pictures):
    """The report as Markdown.

    modules     {name of a bench: of its module}        pictures    {name of a bench: file beside the page}
    """
    lines = ["# What was measured", "", machine(), "",
             "Every bench measures its variants in turn, round by round, and compares those of one round. Numbers of "
             "another machine, or of this one while it does something else, differ. A bench that takes longer than "
             f"{ENDED_AFTER // 60} minutes is ended.", ""]
    for found in everything:
        module = importlib.import_module(f"refimpl.bench.{modules[found.name]}")
        lines += [f"## {found.name}", "", module.__doc__.partition("\n")[0], ""]
        if found.result is None:
            lines += [f"Did not run: {found.why}", ""]
            continue
        lines += ["```", module.describe(found.result), "```", ""]
        if found.name in pictures:
            lines += [f"![{found.name}: the table as a picture]({pictures[found.name]})", ""]
        lines += [f"`python -m refimpl bench {found.name}`, {found.seconds:.0f} s", ""]
    return "\n".join(lines).rstrip() + "\n"


def machine():
    """What it was measured on, in a sentence."""
    return (f"{os.cpu_count()} cores ({platform.machine()}, {platform.system()}), Python {platform.python_version()}, "
            f"NumPy {np.__version__}.")
