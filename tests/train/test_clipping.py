"""One norm of all gradients, each number once, on every kind of mesh; and what it does to the gradients."""

import math

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal
from tp_models import GPT2 as MODEL_GPT2
from tp_models import LLAMA as MODEL_LLAMA
from tp_models import S, drawn, model_example, with_kv

from refimpl import Layout, Ledger, Mesh, run
from refimpl.arrays import to_host
from refimpl.cost import traffic
from refimpl.model import transformer as single
from refimpl.model.config import shapes
from refimpl.parallel import heads, shards, transformer
from refimpl.precision import narrow, wide
from refimpl.train.clipping import NORM, clip_, clip_factor, counted, global_norm


def norm_of(arrays, order=2):
    """Of one device."""
    flat = np.concatenate([np.ravel(a) for a in arrays])
    return float(np.linalg.norm(flat, order))


ORDERS = [2, math.inf]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_on_one_device_it_is_the_norm_of_everything_in_one_array(xp, order, dtype):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in [(3, 4), (5,), (), (0, 2)]]
    found = global_norm([device_array(xp, a) for a in arrays], order=order)
    assert found == pytest.approx(norm_of([a.astype(float) for a in arrays], order), rel=1e-14)


def test_bfloat16_is_a_number_and_large_squares_fit():
    assert global_norm([narrow(np.float32([3.0, -4.0]), np.dtype("uint16"))]) == 5.0
    assert global_norm([np.float32([3e30, 4e30])]) == pytest.approx(5e30, rel=1e-6)      # float32 squares would be inf
    assert global_norm([np.full(3, 6e4, "float16")]) == pytest.approx(math.sqrt(3) * 6e4, rel=1e-3)
    assert global_norm([]) == global_norm([], order=math.inf) == 0.0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_lost(order, bad):
    for arrays in ([np.array([1.0, bad]), np.ones(2)], [np.ones(2), np.array([bad])]):
        assert not math.isfinite(global_norm(arrays, order=order))
    assert math.isnan(global_norm([np.array([math.nan]), np.array([math.inf])], order=order))


@pytest.mark.parametrize("P", [2])
def test_shards_add_up_and_what_every_rank_has_counts_once(world, P):
    """A24: pytorch/torchtitan #596, NVIDIA-NeMo/RL PR #3788; counted on both ranks 12 would make it 17.69."""
    def program(comm):
        sharded, replicated = np.array([3.0, 4.0][comm.rank]), np.array(12.0)
        mine = [sharded, replicated] if comm.rank == 0 else [sharded]
        norm = global_norm(mine, [comm])
        return norm, clip_factor(norm, 1.0), global_norm(mine, [comm], math.inf)

    for norm, factor, largest in run(program, P):
        assert norm == 13.0 and largest == 12.0
        assert factor == pytest.approx(1 / 13, rel=1e-7)


@pytest.mark.parametrize("P", [2])
def test_stages_of_a_pipeline_have_one_norm(world, P):
    """A24: 3 on one stage and 4 on the other."""
    assert run(lambda comm: global_norm([np.array([3.0, 4.0][comm.rank])], [comm]), P) == [5.0, 5.0]


def test_the_second_copy_of_a_tied_table_does_not_count():
    from refimpl.pipeline.schedules import build
    from refimpl.pipeline.tied import once

    schedule = build("1f1b", 2, 2)

    def program(comm):
        gradients = {0: {"table": np.array(5.0)}} if comm.rank == 0 else {1: {"w": np.array(12.0),
                                                                              "table": np.array(5.0)}}
        return global_norm([g for _, _, g in once(schedule, gradients, [("table", "table")])], [comm])

    assert run(program, 2) == [13.0, 13.0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("P", [1, 2, 3, 4, 5])
def test_shards_of_a_flat_array_have_its_norm_and_padding_has_none(order, P):
    """ZeRO's: 13 numbers, padded to a multiple of P; some ranks may hold padding only."""
    g = np.random.default_rng(1).standard_normal(13)
    each = -(-13 // P)
    padded = np.concatenate([g, np.full(P * each - 13, np.nan)])

    def program(comm):
        first = comm.rank * each
        return global_norm([padded[first:first + each][:max(13 - first, 0)]], [comm], order)

    for found in run(program, P):
        assert found == pytest.approx(norm_of([g], order), rel=1e-14)


def test_experts_are_cut_over_ep_and_replicated_over_the_rest():
    """Dense gradients count on the first rank of ep; replicas over expert_dp have the same norm without a message."""
    dense, experts = np.array([2.0, 3.0]), [np.array([6.0]), np.array([10.0])]

    def program(comm):
        mesh = Mesh(comm, Layout(dp=4, ep=2))
        mine = [experts[mesh.ep.rank]] + ([dense] if mesh.ep.rank == 0 else [])
        return global_norm(mine, [mesh.tp, mesh.pp, mesh.ep])

    log = Ledger()
    assert run(program, 4, ledger=log) == [norm_of([dense, *experts])] * 4
    assert log.bytes_sent(phase=NORM) == 8 * 2 * traffic.agreed_numbers(1, [2])


CONFIGS = {"gpt2": MODEL_GPT2, "gpt2, 2 kv": with_kv(MODEL_GPT2, 2), "llama, 1 kv": with_kv(MODEL_LLAMA, 1)}


@pytest.mark.parametrize("P", [1, 2, 4])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_model_cut_by_tensor_parallelism_has_the_norm_of_one_device(P, name, sequence_parallel):
    """Copied key and value heads, norms, biases and positions once; padding ids, here NaN, never."""
    config = CONFIGS[name]
    tokens, targets, parameters = model_example(config, s=S)
    place = single.whole(tokens, config)
    _, count, saved = single.loss(tokens, targets, parameters, config, place)
    whole = single.loss_backward(1 / count, saved)

    def program(comm):
        mine, sharing = shards.shard(parameters, config, comm.rank, P), heads.sharing(comm, config)
        _, count, saved = transformer.loss(tokens, targets, mine, config, comm, sequence_parallel=sequence_parallel)
        gradients = shards.finish(transformer.loss_backward(1 / count, saved), comm, sharing, sequence_parallel)
        for table in shards.TABLES:
            if table in gradients:
                first = comm.rank * gradients[table].shape[0]
                gradients[table][max(config.vocabulary - first, 0):] = np.nan
        pieces = counted(gradients, config, comm.rank, P)
        return [global_norm(pieces, [comm], order) for order in ORDERS]

    for found in run(program, P):
        for norm, order in zip(found, ORDERS):
            assert norm == pytest.approx(norm_of(whole.values(), order), rel=1e-12)


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_what_ranks_count_is_every_number_once(tp):
    """Cut without running anything: 4 ranks share 2 key-value heads of 12 query heads."""
    config = with_kv(MODEL_GPT2, {1: 2, 2: 2, 3: 3, 4: 2}[tp])
    parameters = drawn(shapes(config))
    mine = [counted(shards.shard(parameters, config, rank, tp), config, rank, tp) for rank in range(tp)]
    assert sum(piece.size for pieces in mine for piece in pieces) == sum(p.size for p in parameters.values())
    found, expected = (np.sort(np.concatenate([np.ravel(a) for a in arrays]))
                       for arrays in ([piece for pieces in mine for piece in pieces], parameters.values()))
    assert_array_equal(found, expected)


@pytest.mark.parametrize("P", [4])
def test_a_mesh_sums_over_one_communicator_after_the_other(world, P):
    """dp2 x tp2, sharded over both: as under ZeRO. One number for each of the two, by doubling."""
    def program(comm):
        mesh = Mesh(comm, Layout(dp=2, tp=2))
        return global_norm([np.array(float(comm.rank + 1))], [mesh.dp, mesh.tp])

    log = Ledger()
    results = run(program, P, ledger=log)
    assert results == [math.sqrt(1 + 4 + 9 + 16)] * 4
    assert log.bytes_sent(phase=NORM) == 8 * traffic.agreed_numbers(1, [2, 2])


# -- clipping ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("norm", "most", "factor"), [
    (13.0, 1.0, 1 / 13.000001), (0.5, 1.0, 1.0), (0.0, 1.0, 1.0), (4.0, 8.0, 1.0), (2.0, None, 1.0),
    (math.inf, 1.0, 0.0)])
def test_the_factor_brings_the_norm_down_and_never_up(norm, most, factor):
    assert clip_factor(norm, most) == factor


def test_a_norm_that_is_nan_is_not_passed_over():
    assert math.isnan(clip_factor(math.nan, 1.0))


@pytest.mark.parametrize("most", [0.0, -1.0, math.nan])
def test_a_limit_that_is_none_is_named(most):
    with pytest.raises(ValueError, match="clip=.*: expected a norm above 0, or None"):
        clip_factor(1.0, most)


def test_only_two_norms_are_known():
    with pytest.raises(ValueError, match="order=1: expected 2 or math.inf"):
        global_norm([np.ones(2)], order=1)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 1e-6), ("float16", 2e-3),
                                                  ("uint16", 1e-2)])
def test_clipped_gradients_have_the_largest_norm_allowed(xp, dtype, tolerance):
    rng = np.random.default_rng(2)
    host = [narrow(rng.standard_normal(shape).astype("float32"), np.dtype(dtype)) for shape in [(4, 5), (7,)]]
    gradients = [device_array(xp, g) for g in host]
    clip_(gradients, clip_factor(global_norm(gradients), 0.25))
    assert global_norm(gradients) == pytest.approx(0.25, rel=tolerance)
    direction = to_host(wide(gradients[0])) / wide(host[0])
    assert direction.std() < 1e-2 * direction.mean()
