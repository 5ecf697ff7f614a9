"""Interleaved 1F1B: v chunks of the model on every rank, in a loop, so that the pipeline fills v times as fast.

    rank 0 |0F0-0F1-2F0-2F1-........2B0-----....2B1-----0B0-----0B1-----|    p=2 m=2 v=2: a round goes through
    rank 1 |....1F0-1F1-3F0-3B0-----3F1-3B1-----1B0-----1B1-----........|    chunk 0, then through chunk 1

Stages 0 2 on rank 0, 1 3 on rank 1. Bubble (p-1)(F+B)/v, F and B those of all that a rank has; the price: v times the
messages, and 1 + (p-1)/(pv) times 1F1B's activations on rank 0. Warm-up 2(p-1-r) + (v-1)R chunks (at most all m v),
then one forward, one backward; backward the last chunk comes first.

Rounds of R = m // max(1, m // p) micro-batches, and R must divide m: with a shorter round at the end the ranks would
wait for each other.
(Narayanan et al. 2021, section 2.2.2, with R = p; Korthikanti et al. 2022, section 4.2.3; the rule for R is PyTorch's.)
"""

from refimpl.pipeline.action import Action
from refimpl.pipeline.schedules.family import Family


def round_size(p, m):
    """R: micro-batches that go through a chunk before the next chunk has its turn."""
    return m // max(1, m // p)


def limits(p, m, v):
    """ValueError unless rounds divide the micro-batches: it names the nearest numbers that do."""
    if m % round_size(p, m):
        works = [n for n in range(1, m + p + 1) if n % round_size(p, n) == 0]
        below, above = max(n for n in works if n < m), min(n for n in works if n > m)
        raise ValueError(f"microbatches={m} with stages={p}: an interleaved schedule needs rounds of m // (m // p) = "
                         f"{round_size(p, m)} micro-batches that divide m; {below} or {above} micro-batches work")


def forwards(rank, p, m, v, kind="F"):
    """All forward chunks of a rank in order: round by round, chunk by chunk."""
    R = round_size(p, m)
    return [Action(chunk * p + rank, kind, k) for first in range(0, m, R) for chunk in range(v)
            for k in range(first, first + R)]


def backwards(rank, p, m, v, kind="B"):
    """All backward chunks of a rank in order: the last chunk first."""
    R = round_size(p, m)
    return [Action(chunk * p + rank, kind, k) for first in range(0, m, R) for chunk in reversed(range(v))
            for k in range(first, first + R)]


def row(rank, p, m, v):
    """Warm-up, steady state, cool-down, in chunks."""
    F, B = forwards(rank, p, m, v), backwards(rank, p, m, v)
    warm_up = min(2 * (p - 1 - rank) + (v - 1) * round_size(p, m), m * v)
    steady = m * v - warm_up
    row = F[:warm_up]
    for k in range(steady):
        row += F[warm_up + k], B[k]
    return row + B[steady:]


INTERLEAVED = Family("interleaved", "v chunks a rank: 1F1B's bubble / v for v times the messages", row,
                     chunks=2, any_chunks=True, limits=limits)
