"""What a question's `check` may call on data parallelism and ZeRO: as in evidence.py, experiments that compute its key.

    loss_over_ranks([3, 1], [2.0, 4.0])     one loss of ranks with different numbers of tokens
    bucketed(4, 20, 1, 12)                  a step with its gradients in buckets     the virtual clock runs
    zero_holds(2, 8), zero_sends(3, 4, 2)   model states, and what a step sends      a meter and a ledger count
    zero_forward(6, 2, 3)                   units that are gathered ahead            the virtual clock runs
"""

from functools import cache

import numpy as np

from refimpl import Ledger, Link, Network, run
from refimpl.collectives import all_reduce
from refimpl.measure.meter import Meter
from refimpl.model.adam import Adam
from refimpl.parallel.data import GradientBuckets, plan
from refimpl.parallel.units import Unit
from refimpl.parallel.zero import Zero
from refimpl.precision import Precision

ITEM, P = 8, 2                                           # bytes of a float64; ranks where a question does not say


# -- data parallelism -------------------------------------------------------------------------------------------------

def buckets_of(K, n, comm):
    """(parameters, GradientBuckets): K equal buckets of one parameter of n elements each."""
    parameters = {str(k): np.zeros(n) for k in range(K)}
    return parameters, GradientBuckets(parameters, plan(dict.fromkeys(parameters, n), n), comm)


def replicas_send(P, k=1, n=64):
    """What rank 0 of P sends in a step of k micro-batches, in units of the model."""
    def program(comm):
        parameters, step = buckets_of(1, n, comm)
        with step.no_sync():
            for _ in range(k - 1):
                step.ready("0", parameters["0"])
        step.ready("0", parameters["0"])
        step.finish()

    log = Ledger()
    run(program, P, ledger=log)
    return log.bytes_sent(rank=0) / ITEM / n


def loss_over_ranks(tokens, means):
    """The loss of a batch of which each rank has so many tokens, with this mean: sums and counts are summed."""
    def program(comm):
        count, total = tokens[comm.rank], tokens[comm.rank] * means[comm.rank]
        return float(all_reduce(total, comm) / all_reduce(count, comm))

    return run(program, len(tokens))[0]


@cache
def bucketed(K, T, A, B):
    """Time of a step with K equal buckets: backward T, latencies A for each bucket, bytes B in all."""
    n = 12
    link = Link(A / (2 * (P - 1)), B * P / (2 * (P - 1)) / (K * n * ITEM))

    def program(comm):
        parameters, step = buckets_of(K, n, comm)
        for name in reversed(parameters):
            comm.elapse(T / K)
            step.ready(name, parameters[name])
        step.finish()
        return comm.clock

    return max(run(program, P, network=Network(link)))


def best_buckets(T, A, B, most=16):
    """The number of buckets, of 1 to `most`, with which the step takes least."""
    return min(range(1, most + 1), key=lambda K: bucketed(K, T, A, B))


# -- ZeRO -------------------------------------------------------------------------------------------------------------

def zero_of(comm, stage, sizes, dtype="float16", grad_dtype=None, replicate=None):
    """A `Zero` of zeros, a unit of each size."""
    parameters = {f"w{k}": np.zeros(n, np.float32) for k, n in enumerate(sizes)}
    precision = Precision(dtype, grad_dtype)
    return Zero(parameters, [[name] for name in parameters], comm, stage, Adam(), precision, replicate)


def zero_holds(stage, N, grad_dtype=None):
    """Bytes a parameter that a rank holds at rest: float16 parameters, Adam with a float32 copy."""
    def program(comm):
        return sum(Meter(**zero_of(comm, stage, [4 * N], grad_dtype=grad_dtype).resident).sample().values())

    return run(program, N)[0] / (4 * N)


def zero_step(zero, k):
    """A step of k micro-batches; each unit is gathered for forward and again for backward."""
    keys = list(zero.units)
    for micro_batch in range(k):
        for key in keys:
            zero.parameters(key)
            zero.release(key)
        for key in reversed(keys):
            zero.parameters(key)
            zero.reduce(key, {}, last=micro_batch == k - 1)
            zero.release(key)
    zero.step()
    for key in keys:
        zero.held.settle(key)


def zero_sends(stage, N, k=1):
    """Elements that rank 0 of N sends in a step of k micro-batches, in units of psi (N-1)/N."""
    log = Ledger()
    run(lambda comm: zero_step(zero_of(comm, stage, [8 * N, 4 * N]), k), N, ledger=log)
    return log.bytes_sent(rank=0) / 2 / (12 * N) / ((N - 1) / N)


def zero_forward(units, gather, compute):
    """Time of a forward of stage 3 that gathers the next unit while one computes."""
    n = 4 * P
    network = Network(Link(0.0, gather * P / (P - 1) / (n * 2)))

    def program(comm):
        zero = zero_of(comm, 3, [n] * units)
        for key in zero.units:
            zero.parameters(key)
            if key + 1 in zero.units:
                zero.prefetch(key + 1)
            comm.elapse(compute)
            zero.release(key)
        return comm.clock

    return max(run(program, P, network=network))


def between_nodes(nodes, N):
    """Elements that a rank sends to other nodes in a step of hybrid sharding, as a share of the model."""
    log, n = Ledger(), 8 * nodes * N

    def program(comm):
        node, across = comm.split(comm.rank // N, name="node"), comm.split(comm.rank % N, name="across")
        zero_step(zero_of(node, 3, [n], replicate=across), 1)

    run(program, nodes * N, ledger=log)
    return log.bytes_sent(rank=0, group="across") / 2 / n


def real_elements(n, N, rank):
    """Elements of a unit of n that are no padding, in the shard of `rank` of N."""
    return sum(piece.stop - piece.start for piece in Unit({"w": (n,)}, N).pieces(rank))


def norm_over_ranks(shards, replicated):
    """The norm of one gradient of which each rank has a number, and another that all have."""
    def program(comm):
        mine = shards[comm.rank]**2 + replicated**2 * (comm.rank == 0)
        return float(np.sqrt(all_reduce(mine, comm)))

    return run(program, len(shards))[0]


REPLICAS = {f.__name__: f for f in (
    replicas_send, loss_over_ranks, bucketed, best_buckets, zero_holds, zero_sends, zero_forward, between_nodes,
    real_elements, norm_over_ranks)}
