"""One step of ZeRO as it ran: who holds which bytes, moment by moment. What the partition map draws.

Rank r brings the gradient 2^r everywhere, so that a number says whose gradients are in it, as in the ring's stepper.
Parameters and gradients are float16 and the optimizer has a float32 copy, m and v: 2, 2 and 12 bytes a parameter.
Nothing is drawn from a formula: `parallel/zero.py` runs, a meter counts its arrays, a ledger its messages.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from refimpl.measure.ledger import Ledger
from refimpl.measure.meter import Meter
from refimpl.model.adam import Adam
from refimpl.parallel.zero import Zero
from refimpl.precision import Precision
from refimpl.world import run

UNITS, SIZE = 3, 840                                                 # layers, and elements of each: 1 to 6 divide them
MOST = 6                                                             # ranks
EMPTY, OWN, SUM, LEFT, COMING, HERE = "empty", "own", "sum", "left", "coming", "here"       # of a shard of a unit


class Holding(NamedTuple):
    """What one rank holds at one moment: for each unit a list of a state for each shard, None where it holds nothing.

    parameters, gradients    what it keeps          gathered, summing    whole units, for the moment
    nbytes                   {"parameters", "gradients", "optimizer"}: counted, all units
    """

    parameters: list
    gathered: list
    gradients: list
    summing: list
    optimizer: list
    nbytes: dict


class Moment(NamedTuple):
    """words, for the title; ranks: a `Holding` of each."""

    words: str
    ranks: list


class Step(NamedTuple):
    """moments, in their order; peak: most bytes a rank held; sent: bytes of rank 0, {"zero gather", "zero reduce"}."""

    moments: list
    peak: int
    sent: dict


@lru_cache(maxsize=128)
def run_step(stage, N, micro_batches=1):
    """One step of `stage` 0 to 3 on N ranks, as it ran: a `Step`."""
    log = Ledger()
    by_rank = run(one_step, N, stage, micro_batches, ledger=log)
    moments = [Moment(words, [holding for _, holding in same]) for same in zip(*(found for found, _ in by_rank))
               for words in [same[0][0]]]
    sent = {phase: log.bytes_sent(rank=0, phase=phase) for phase in ("zero gather", "zero reduce")}
    return Step(moments, by_rank[0][1], sent)


def one_step(comm, stage, micro_batches):
    """The program of a rank: [(words, Holding) of each moment], and its peak."""
    parameters = {f"layer {u}": np.ones(SIZE, np.float32) for u in range(UNITS)}
    zero = Zero(parameters, {name: [name] for name in parameters}, comm, stage, Adam(), Precision("float16"))
    meter, found, keys = Meter(**zero.resident), [], list(parameters)

    def moment(words):
        found.append((words, holding(zero, comm, meter.sample())))

    moment("before the step")
    for k in range(micro_batches):
        which = f", micro-batch {k + 1}" if micro_batches > 1 else ""
        for key, following in zip(keys, [*keys[1:], None]):
            use(zero, key, following)
            moment(f"forward of {key}{which}")
            zero.release(key)
        for key, following in zip(reversed(keys), [*reversed(keys[:-1]), None]):
            use(zero, key, following)
            gradient = np.full(SIZE, 2.0**comm.rank, np.float32)
            zero.reduce(key, {key: gradient}, last=k == micro_batches - 1)
            moment(f"backward of {key}{which}")
            zero.release(key)
    zero.finish()
    moment("all gradients are summed")
    zero.step()
    moment("Adam has stepped")
    for key in keys:
        zero.held.settle(key)
    moment("ready for the next step")
    return found, meter.total_peak


def use(zero, key, following):
    """A unit's parameters are there, the next one's on their way."""
    zero.parameters(key)
    if following is not None:
        zero.prefetch(following)


def holding(zero, comm, nbytes):
    """What this rank holds now."""
    N, stage, flying = comm.size, zero.stage, [key for key, _, _ in zero.gradients.flying]
    all_of_it = [HERE] * N
    parts = Holding([], [], [], [], [], nbytes)
    for key in zero.units:
        coming, whole, shard = key in zero.held.coming, key in zero.held.whole, only(comm.rank, HERE, N)
        parts.parameters.append(shard if stage == 3 else only(comm.rank, HERE, N, COMING) if coming else all_of_it)
        parts.gathered.append([COMING if coming else HERE] * N if stage == 3 and whole else [None] * N)
        waiting = key in flying
        parts.summing.append([COMING] * N if waiting and stage >= 2 else [None] * N)
        started = zero.gradients.given[key]
        if stage >= 2:
            parts.gradients.append(only(comm.rank, state(zero.gradients.shards[key], started, N), N))
        else:
            flat = zero.gradients.whole[key].reshape(N, -1)
            parts.gradients.append([COMING if waiting else state(part, started, N) for part in flat])
        parts.optimizer.append(shard if stage else all_of_it)
    return parts


def only(rank, mine, N, others=None):
    """A list of N states: `mine` for this rank's shard, `others` for the rest."""
    return [mine if k == rank else others for k in range(N)]


def state(numbers, started, N):
    """What the numbers of a shard of gradients are: nothing, everybody's sum, this rank's own, or left from before."""
    number = float(numbers[0])
    if number == 0:
        return EMPTY
    return SUM if number % (2**N - 1) == 0 else LEFT if started else OWN
