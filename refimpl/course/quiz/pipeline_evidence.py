"""What a question's `check` may call on pipelines: as in evidence.py, small experiments that compute its key again.

    simulate(build('1f1b', 4, 8)).makespan     lists of actions are timed
    runs('0F0 0B0', '1F0 1B0')                 a list of actions is checked
    handed_on(16, 8)                           two stages run, and a ledger counts
"""

import numpy as np

from refimpl import Ledger, run
from refimpl.model import mlp
from refimpl.pipeline import Layers, build, execute, simulate


def microbatches_for(p, share):
    """The fewest micro-batches with which 1F1B's bubble on p ranks is this share of the ideal time, or less."""
    enough = lambda m: simulate(build("1f1b", p, m)).bubble_of_ideal <= share + 1e-12
    low, high = 0, 1
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def runs(*rows):
    """Whether these lists, one for each rank, are a schedule of one micro-batch, or of two, that can run."""
    try:
        build("custom", len(rows), 2 if "F1" in rows[0] else 1, ranks=rows)
    except ValueError:
        return False
    return True


def handed_on(tokens, features):
    """Numbers that the first of two stages, each an MLP, sends to the second for one micro-batch."""
    rng, log = np.random.default_rng(0), Ledger()
    x, stage = rng.normal(size=(tokens, features)), Layers([("mlp", mlp, mlp.init(rng, features, 4 * features))])

    def program(comm):
        execute(build("1f1b", 2, 1), comm, {0: stage, 1: stage}, [x], lambda y, k: (y.sum(), np.ones_like(y)))

    run(program, 2, ledger=log)
    return log.bytes_sent(rank=0) / x.itemsize


PIPELINES = {f.__name__: f for f in (build, simulate, microbatches_for, runs, handed_on)}
