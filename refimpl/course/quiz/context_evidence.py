"""What a question's `check` may call on context parallelism: as in evidence.py, small experiments that compute its key.

    attention_sent('ring', 4).forward     attention runs on ranks, and a ledger counts
    ring_efficiency('contiguous', 8, 512) a virtual clock runs
    kept_on_a_rank(64, 4)                 what attention keeps until backward is weighed
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from refimpl import Ledger, Link, Network, run
from refimpl.model.attention import NO_DROPOUT
from refimpl.model.blockwise import merge
from refimpl.model.loss import IGNORED
from refimpl.parallel import ulysses
from refimpl.parallel.context import core
from refimpl.parallel.context_layout import all_positions, next_tokens, shard

ITEM = 8


@dataclass(frozen=True)
class SentByAttention:
    """Elements that rank 0 sends."""

    forward: float
    backward: float


def program_of(kind, layout, s, heads, kv_heads, d, causal=True, backward=True):
    """A program that runs attention over s positions; it returns what it keeps."""
    def program(comm):
        mine = all_positions(s, comm.size, layout)[comm.rank]
        forward, back = core(comm, kind, layout)
        q, kv = np.ones((1, len(mine), kv_heads, heads // kv_heads, d)), np.ones((1, len(mine), kv_heads, d))
        with comm.phase("forward"):
            out, saved = forward(q, kv, kv.copy(), causal, mine, mine, NO_DROPOUT)
        if backward:
            with comm.phase("backward"):
                back(out, saved)
        return saved

    return program


def attention_sent(kind, P, s=64, heads=8, kv_heads=8, d=2):
    """What rank 0 of P sends for one layer's attention, forward and backward."""
    log = Ledger()
    run(program_of(kind, "zigzag", s, heads, kv_heads, d), P, ledger=log)
    return SentByAttention(*(log.bytes_sent(rank=0, phase=phase) / ITEM for phase in ("forward", "backward")))


def kept_on_a_rank(s, P):
    """Bytes that rank 0 keeps of a ring's attention."""
    saved = run(program_of("ring", "zigzag", s, 2, 2, 4, backward=False), P)[0]
    return sum(x.nbytes for x in (saved.q, saved.k, saved.v, saved.out, saved.lse))


def pairs_of(layout, P, s=64):
    """Pairs of a query and a key that each rank computes, causal: from the FLOPs that the ring declares."""
    log = Ledger()
    run(program_of("ring", layout, s, 1, 1, 1, backward=False), P, ledger=log)
    return [log.flops(rank=rank) / 4 for rank in range(P)]


@lru_cache
def ring_efficiency(layout, P, s):
    """Share of the time that the ranks of a causal ring work, on average, on links that take no time."""
    log = Ledger()

    def program(comm):
        program_of("ring", layout, s, 1, 1, 1, backward=False)(comm)
        return comm.clock

    clocks = run(program, P, ledger=log, network=Network(Link(0.0, 0.0), flops=1.0))
    return log.flops() / (P * max(clocks))


@lru_cache
def hiding_positions(flops, bandwidth):
    """The fewest positions of a rank with which two ranks hide the transfer: bfloat16, every key seen, no latency."""
    def hidden(c):
        network = Network(Link(0.0, 2 / ITEM / bandwidth), flops=flops)                # 2 bytes of 8 that travel here

        def program(comm):
            program_of("ring", "contiguous", 2 * c, 1, 1, 1, causal=False, backward=False)(comm)
            return comm.clock

        return max(run(program, 2, network=network)) <= 2 * 4 * c * c / flops * (1 + 1e-9)

    low, high = 0, 1
    while not hidden(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if hidden(middle) else (middle, high)
    return high


@lru_cache
def ring_clock(P, compute, transfer):
    """Seconds of a balanced ring's forward whose steps compute, and whose blocks travel, for so long."""
    c, d = 8, 1
    network = Network(Link(0.0, transfer / (2 * c * d * ITEM)), flops=4 * c * c * d / compute)

    def program(comm):
        program_of("ring", "contiguous", c * P, 1, 1, d, causal=False, backward=False)(comm)
        return comm.clock

    return max(run(program, P, network=network))


def merged(sum1, out1, sum2, out2):
    """The output of two blocks: each one's sum of exponentials, and its own output."""
    out, _ = merge(*(np.array(x, float) for x in ([[out1]], [np.log(sum1)], [[out2]], [np.log(sum2)])))
    return float(out[0, 0])


def owner_of_chunk(chunk, P):
    """The rank that has this one of 2 P chunks in zigzag."""
    return next(rank for rank, mine in enumerate(all_positions(2 * P, P, "zigzag")) if chunk in mine)


def targets_lost(P):
    """Targets that are missing if each rank of P shifts its own contiguous piece."""
    tokens, everybody = np.arange(8 * P)[None], all_positions(8 * P, P, "contiguous")
    count = lambda targets: int((targets != IGNORED).sum())
    return count(next_tokens(tokens)) - sum(count(next_tokens(shard(tokens, everybody, rank))) for rank in range(P))


def mean_of_means(loss, P):
    """What P ranks make of a sequence with one counting token, of this loss, if each divides by its own count."""
    losses = np.zeros((1, 4 * P))
    losses[0, 1] = loss
    parts = [shard(losses, all_positions(4 * P, P), rank) for rank in range(P)]
    return float(np.mean([part.sum() / max(np.count_nonzero(part), 1) for part in parts]))


def most_without_copies(heads, kv_heads):
    """The most ranks of Ulysses at which no key-value head is on two of them."""
    q, kv = np.ones((1, 1, kv_heads, heads // kv_heads, 1)), np.ones((1, 1, kv_heads, 1))
    fits = lambda P: ulysses.columns(q, kv, kv, 0, P).shape[2] * P == kv_heads
    dealt_out = lambda P: heads % P == 0 and (kv_heads % P == 0 or P % kv_heads == 0)
    return max(P for P in range(1, heads + 1) if dealt_out(P) and fits(P))


CONTEXT = {f.__name__: f for f in (
    attention_sent, kept_on_a_rank, pairs_of, ring_efficiency, hiding_positions, ring_clock, merged, owner_of_chunk,
    targets_lost, mean_of_means, most_without_copies)}
