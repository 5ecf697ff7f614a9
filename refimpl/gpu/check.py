"""The steps of `gpu-check`: each in processes of its own, so that a crash or a hang of one is a line of the report.

    device          which GPU, driver and library; how fast memory is
    operators       NumPy and CuPy agree: forward and backward of what the model and its parts are made of
    collectives     every collective, bit by bit the host's
    layouts         the trainer, on ranks of one process, is the run of one device: first under few layouts that reach
                    all other operators, then under as much of a sample of all layouts as there is time for
    transport       2 and 4 processes: the same bits, and the bandwidth beside the memory's; staged, and CUDA-aware
    trainer         2 and 4 processes: train --check

A step that needs a GPU, or a CUDA-aware MPI, and has none did not run. That is no pass, and a rehearsal is none either.
`most_seconds`, if every step hangs, stays under 6 minutes.
"""

import json
import os
import subprocess
import sys
import time
from functools import cache
from typing import NamedTuple

from refimpl.device import LIBRARY, open_device, rehearsing
from refimpl.world.cuda_aware import cuda_aware
from refimpl.world.mpirun import end_job, start_job

PASSED, FAILED, NOT_RUN, REHEARSED = "passed", "failed", "not run", "rehearsed"
SIZES = {"gpu": "1MiB,64MiB,512MiB", "rehearsal": "64KiB,1MiB"}
TRAIN = ("--layers", "2", "--hidden", "64", "--steps", "3", "--check", "--json")
LAYOUTS = {2: [("--tp", "2"), ("--dp", "2", "--zero", "3")],
           4: [("--dp", "2", "--tp", "2"), ("--pp", "2", "--cp", "2")]}
QUESTIONS = {"usable": 15, "aware": 10}    # seconds to answer: is there a GPU, is MPI CUDA-aware
GRACE, PATIENCE = 1, 1                     # seconds for mpirun to end a job at its limit; for what is asked to end


class Step(NamedTuple):
    """What is checked, and how many seconds it may take: on a fresh machine most of `operators` is compiling kernels.

    ranks    of a job; None: one process        aware    of transport: hand MPI device buffers
    """

    name: str
    seconds: float
    ranks: int | None = None
    aware: bool | None = None


STEPS = (
    Step("device", 20), Step("operators", 75), Step("collectives", 30), Step("layouts", 55),
    Step("transport, staged, 2 ranks", 20, 2, False), Step("transport, staged, 4 ranks", 20, 4, False),
    Step("transport, CUDA-aware, 2 ranks", 15, 2, True), Step("transport, CUDA-aware, 4 ranks", 15, 4, True),
    Step("trainer, 2 ranks", 20, 2), Step("trainer, 4 ranks", 30, 4),
)


def most_seconds():
    """How long all of it takes if nothing ever answers, and nothing ends that is asked to."""
    jobs = sum((1 if step.aware is not None else len(LAYOUTS[step.ranks])) for step in STEPS if step.ranks)
    alone = len(QUESTIONS) + sum(step.ranks is None for step in STEPS)
    return (sum(QUESTIONS.values()) + sum(step.seconds for step in STEPS)
            + jobs * (GRACE + PATIENCE) + alone * PATIENCE)


class Outcome(NamedTuple):
    """What became of a step: a status, a line for people, figures, seconds."""

    name: str
    status: str
    words: str
    figures: object = None
    seconds: float = 0.0


def check(on_outcome=lambda outcome: None, steps=None):
    """Run all steps, or those given. -> [Outcome]        on_outcome    called with each as it comes"""
    outcomes, missing = [], no_gpu()
    for step in STEPS if steps is None else steps:
        began = time.perf_counter()
        status, words, figures = (NOT_RUN, missing, None) if missing else attempt(step)
        outcomes.append(Outcome(step.name, status, words, figures, time.perf_counter() - began))
        on_outcome(outcomes[-1])
    return outcomes


def verdict(outcomes):
    """What all of them come to: failed if one failed; passed only if every one passed, on a GPU."""
    found = {outcome.status for outcome in outcomes}
    return next((status for status in (FAILED, NOT_RUN, REHEARSED) if status in found), PASSED)


def no_gpu():
    """Why nothing can run here; None if it can, or if nobody knows: then every step says for itself."""
    status, words, _ = ask("usable")
    return words if status == NOT_RUN else None


@cache
def mpi_is_aware():
    """What `cuda_aware` says, asked once: (PASSED if it does, else NOT_RUN or FAILED, words)."""
    return ask("aware")[:2]


def ask(question):
    """The answer of a function below, in a process of its own: it leaves no context on the GPU, and no MPI started."""
    code = f"from refimpl.gpu import check; check.{question}()"
    return answer([sys.executable, "-c", code], QUESTIONS[question])


def usable():
    """Print, as a step does, whether there is a GPU to use."""
    try:
        print(json.dumps([PASSED, open_device("gpu").words, None]))
    except ValueError as error:
        print(json.dumps([NOT_RUN, str(error).removeprefix("--device gpu: "), None]))


def aware():
    """Print, as a step does, whether MPI may be handed device buffers."""
    from mpi4py import MPI

    yes, source = cuda_aware(MPI)
    wanting = f"this MPI is not CUDA-aware ({source}); where you know better: REFIMPL_CUDA_AWARE=1"
    print(json.dumps([PASSED, source, None] if yes else [NOT_RUN, wanting, None]))


def attempt(step):
    """Run one step: (status, words, figures)."""
    if step.ranks is None:
        return answer([sys.executable, "-m", "refimpl", "gpu-check", "--step", step.name], step.seconds)
    return transport(step) if step.aware is not None else trainer(step)


def answer(command, seconds):
    """What a process that prints (status, words, figures) as JSON says; failed if it crashes or takes too long."""
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
    said = what_it_says(running, seconds)
    if said is None:
        return FAILED, f"no answer within {seconds:g} s", None
    try:
        status, words, figures = json.loads(said[0].splitlines()[-1])
    except (ValueError, IndexError):
        return FAILED, last_words(said[1], running.returncode), None
    return (REHEARSED if status == PASSED and rehearsing() else status), words, figures


def job(step, arguments, environment=None):
    """Run a job of ranks that prints JSON: (the object, "") or (None, what went wrong)."""
    running = start_job(step.ranks, arguments, step.seconds, environment, stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=True)
    said = what_it_says(running, step.seconds + GRACE)
    if said is None:
        return None, f"no answer within {step.seconds:g} s"
    lines = [line for line in said[0].splitlines() if line.startswith("{")]
    return (json.loads(lines[-1]), "") if lines else (None, last_words(said[1], running.returncode))


def what_it_says(running, seconds):
    """(output, errors) of a process; None if it takes longer: then it is ended, with all that it has started."""
    try:
        return running.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end_job(running, PATIENCE)


def last_words(errors, status):
    """The most telling line of what a process wrote before it failed."""
    lines = [line.strip() for line in errors.splitlines() if line.strip(" -\t*")]
    telling = [line for line in lines if "Error" in line or line.startswith("error") or "Signal" in line]
    return (telling or lines or [f"it ended with status {status} and said nothing"])[-1][:300]


# The steps that are jobs


def transport(step):
    """Device arrays between processes: (status, words, figures)."""
    if step.aware and not rehearsing():
        status, words = mpi_is_aware()
        if status != PASSED:
            return status, words, None
    sizes = SIZES["rehearsal" if rehearsing() else "gpu"]
    environment = {"REFIMPL_CUDA_AWARE": "0" if rehearsing() else str(int(step.aware)), "REFIMPL_CHECK": "0"}
    found, wrong = job(step, ["-m", "refimpl.gpu.transport", sizes], environment)
    if found is None:
        return FAILED, wrong, None
    different = [what for what, equal in found["equal"].items() if not equal]
    if different:
        return FAILED, f"other bits than the host's: {', '.join(different)}", found
    row = found["rows"][-1]
    words = (f"the host's bits; {row['size_bytes'] >> 20} MiB at {row['bus_bytes_per_s'] / 1e9:.1f} GB/s a rank, "
             f"{row['share_of_limit']:.0%} of what memory allows")
    return (REHEARSED if rehearsing() else PASSED), words, found


def trainer(step):
    """train --check on processes: (status, words, figures)."""
    figures, half = [], step._replace(seconds=step.seconds / len(LAYOUTS[step.ranks]))
    for layout in LAYOUTS[step.ranks]:
        found, wrong = job(half, ["-m", "refimpl", "train", "--device", "gpu", *layout, *TRAIN])
        if found is None:
            return FAILED, f"train {' '.join(layout)}: {wrong}", figures
        figures.append({"layout": layout, "max_difference": found["max_difference"], "passed": found["passed"]})
    wrong = [" ".join(one["layout"]) for one in figures if not one["passed"]]
    worst = max(one["max_difference"]["first"]["gradients"] for one in figures)
    if wrong:
        return FAILED, f"train {', '.join(wrong)} is not the run of one device: gradients off by {worst:.1e}", figures
    words = " and ".join(" ".join(layout) for layout in LAYOUTS[step.ranks])
    return (REHEARSED if rehearsing() else PASSED), f"{words}: as one device, gradients to {worst:.1e}", figures


def rehearse(name):
    """From here on the module `name` stands in for CuPy, in this process and those that it starts."""
    os.environ[LIBRARY] = name
