"""Attention with the sequence cut over the ranks, against what the cores allow: as much work at once, all keys at hand.

    alone        each rank by itself, on 1/P of the positions: blockwise attention
    ring of 1    the same by ring attention: what it costs to be ready for a ring that is not there
    ceiling      each rank its own queries, zigzag, and the keys of all positions: the work of a ring, and no message
    ring         and the others: keys travel, or are gathered, or heads exchanged

    share of the ceiling = its time / the variant's, forward and backward together; 1 is perfect

Claimed for float32, causal, one BLAS thread each: on 2 ranks and 2 cores the ring reaches at least 80% of the ceiling;
a ring of one rank takes at most 1.15 times as long as blockwise attention.
"""

import numpy as np

from refimpl.bench.timing import check_ranks, measure, median, ratio
from refimpl.model.attention import NO_DROPOUT
from refimpl.model.blockwise import blockwise_attention, blockwise_attention_backward
from refimpl.parallel.context import core
from refimpl.parallel.context_layout import all_positions, shard, together

RANKS, SIZES = 2, None                                        # one size: the one that the claim is about
HEADS, FEATURES, BATCH, SEQUENCE = 4, 64, 1, 4096
CLAIMED, ALLOWED = 0.80, 1.15


def check(ranks, sizes=None, heads=HEADS, sequence=SEQUENCE):
    """ValueError for ranks that cannot share heads and positions, zigzag, equally."""
    works = [P for P in range(1, heads + 1) if heads % P == 0 and sequence % (2 * P) == 0]
    check_ranks(ranks, works, f"each has as many of {heads} heads, and two pieces of {sequence} positions")


def bench(comm, sizes=None, rounds=5, heads=HEADS, features=FEATURES, batch=BATCH, sequence=SEQUENCE):
    """Rows of variant, median_s, share_of_ceiling; the ring's share_of_ceiling; one_rank_ratio, ring of 1 to alone.

    `sequence` must be divisible by twice the number of ranks, `heads` by their number: ValueError, see `check`.
    """
    check(comm.size, sizes, heads, sequence)
    everybody = all_positions(sequence, comm.size)
    mine, everything = everybody[comm.rank], together(everybody)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((batch, sequence, heads, *rest, features), np.float32) for rest in ((1,), (), ()))
    own = [shard(x, everybody, comm.rank) for x in (q, k, v)]
    alone = all_positions(sequence // comm.size, 1)[0]

    def attend(pair, arrays, q_positions, kv_positions):
        forward, backward = pair
        out, saved = forward(*arrays, True, q_positions, kv_positions, NO_DROPOUT)
        backward(out, saved)

    blockwise, by_itself = (blockwise_attention, blockwise_attention_backward), comm.split(comm.rank, name="alone")
    cores = {"ring of 1": core(by_itself)} | {kind: core(comm, kind) for kind in ("ring", "gather", "ulysses")}
    variants = {
        "alone": lambda: attend(blockwise, own, alone, alone),
        "ring of 1": lambda: attend(cores["ring of 1"], own, alone, alone),
        "ceiling": lambda: attend(blockwise, (own[0], k, v), mine, everything),
    } | {kind: lambda kind=kind: attend(cores[kind], own, mine, mine) for kind in ("ring", "gather", "ulysses")}
    times = measure(comm, variants, rounds)
    rows = [{"variant": name, "median_s": median(seconds), "share_of_ceiling": ratio(times["ceiling"], seconds)}
            for name, seconds in times.items()]
    return {"rows": rows, "share_of_ceiling": ratio(times["ceiling"], times["ring"]),
            "one_rank_ratio": ratio(times["ring of 1"], times["alone"])}


def describe(result):
    """The rows as a table, and the claims."""
    lines = [f"{'attention':10} {'median':>10}  {'of ceiling':>10}"]
    for row in result["rows"]:
        share = "" if row["variant"] in ("alone", "ring of 1") else f"{row['share_of_ceiling']:.0%}"
        lines.append(f"{row['variant']:10} {row['median_s'] * 1e3:>7.1f} ms  {share:>10}".rstrip())
    return "\n".join([
        *lines,
        f"On 2 ranks the ring should reach {CLAIMED:.0%} of the ceiling.",
        f"A ring of one rank takes {result['one_rank_ratio']:.2f} times as long as blockwise attention; "
        f"at most {ALLOWED} are claimed."])
