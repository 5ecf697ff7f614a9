"""What ZeRO sends, holds and waits for, counted while a transformer trains, is what the formulas say: `==`."""

import numpy as np
import pytest
from zero_models import CONFIGS, on_a_rank, recipe_of, start, train, units_of

from refimpl import Ledger, Link, Network, run
from refimpl.cost import memory, traffic
from refimpl.measure.meter import Meter
from refimpl.model.adam import Adam
from refimpl.parallel.zero import Zero

STEPS = 2                                                                         # whose bytes are counted
stages = pytest.mark.parametrize("stage", [0, 1, 2, 3])


def plain(comm, sizes, stage, **options):
    """A `Zero` of zeros, a unit for each of these sizes; keys are their numbers."""
    parameters = {f"w{k}": np.zeros(n) for k, n in enumerate(sizes)}
    return Zero(parameters, [[name] for name in parameters], comm, stage, Adam(), **options)


def sizes_of(family, recipe, how):
    """Elements of each unit, without padding."""
    parameters = start(CONFIGS[family], recipe)
    units = units_of(parameters, how)
    return [sum(parameters[name].size for name in unit) for unit in (units.values() if how == "layers" else units)]


def item_sizes(recipe):
    """Bytes of a parameter, a gradient, and what the optimizer has of each."""
    each = recipe.precision.bytes_per_parameter
    return {"parameter": each["parameters"], "gradient": each["gradients"],
            "optimizer": each["master"] + each["moments"]}


# -- bytes sent -------------------------------------------------------------------------------------------------------

def check_traffic(P, family, recipe, stage, how, copies=1, alignment=None):
    """Each rank's bytes by leg, over all steps."""
    log = Ledger()
    train(P, family, recipe, stage, how, copies, log, alignment=alignment, steps=STEPS)
    sizes, N, k = sizes_of(family, recipe, how), P // copies, recipe.micro_batches
    gathers = [2 if how == "layers" else 1] * len(sizes)
    if how == "layers" and family == "gpt2":
        gathers[0] = 4
    item = item_sizes(recipe)
    for rank in range(P):
        sent = traffic.zero_step(sizes, N, rank % N, stage, k, gathers, copies, rank // N, alignment)
        for phase, elements, size in (("zero reduce", sent["gradients"], item["gradient"]),
                                      ("zero gather", sent["parameters"], item["parameter"]),
                                      ("zero replicate", sent["replicas"], item["gradient"])):
            assert log.bytes_sent(rank, phase) == STEPS * elements * size, (rank, phase)
    return sent


@stages
@pytest.mark.parametrize(("P", "how", "alignment", "dtype", "grad_dtype"), [
    (1, 60, None, "float64", None), (3, "layers", None, "float16", "float32"), (4, 60, 20, "bfloat16", None),
    (4, "layers", 12, "float16", None), (5, 10**6, 100, "float32", None)])
def test_every_rank_sends_what_the_formula_says_padding_included(P, how, alignment, dtype, grad_dtype, stage):
    """Layer by layer a micro-batch gathers each unit twice, for forward and backward; the model as a whole once."""
    check_traffic(P, "llama", recipe_of(dtype, 2, grad_dtype), stage, how, alignment=alignment)


@stages
@pytest.mark.parametrize(("P", "copies"), [(2, 1), (4, 2)])
def test_so_it_is_in_every_world(world, P, copies, stage):
    check_traffic(P, "gpt2", recipe_of(micro_batches=2), stage, "layers", copies)


def test_a_tied_table_is_gathered_once_for_each_of_its_four_uses():
    """Embedding and head, forward and backward: counted, not asserted in a comment."""
    recipe = recipe_of()
    tied, rest = Ledger(), traffic.zero_step(sizes_of("gpt2", recipe, "layers"), 3, 0, 3)["parameters"]
    train(3, "gpt2", recipe, 3, "layers", ledger=tied, steps=STEPS)
    embedding = traffic.padded(sizes_of("gpt2", recipe, "layers")[0], 3)
    assert tied.bytes_sent(0, "zero gather") == STEPS * 8 * (rest + 2 * embedding * 2 // 3)


@stages
def test_sharded_more_than_one_rank_sends_2_2_k_plus_1_and_3_k(stage):
    """In psi (N-1)/N, where no padding is needed; what the papers say, against what was counted."""
    k, P, log = 3, 4, Ledger()

    def program(comm):
        zero = plain(comm, [40, 80], stage)
        for micro_batch in range(k):
            for key in (0, 1, 1, 0):
                zero.parameters(key)
                zero.release(key)
            for key in (1, 0):
                zero.reduce(key, {}, last=micro_batch == k - 1)
        zero.step()

    run(program, P, ledger=log)
    for rank in range(P):
        assert log.bytes_sent(rank) == (2, 2, k + 1, 3 * k)[stage] * 120 * 3 // 4 * 8


# -- bytes held -------------------------------------------------------------------------------------------------------

@stages
@pytest.mark.parametrize(("P", "alignment", "dtype", "grad_dtype"), [
    (1, None, "float64", None), (3, None, "float16", None), (4, 12, "bfloat16", "float32"), (3, 30, "float32", None)])
def test_a_rank_holds_at_rest_and_at_most_what_the_formulas_say(P, alignment, dtype, grad_dtype, stage):
    """Untied, unit by unit. The meter looks before, whenever a unit's reduction has begun, and after."""
    recipe = recipe_of(dtype, 2, grad_dtype)

    def program(comm):
        meters = []
        zero, _, _ = on_a_rank(comm, "llama", recipe, stage, "layers", alignment=alignment, steps=STEPS,
                               prepare=lambda zero: (meters.append(Meter(**zero.resident)), meters[0].sample()),
                               sample=lambda zero: meters[0].sample())
        peak, total = meters[0].peak, meters[0].total_peak
        return meters[0].sample(), peak, total

    arguments = sizes_of("llama", recipe, "layers"), P, stage, *item_sizes(recipe).values(), alignment
    for rest, peak, total in run(program, P):
        assert rest == memory.model_states(*arguments)
        expected = memory.model_states_peak(*arguments)
        assert total == sum(expected.values())
        if stage < 3:
            assert peak == expected == (rest if stage < 2 else peak)


def test_the_peak_of_stage_3_is_that_of_some_units_not_of_the_model():
    """Measured beside the states at rest: 30 layers of 500 and two wider ends, on 8 ranks."""
    sizes, N = [600] + [500] * 30 + [600], 8

    def program(comm):
        zero = plain(comm, sizes, 3)
        meter = Meter(**zero.resident)
        for key in reversed(zero.units):
            zero.parameters(key)
            if key:
                zero.prefetch(key - 1)
            zero.reduce(key, {})
            meter.sample()
            zero.release(key)
        zero.step()
        return meter.sample(), meter.total_peak

    for rest, peak in run(program, N):
        assert sum(rest.values()) == 32 * (2 * 600 + 30 * 504) // N                # float64: 8 + 8 + 16 bytes
        assert peak == sum(memory.model_states_peak(sizes, N, 3, 8, 8, 16).values())
        # two layers' parameters; a layer's gradients, and the end's
        assert peak - sum(rest.values()) == 8 * (504 + 504) + 8 * (504 + 600)
        assert peak < 0.2 * 32 * sum(sizes)


# -- seconds, on the virtual clock ------------------------------------------------------------------------------------

ALPHA, BETA = 1e-5, 1e-9
NETWORK = Network(Link(ALPHA, BETA))
SIZES = [4000, 60000, 20000, 24000]                                               # elements; divide by 4


def gather_time(n, P):
    """A ring's all-gather of n float64."""
    return (P - 1) * (ALPHA + n // P * 8 * BETA)


def one_forward(comm, prefetching, seconds):
    zero = plain(comm, SIZES, 3)
    for key in zero.units:
        zero.parameters(key)
        if prefetching and key + 1 in zero.units:
            zero.prefetch(key + 1)
        comm.elapse(seconds[key])
        zero.release(key)
    return comm.clock


@pytest.mark.parametrize("P", [2, 4])
@pytest.mark.parametrize("seconds", [[0.0] * 4, [1e-4] * 4, [3e-4, 1e-5, 2e-4, 5e-5], [1.0] * 4])
def test_prefetching_hides_exactly_the_shorter_of_gathering_and_computing(seconds, P):
    T = [gather_time(n, P) for n in SIZES]
    apart = sum(T) + sum(seconds)
    hidden = sum(min(compute, following) for compute, following in zip(seconds, T[1:]))
    for clock in run(lambda comm: one_forward(comm, False, seconds), P, network=NETWORK):
        assert clock == pytest.approx(apart, rel=1e-12)
    for clock in run(lambda comm: one_forward(comm, True, seconds), P, network=NETWORK):
        assert clock == pytest.approx(apart - hidden, rel=1e-12)
        assert clock == pytest.approx(T[0] + sum(map(max, seconds, [*T[1:], 0.0])), rel=1e-12)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("buffers", [1, 2, 9])
@pytest.mark.parametrize("compute", [0.0, 5e-5, 1e-3])
def test_reductions_run_beside_backward_which_waits_for_a_buffer(compute, buffers, stage):
    """One network, units in turn; unit u's gradient needs the buffer of the unit `buffers` before it (stage 2)."""
    P, T = 4, [gather_time(n, 4) for n in reversed(SIZES)]

    def program(comm):
        zero = plain(comm, SIZES, stage, buffers=buffers)
        for key in reversed(zero.units):
            comm.elapse(compute)
            zero.reduce(key, {})
        zero.finish()
        return comm.clock

    now, free = 0.0, []                                                           # when each reduction ends
    for u, duration in enumerate(T):
        now += compute
        if stage == 2 and u >= buffers:
            now = max(now, free[u - buffers])
        free.append(max(now, free[-1] if free else 0.0) + duration)
    for clock in run(program, P, network=NETWORK):
        assert clock == pytest.approx(max(now, free[-1]), rel=1e-12)


def test_after_the_step_parameters_are_gathered_behind_the_next_forward():
    """Stage 1: only the first unit's gather is waited for, where computing takes longer than the others'."""
    P, compute = 4, 1.0

    def program(comm):
        zero = plain(comm, SIZES, 1)
        zero.finish()
        before = comm.clock
        zero.step()
        for key in zero.units:
            zero.parameters(key)
            comm.elapse(compute)
        return comm.clock - before

    for seconds in run(program, P, network=NETWORK):
        assert seconds == pytest.approx(gather_time(SIZES[0], P) + 4 * compute, rel=1e-12)


def test_hybrid_sharding_sends_only_shards_over_the_slow_link():
    """2 nodes of 4: between nodes 2 (R-1)/R psi/N a rank, in place of 2 (P-1)/P psi over links that include them."""
    sizes, log = [8000, 16000], Ledger()

    def program(comm):
        node, across = comm.split(comm.rank // 4, name="node"), comm.split(comm.rank % 4, name="across")
        zero = plain(node, sizes, 3, replicate=across)
        for key in (1, 0):
            zero.reduce(key, {})
        zero.step()
        zero.parameters(0), zero.parameters(1)

    run(program, 8, ledger=log)
    for rank in range(8):
        assert log.bytes_sent(rank, group="across") == sum(sizes) // 4 * 8
        assert log.bytes_sent(rank, group="node") == 2 * sum(sizes) * 3 // 4 * 8
