"""The gradients of a step on P ranks, cut along one dimension, against what the cores allow: P runs of one, at once.

    ceiling    every rank has a model of its own and 1/P of the batch: as much work, in as large pieces, nothing sent
    dp         the batch is cut: one all-reduce of all gradients, beside backward
    tp         the layers: 4 all-reduces of the activations of every layer
    cp         the sequence: keys and values travel round a ring
    pp         the depth: activations from stage to stage, and (P-1)/(m+P-1) of the time idle; m = 16 micro-batches

    share of the ceiling = its time / the time of the P ranks; 1 is perfect

Gradients only, summed over replicas: forward and backward are shared out alike by every cut, and by the ceiling. Norm
and Adam are not: they go over all parameters of a rank, which are the whole model in the ceiling and in dp and cp, but
1/P of it in tp and pp.

The pipeline has a ceiling of its own, in as small micro-batches. Claimed for 2 ranks on 2 cores, one BLAS thread each,
where compute dominates: dp 92%, tp, cp and pp 80%.
"""

from functools import partial

import numpy as np

from refimpl.arrays import synchronize
from refimpl.bench.timing import check_ranks, measure, median, ratio
from refimpl.layout import Layout
from refimpl.model import text
from refimpl.model.config import Config
from refimpl.precision import Precision
from refimpl.train.setup import Setup
from refimpl.train.single import Recipe
from refimpl.train.trainer import Trainer

RANKS, ROUNDS = 2, 3
SIZES, FULL = "384", "256,384,768"                            # hidden features
AXES = ("dp", "tp", "cp", "pp")
LAYERS, HEADS, SEQUENCE, BATCH = 4, 8, 128, 16
CLAIMED = {"dp": 0.92, "tp": 0.80, "cp": 0.80, "pp": 0.80}


def check(ranks, sizes):
    """ValueError for ranks that cannot share a step along every dimension, or hidden features that make no heads."""
    check_ranks(ranks, [P for P in range(1, LAYERS + 1) if LAYERS % P == 0], "a step is cut along every dimension")
    for hidden in sizes:
        if hidden % (2 * HEADS):                             # rotary positions turn pairs of features
            raise ValueError(f"hidden={hidden}: {HEADS} heads have an even number of features each; expected a "
                             f"multiple of {2 * HEADS}; nearest {max(round(hidden / (2 * HEADS)), 1) * 2 * HEADS}")


def bench(comm, sizes=(384,), rounds=ROUNDS, like=None, sequence=SEQUENCE):
    """Rows of hidden, axis, median_s, ceiling_s, share_of_ceiling.

    sizes    hidden features, divisible by 16             like    an array of the library to compute with
    The number of ranks must divide 16 sequences, 8 heads and 4 layers: 1, 2 or 4. ValueError otherwise, see `check`.
    """
    check(comm.size, sizes)
    return {"rows": [row for hidden in sizes for row in bench_size(comm, hidden, rounds, like, sequence)]}


def bench_size(comm, hidden, rounds, like, sequence):
    """The rows of one width."""
    P, data, alone = comm.size, text.load(None), comm.split(comm.rank, 0, name="alone")
    pieces = {axis: 1 if axis == "pp" else BATCH for axis in AXES}
    steps = {f"ceiling of {axis}": trainer(alone, Layout(), hidden, BATCH // P, pieces[axis], sequence, data, like)
             for axis in ("dp", "pp")}
    steps |= {axis: trainer(comm, Layout(**{axis: P}), hidden, BATCH, pieces[axis], sequence, data, like)
              for axis in AXES}
    ceiling = lambda axis: times[f"ceiling of {'pp' if axis == 'pp' else 'dp'}"]
    times = measure(comm, {name: partial(gradients, one) for name, one in steps.items()}, rounds,
                    settle=lambda: synchronize(np.empty(0) if like is None else like))
    return [{"hidden": hidden, "axis": axis, "median_s": median(times[axis]), "ceiling_s": median(ceiling(axis)),
             "share_of_ceiling": ratio(ceiling(axis), times[axis])} for axis in AXES]


def trainer(comm, layout, hidden, batch, piece, sequence, data, like, schedule="1f1b", chunks=None):
    """A run of `batch` sequences a step, in float32, of which a rank has at most `piece` at once."""
    config = Config("llama", text.VOCABULARY, hidden=hidden, layers=LAYERS, heads=HEADS)
    setup = Setup(config, layout, sequence, batch, micro_batch=min(piece, batch), schedule=schedule, chunks=chunks,
                  recipe=Recipe(precision=Precision("float32")))
    return Trainer(comm, setup, data, like=like)


def gradients(trainer):
    """What is measured: forward and backward of a batch, with all sums; they are forgotten, and nothing changes."""
    trainer.gradients()
    for zero in trainer.zeros:
        zero.skip()


def describe(result):
    """The rows as a table, and the claims."""
    lines = [f"{'hidden':>6}  {'cut along':10} {'gradients':>10}  {'ceiling':>10}  {'of it':>6}  {'claimed':>7}"]
    for row in result["rows"]:
        times = f"{row['median_s'] * 1e3:>7.1f} ms  {row['ceiling_s'] * 1e3:>7.1f} ms"
        lines.append(f"{row['hidden']:>6}  {row['axis']:10} {times}  {row['share_of_ceiling']:>6.0%}  "
                     f"{CLAIMED[row['axis']]:>7.0%}")
    return "\n".join([*lines, "Claimed for 2 ranks on 2 cores that do nothing else."])
