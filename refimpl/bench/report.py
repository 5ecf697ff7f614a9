"""All benches, one after the other, and one page of what they found.

    python -m refimpl bench all                docs/bench/report.md, with pictures beside it
    python -m refimpl bench all --into DIR     somewhere else

Every bench runs in processes of its own, as if called by hand. One that cannot run here says why on the page.
"""

import importlib
import json
import os
import platform
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np

LIMIT_SECONDS = 50                          # of a bench with its default sizes, on 2 cores


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
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "refimpl", "bench", name, "--json", *options],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        seconds, result, why = time.perf_counter() - began, None, ""
        if done.returncode == 0:
            result = json.loads(done.stdout.splitlines()[-1])
        else:
            why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1].removeprefix("error: ")
        everything.append(Found(name, result, why, seconds))
        on_found(everything[-1])
    return everything


def page(everything, modules, pictures):
    """The report as Markdown.

    modules     {name of a bench: of its module}        pictures    {name of a bench: file beside the page}
    """
    lines = ["# What was measured", "", machine(), "",
             "Every bench measures its variants in turn, round by round, and compares those of one round. Numbers of "
             "another machine, or of this one while it does something else, differ.", ""]
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
