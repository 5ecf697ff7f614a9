"""A training step on P ranks, cut along one dimension, against what the cores allow: P runs of one rank, all at once.

    ceiling    every rank trains a model of its own on 1/P of the batch: as much work, in as large pieces, nothing sent
    dp         the batch is cut: one all-reduce of all gradients, beside backward
    tp         the layers: 4 all-reduces of the activations of every layer
    cp         the sequence: keys and values travel round a ring
    pp         the depth: activations from stage to stage, and (P-1)/(m+P-1) of the time idle; m = 16 micro-batches

    share of the ceiling = its time / the time of the P ranks; 1 is perfect

The pipeline has a ceiling of its own, in as small micro-batches. Claimed for 2 ranks on 2 cores, one BLAS thread each,
where compute dominates: dp 92%, tp, cp and pp 80%.
"""

import numpy as np

from refimpl.arrays import synchronize
from refimpl.bench.timing import measure, median, ratio
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


def bench(comm, sizes=(384,), rounds=ROUNDS, like=None, sequence=SEQUENCE):
    """Rows of hidden, axis, median_s, ceiling_s, share_of_ceiling.

    sizes    hidden features, divisible by 8 heads        like    an array of the library to compute with
    The number of ranks must divide 16 sequences, 8 heads and 4 layers: 1, 2 or 4.
    """
    if LAYERS % comm.size:
        raise ValueError(f"ranks={comm.size}: a step is cut along every dimension; expected 1, 2 or 4; nearest "
                         f"{4 if comm.size > 3 else 2}")
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
    times = measure(comm, {name: one.step for name, one in steps.items()}, rounds,
                    settle=lambda: synchronize(np.empty(0) if like is None else like))
    return [{"hidden": hidden, "axis": axis, "median_s": median(times[axis]), "ceiling_s": median(ceiling(axis)),
             "share_of_ceiling": ratio(ceiling(axis), times[axis])} for axis in AXES]


def trainer(comm, layout, hidden, batch, piece, sequence, data, like, schedule="1f1b", chunks=None):
    """A run of `batch` sequences a step, in float32, of which a rank has at most `piece` at once."""
    config = Config("llama", text.VOCABULARY, hidden=hidden, layers=LAYERS, heads=HEADS)
    setup = Setup(config, layout, sequence, batch, micro_batch=min(piece, batch), schedule=schedule, chunks=chunks,
                  recipe=Recipe(precision=Precision("float32")))
    return Trainer(comm, setup, data, like=like)


def describe(result):
    """The rows as a table, and the claims."""
    lines = [f"{'hidden':>6}  {'cut along':10} {'a step':>10}  {'ceiling':>10}  {'of it':>6}  {'claimed':>7}"]
    for row in result["rows"]:
        times = f"{row['median_s'] * 1e3:>7.1f} ms  {row['ceiling_s'] * 1e3:>7.1f} ms"
        lines.append(f"{row['hidden']:>6}  {row['axis']:10} {times}  {row['share_of_ceiling']:>6.0%}  "
                     f"{CLAIMED[row['axis']]:>7.0%}")
    return "\n".join([*lines, "Claimed for 2 ranks on 2 cores that do nothing else."])
