"""The trainer's speed, against what the machine allows, in one go: two ranks of MPI, four of one process, one alone.

    ceiling    two runs of one rank at once, which know nothing of each other: all that the cores can do
    dp 2       one run on two ranks, with as much work each; what it has less is the price of summing gradients
    mpi 4      four ranks, dp 2 tp 2, under MPI             local 4    the same four in one process, taking turns
    trainer    one rank, everything in place for many       plain      train/single.py: the loop of one device

Tokens a second, as `train` counts them, without the first step. Each variant runs once a round, and is compared with
its partner of the same round. float32, one BLAS thread a rank.

Claimed, on two cores: dp 2 reaches 90% of the ceiling; the local world takes at most 2.5 times as long as MPI; the
trainer at most 1.15 times as long as the plain loop.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

from refimpl.bench.timing import median, ratio
from refimpl.layout import Layout
from refimpl.model import text
from refimpl.model.adam import Adam
from refimpl.model.config import Config
from refimpl.precision import Precision
from refimpl.train import single
from refimpl.train.setup import Setup
from refimpl.train.single import Recipe
from refimpl.train.trainer import Trainer, first_parameters
from refimpl.world.local import run_local
from refimpl.world.mpirun import end_job, start_job

SIZES, ROUNDS = None, 3                                       # one model: the one that the claims are about
LAYERS, HIDDEN, SEQUENCE, BATCH, STEPS = 4, 128, 64, 16, 10   # BATCH: sequences of one rank
CLAIMED, ALLOWED_LOCAL, ALLOWED_ALONE = 0.90, 2.5, 1.15


def bench(sizes=None, rounds=ROUNDS):
    """Median tokens/s of each variant, and the three ratios: share_of_ceiling, local_to_mpi, trainer_to_plain."""
    speeds = {"ceiling": [], "dp 2": [], "mpi 4": [], "local 4": []}
    for _ in range(rounds):
        speeds["ceiling"].append(sum(at_once(2, BATCH)))
        speeds["dp 2"].append(in_a_job(2, 2 * BATCH, "--dp", "2"))
        speeds["mpi 4"].append(in_a_job(4, 2 * BATCH, "--dp", "2", "--tp", "2"))
        speeds["local 4"] += at_once(1, 2 * BATCH, "--dp", "2", "--tp", "2")
    plain, trainer = step_seconds(rounds)
    tokens = BATCH * SEQUENCE
    speeds |= {"plain": [tokens / t for t in plain], "trainer": [tokens / t for t in trainer]}
    return {"rows": [{"variant": name, "tokens_per_second": median(found)} for name, found in speeds.items()],
            "share_of_ceiling": ratio(speeds["dp 2"], speeds["ceiling"]),
            "local_to_mpi": ratio(speeds["mpi 4"], speeds["local 4"]),
            "trainer_to_plain": ratio(trainer, plain)}


def options(batch, *how):
    """The words of `train` for a global batch of so many sequences."""
    sizes = {"layers": LAYERS, "hidden": HIDDEN, "seq": SEQUENCE, "global-batch": batch, "steps": STEPS}
    return ["-m", "refimpl", "train", "--json", "--dtype", "float32", *how,
            *(word for name, size in sizes.items() for word in (f"--{name}", str(size)))]


def at_once(number, batch, *how):
    """Tokens/s of each of so many runs at the same time, each in a process of its own. ValueError where one fails."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1"}
    with ExitStack() as running:                              # one fails, or Ctrl-C: then the others end, too
        processes = []
        for _ in range(number):
            processes.append(subprocess.Popen([sys.executable, *options(batch, *how)], stdout=subprocess.PIPE,
                                              stderr=subprocess.PIPE, text=True, env=environment))
            running.callback(end_job, processes[-1])
        return spoken(processes)


def in_a_job(ranks, batch, *how):
    """Tokens/s of one run under MPI."""
    job = start_job(ranks, options(batch, *how), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        return spoken([job])[0]
    finally:
        end_job(job)


def spoken(processes):
    """What each process says its tokens/s were."""
    found = []
    for process in processes:
        output, errors = process.communicate()
        if process.returncode != 0:
            raise ValueError(errors.strip().removeprefix("error: "))
        found.append(json.loads(output)["tokens_per_second"])
    return found


def step_seconds(rounds, batch=BATCH):
    """Seconds of a step on one rank: (of the plain loop each round, of the trainer); the same batch over and over."""
    config = Config("gpt2", text.VOCABULARY, HIDDEN, LAYERS, heads=8, context=SEQUENCE, dropout=0.1)
    setup = Setup(config, Layout(), SEQUENCE, batch, recipe=Recipe(Adam(), Precision("float32"), clip=1.0))
    data = text.load()
    recipe = replace(setup.recipe, micro_batches=setup.microbatches)
    state, plain, trainer = single.fresh(first_parameters(setup), recipe), [], []

    def program(comm):
        mine = Trainer(comm, setup, data)
        for _ in range(rounds + 1):
            began = time.perf_counter()
            single.train(state, [setup.batch(data, 0)], config, recipe)
            middle = time.perf_counter()
            mine.step()
            plain.append(middle - began)
            trainer.append(time.perf_counter() - middle)

    run_local(program, 1)
    return plain[1:], trainer[1:]


def describe(result):
    """The rows as a table, and the claims."""
    lines = [f"{'training':10} {'tokens/s':>10}"]
    lines += [f"{row['variant']:10} {row['tokens_per_second']:>10,.0f}" for row in result["rows"]]
    return "\n".join([
        *lines,
        f"Two data-parallel ranks: {result['share_of_ceiling']:.0%} of the ceiling; {CLAIMED:.0%} are claimed.",
        f"Four ranks in one process take {result['local_to_mpi']:.2f} times as long as under MPI; "
        f"at most {ALLOWED_LOCAL} are claimed.",
        f"The trainer on one rank takes {result['trainer_to_plain']:.2f} times as long as a plain loop; "
        f"at most {ALLOWED_ALONE} are claimed."])
