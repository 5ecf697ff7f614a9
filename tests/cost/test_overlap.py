"""The formulas of overlap against the virtual clock of the buckets as they run: equal to rounding, minimum and all."""

from functools import partial

import numpy as np
import pytest
from dp_models import CAPS, GPT2, LLAMA, batch_of, micro_batches_of, sizes_of
from pytest import approx

from refimpl import Ledger, Link, Network, run
from refimpl.collectives import all_reduce
from refimpl.cost import alpha_beta, overlap
from refimpl.parallel import data
from refimpl.parallel.data import GradientBuckets, plan

ALPHA, BETA = 3e-6, 1e-9
NETWORK = Network(Link(ALPHA, BETA), flops=1e9)
EXACT = 1e-12                                            # sums of seconds in another order
EACH = 27720                                             # divides by 1..12, times 12 by every P here


def equal(seconds):
    return approx(seconds, rel=EXACT)


def counted_step(T, K, P, n=12 * EACH, network=NETWORK):
    """Seconds until all K equal buckets of n float32 are summed, backward taking T."""
    like = {str(k): np.zeros(n // K, np.float32) for k in range(K)}

    def program(comm):
        step = GradientBuckets(like, plan(sizes_of(like), n // K), comm)
        for name in reversed(like):
            comm.elapse(T / K, "backward")
            step.ready(name, like[name])
        step.finish()
        return comm.clock

    return max(run(program, P, network=network))


@pytest.mark.parametrize("P", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("T", [0.0, 2e-4, 2e-3, 2e-2])
@pytest.mark.parametrize("K", [1, 2, 5, 12])
def test_a_step_takes_what_the_formula_says(P, T, K):
    assert counted_step(T, K, P) == equal(overlap.bucketed_step(T, 4 * 12 * EACH, K, P, ALPHA, BETA))


@pytest.mark.parametrize(("T", "alpha", "best"), [       # B = 2.0 ms, A = 6 alpha; by hand:
    (2e-2, 1e-3, 3), (1.2e-2, 2e-4, 8),                  # computing decides: (T - B)/A = 3.0 and 8.3
    (1.5e-3, 1e-5, 5), (1e-3, 2e-5, 3),                  # the network decides: sqrt(T/A) = 5.0 and 2.9
    (1e-6, 1e-3, 1),                                     # nothing to hide behind
])
def test_the_curve_has_its_minimum_where_the_formula_puts_it(T, alpha, best):
    P, G, network = 4, 4 * 12 * EACH, Network(Link(alpha, BETA))
    counted = {K: counted_step(T, K, P, network=network) for K in range(1, 13)}
    assert min(counted, key=counted.get) == best
    stated = overlap.best_buckets(T, G, P, alpha, BETA)
    assert best in (int(stated), int(stated) + 1)
    assert all(counted[K] > counted[K + 1] for K in range(1, best)) and counted[best] < counted[best + 1]


def step_of(T, alpha, beta, K):
    """Of 4 MB on 8 ranks."""
    return overlap.bucketed_step(T, 4e6, K, 8, alpha, beta)


def test_to_both_sides_of_the_best_number_time_grows():
    rng = np.random.default_rng(0)
    for T, alpha, beta in 10.0 ** rng.uniform([-5, -7, -11], [0, -3, -8], (200, 3)):
        time = partial(step_of, T, alpha, beta)
        best = overlap.best_buckets(T, 4e6, 8, alpha, beta)
        for K in best * np.array([1.001, 1.1, 2.0, 10.0]):
            assert time(K) >= time(best) * (1 - EXACT)
        for K in np.maximum(1, best / np.array([1.001, 1.1, 2.0, 10.0])):
            assert time(K) >= time(best) * (1 - EXACT)
    assert overlap.best_buckets(1.0, 4e6, 8, 0.0, 1e-9) == np.inf
    assert overlap.best_buckets(1.0, 4e6, 1, 1e-6, 1e-9) == np.inf             # one rank sends nothing


def test_what_is_hidden_and_what_is_not_make_up_all_communication():
    T, G, P = 2e-3, 4 * 12 * EACH, 4
    alone = overlap.bucketed_step(0.0, G, 5, P, ALPHA, BETA)
    assert overlap.hidden(T, G, 5, P, ALPHA, BETA) + counted_step(T, 5, P) - T == equal(alone)
    assert overlap.hidden(T, G, 1, P, ALPHA, BETA) == approx(0.0, abs=1e-15)   # one bucket: nothing is left to hide it


@pytest.mark.parametrize("P", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("n", [0, 1, 2, 5, 101, 1000])
def test_a_ring_of_any_length_from_any_beginnings(P, n):
    """Uneven chunks, chunks of nothing, ranks that come late."""
    begins = [1e-6 * (3 * r % 5) for r in range(P)]
    link = Link(2e-7, 1e-9)

    def program(comm):
        comm.elapse(begins[comm.rank])
        all_reduce(np.ones(n), comm, algorithm="ring")
        return comm.clock

    assert run(program, P, network=Network(link)) == equal(overlap.ring_ends(begins, n, P, link.alpha, 8 * link.beta))
    if n % P == 0:
        together = overlap.ring_ends([0.0] * P, n, P, link.alpha, 8 * link.beta)
        assert max(together) == equal(alpha_beta.ring_all_reduce(P, link.alpha, 8 * n * link.beta))


@pytest.mark.parametrize("P", [1, 2, 3, 4])
def test_buckets_of_any_sizes_ready_at_any_times_end_when_the_timeline_says(P):
    """Each rank computes at its own pace; a bucket waits for the slowest, and for the one before."""
    sizes, seconds = {"a": 700, "b": 3, "c": 5001, "d": 400, "e": 0, "f": 1}, [2e-6, 0.0, 9e-6, 1e-7, 3e-6, 1e-6]
    like = {name: np.zeros(n, np.float32) for name, n in sizes.items()}
    buckets = plan(sizes, 1000)

    def program(comm):
        step = GradientBuckets(like, buckets, comm)
        for name, duration in zip(reversed(like), seconds):
            comm.elapse(duration * (comm.rank + 1))
            step.ready(name, like[name])
        step.finish()
        return comm.clock

    full = np.cumsum([len(names) for names in buckets]) - 1
    ready = [[float(np.cumsum(seconds)[k]) * (rank + 1) for rank in range(P)] for k in full]
    elements = [sum(sizes[name] for name in names) for names in buckets]
    ends = overlap.timeline(ready, elements, P, ALPHA, BETA)
    assert max(run(program, P, network=NETWORK)) == equal(max(ends[-1][1], max(ready[-1])))
    assert all(begin >= end for (begin, _), end in zip(ends[1:], [min(r) for r in ready]))


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("P", [1, 2, 4])
@pytest.mark.parametrize("cap", CAPS)
def test_a_models_step_takes_what_its_flops_and_its_timeline_say(config, P, cap):
    """Forward, then backward block by block with the buckets behind it; before and after, one number for all."""
    b = 2                                                # sequences a rank
    tokens, targets, parameters = batch_of(config, b * P, "float32")
    sizes, log = sizes_of(parameters), Ledger()
    buckets = plan(sizes, cap)

    def program(comm):
        step = GradientBuckets(parameters, buckets, comm)
        data.loss_and_gradients(micro_batches_of(tokens, targets, config, comm, 1), parameters, config, step)
        return comm.clock

    seconds = max(run(program, P, ledger=log, network=NETWORK))
    flops = overlap.backward_flops(b, tokens.shape[1], config.hidden, config.heads, config.ffn, config.vocabulary,
                                   config.layers, config.kv_heads, config.family == "llama")
    assert log.flops(kind="backward") == P * (flops["head"] + config.layers * flops["layer"])
    assert log.flops(kind="forward") == log.flops(kind="backward") / 2
    number = alpha_beta.doubling_all_reduce(P, ALPHA, 8 * BETA)
    backward_begins = number + log.flops(rank=0, kind="forward") / NETWORK.flops

    def computed(name):
        layer = int(name.split(".")[1]) if name.startswith("blocks") else config.layers
        layers = 0 if name.startswith(("norm", "head")) else config.layers - layer % config.layers
        return backward_begins + (flops["head"] + layers * flops["layer"]) / NETWORK.flops

    ready = [max(map(computed, names)) for names in buckets]
    elements = [sum(sizes[name] for name in names) for names in buckets]
    ends = overlap.timeline(ready, elements, P, ALPHA, BETA)
    assert seconds == equal(max(ends[-1][1], max(ready)) + number)
