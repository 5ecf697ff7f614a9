"""The gradients of a step under each schedule, against ranks that are never idle; and what the timeline says of it.

    busy share       time of P runs of one rank with 1/P of the batch each, at once / time of the pipeline
    predicted        1 - bubble of the schedule's timeline, backward twice as long as forward, messages free

What is missing between the two is messages, and stages that are not of equal length: the last has the head. Gradients
only: Adam goes over 1/P of the model in a stage, and over all of it in a run of one rank.
"""

from functools import partial

import numpy as np

from refimpl.arrays import synchronize
from refimpl.bench.scaling import SEQUENCE, gradients, trainer
from refimpl.bench.timing import check_ranks, measure, median, ratio
from refimpl.layout import Layout
from refimpl.model import text
from refimpl.pipeline import build, simulate

RANKS, ROUNDS = 2, 3
SIZES, FULL = "16", "4,8,16,32"                               # micro-batches
HIDDEN = 256
SCHEDULES = {"gpipe": None, "1f1b": None, "interleaved": 2, "zb_h1": None, "zbv": 2}          # and stages on a rank


def check(ranks, sizes):
    """ValueError for ranks that have no two stages each, or micro-batches that they cannot share in whole rounds."""
    check_ranks(ranks, [1, 2], "with two stages a rank 4 layers are for 1 or 2 ranks")
    for m in sizes:
        if m % ranks:
            raise ValueError(f"micro-batches={m}: expected a number divisible by {ranks} ranks; "
                             f"nearest {max(m // ranks, 1) * ranks}")


def bench(comm, sizes=(16,), rounds=ROUNDS, like=None, hidden=HIDDEN, sequence=SEQUENCE):
    """Rows of microbatches, schedule, median_s, busy_share, predicted_share.

    sizes    micro-batches, divisible by the number of ranks, which is 1 or 2: ValueError otherwise, see `check`
    """
    check(comm.size, sizes)
    return {"rows": [row for m in sizes for row in bench_size(comm, m, rounds, like, hidden, sequence)]}


def bench_size(comm, m, rounds, like, hidden, sequence):
    """The rows of one number of micro-batches."""
    P, data, alone = comm.size, text.load(None), comm.split(comm.rank, 0, name="alone")
    steps = {"busy": trainer(alone, Layout(), hidden, m // P, 1, sequence, data, like)}
    steps |= {name: trainer(comm, Layout(pp=P), hidden, m, 1, sequence, data, like, name, chunks)
              for name, chunks in SCHEDULES.items()}
    times = measure(comm, {name: partial(gradients, one) for name, one in steps.items()}, rounds,
                    settle=lambda: synchronize(np.empty(0) if like is None else like))
    return [{"microbatches": m, "schedule": name, "median_s": median(times[name]),
             "busy_share": ratio(times["busy"], times[name]), "predicted_share": predicted(name, P, m)}
            for name in SCHEDULES]


def predicted(name, P, m):
    """Share of the time that a rank is busy, says the timeline."""
    return 1 - simulate(build(name, P, m, SCHEDULES[name]), forward=1.0, input=1.0, weight=1.0).bubble_of_total


def describe(result):
    """The rows as a table."""
    lines = [f"{'micro-batches':>13}  {'schedule':12} {'gradients':>10}  {'busy':>6}  {'predicted':>9}"]
    for row in result["rows"]:
        lines.append(f"{row['microbatches']:>13}  {row['schedule']:12} {row['median_s'] * 1e3:>7.1f} ms  "
                     f"{row['busy_share']:>6.0%}  {row['predicted_share']:>9.0%}")
    return "\n".join(lines)
