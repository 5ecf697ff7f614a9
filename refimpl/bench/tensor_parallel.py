"""One transformer layer, cut over the ranks, against what the cores allow: as many smaller layers at once, all alone.

    ceiling      every rank computes a layer with 1/P of the heads and hidden features, and sends nothing
    plain        the tensor-parallel layer: the same products, and 4 all-reduces of tokens x h
    sequence     sequence-parallel: norms and sums of 1/P of the tokens; 6 all-gathers and 4 reduce-scatters

    share of the ceiling = its time / the tensor-parallel layer's, forward and backward together; 1 is perfect

At least 80% is claimed for 2 ranks on 2 cores, one BLAS thread each, with h = 1024 and 2048 tokens in float32.
"""

import numpy as np

from refimpl.bench.timing import check_ranks, measure, median, ratio
from refimpl.model import block as single
from refimpl.model.config import Config
from refimpl.parallel import block, shards

RANKS, SIZES = 2, None                                        # one size: the one that the claim is about
HIDDEN, HEADS, BATCH, SEQUENCE = 1024, 16, 2, 1024
CLAIMED = 0.80


def check(ranks, sizes=None, heads=HEADS, sequence=SEQUENCE):
    """ValueError for ranks that cannot share heads and positions equally."""
    works = [P for P in range(1, heads + 1) if heads % P == 0 and sequence % P == 0]
    check_ranks(ranks, works, f"each has as many of {heads} heads, and of {sequence} positions")


def bench(comm, sizes=None, rounds=5, hidden=HIDDEN, heads=HEADS, batch=BATCH, sequence=SEQUENCE):
    """Rows of variant, median_s, share_of_ceiling; and share_of_ceiling of the plain one.

    Raises ValueError unless `heads` and `sequence` are divisible by the number of ranks.
    """
    check(comm.size, sizes, heads, sequence)
    config = Config("gpt2", vocabulary=1, hidden=hidden, layers=1, heads=heads)
    rng = np.random.default_rng(comm.rank)
    parameters = {name: 0.02 * rng.standard_normal(shape, np.float32)
                  for name, shape in shards.block_shapes(config, comm.rank, comm.size).items()}
    x = rng.standard_normal((batch, sequence, hidden), np.float32)
    mine = x[:, :sequence // comm.size].copy()

    def alone():
        y, saved = single.forward(x, parameters, config)          # takes any number of heads and hidden features
        single.backward(y, saved)

    def cut(x, sequence_parallel):
        y, saved = block.forward(x, parameters, config, comm, sequence_parallel=sequence_parallel)
        block.backward(y, saved)

    variants = {"ceiling": alone, "plain": lambda: cut(x, False), "sequence": lambda: cut(mine, True)}
    times = measure(comm, variants, rounds)
    rows = [{"variant": name, "median_s": median(seconds), "share_of_ceiling": ratio(times["ceiling"], seconds)}
            for name, seconds in times.items()]
    return {"rows": rows, "share_of_ceiling": rows[1]["share_of_ceiling"]}


def describe(result):
    """The rows as a table, and the claim."""
    lines = [f"{'layer':10} {'median':>10}  {'of ceiling':>10}"]
    for row in result["rows"]:
        lines.append(f"{row['variant']:10} {row['median_s'] * 1e3:>7.1f} ms  {row['share_of_ceiling']:>10.0%}")
    lines.append(f"On 2 ranks the tensor-parallel layer should reach {CLAIMED:.0%} of the ceiling.")
    return "\n".join(lines)
