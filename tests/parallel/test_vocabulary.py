"""A table and a softmax cut over the ranks equal the whole ones: values, gradients, bytes; padding never counts."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal
from tp_models import assert_same, drawn, on_host

from refimpl import Ledger, run
from refimpl.arrays import to_host
from refimpl.cost import traffic
from refimpl.model import embedding as single
from refimpl.model import loss as single_loss
from refimpl.parallel import vocabulary

B, S, H = 2, 12, 3
SIZES = [(1, 10), (2, 11), (3, 8), (4, 10), (4, 5), (4, 1), (8, 9)]    # ranks, ids: some ranks have padding only


@pytest.mark.parametrize(("V", "P", "multiple", "padded"), [
    (10, 4, 1, 12), (12, 4, 1, 12), (5, 4, 1, 8), (1, 4, 1, 4), (7, 1, 1, 7), (50257, 1, 128, 50304),
    (50257, 8, 128, 51200)])
def test_padding_gives_every_rank_as_many_ids(V, P, multiple, padded):
    """50257 becomes 50304 and, on 8 ranks, 51200, as Megatron has it."""
    assert vocabulary.padded(V, P, multiple) == padded
    for bad, says in (((0, P), "vocabulary=0"), ((V, 0), "tp=0"), ((V, P, 0), "multiple=0")):
        with pytest.raises(ValueError, match=f"{says}: expected 1 or more"):
            vocabulary.padded(*bad)


@pytest.mark.parametrize("multiple", [1, 3])
@pytest.mark.parametrize(("P", "V"), SIZES)
def test_shards_of_a_table_join_to_the_table(xp, P, V, multiple):
    w = drawn({"w": (V, H)})["w"]
    shards = [vocabulary.shard_table(device_array(xp, w), rank, P, multiple) for rank in range(P)]
    each = vocabulary.padded(V, P, multiple) // P
    assert {shard.shape for shard in shards} == {(each, H)}
    assert not np.concatenate([to_host(shard) for shard in shards])[V:].any()
    assert_array_equal(to_host(vocabulary.unshard_table(shards, V)), w)


# -- embedding and unembedding ----------------------------------------------------------------------------------------

def ends_reference(ids, w, dy, dz):
    """Look up, and score with the same table: y, z and their gradients."""
    y, saved = single.embedding(ids, w)
    z, saved2 = single.unembedding(y, w)
    dx, dw = single.unembedding_backward(dz, saved2)
    return {"y": y, "z": z, "dx": dx, "dw_out": dw, "dw_in": single.embedding_backward(dy, saved)}


both_ways = pytest.mark.parametrize("sequence_parallel", [False, True], ids=["tp", "tp+sp"])


@both_ways
@pytest.mark.parametrize(("P", "V", "dtype"), [*((*sizes, "float64") for sizes in SIZES), (3, 8, "float32")])
def test_both_ends_equal_the_whole_table(xp, P, V, sequence_parallel, dtype):
    check_ends(xp, P, V, sequence_parallel, dtype)


@both_ways
@pytest.mark.parametrize(("P", "V"), [(2, 11), (3, 8), (4, 5)])
def test_so_they_do_in_every_world(world, P, V, sequence_parallel):
    check_ends(np, P, V, sequence_parallel)


def check_ends(xp, P, V, sequence_parallel, dtype="float64"):
    rng = np.random.default_rng(1)
    ids, arrays = rng.integers(0, V, (B, S)), drawn({"w": (V, H), "dy": (B, S, H), "dz": (B, S, V)}, dtype)
    each = vocabulary.padded(V, P) // P
    padded_dz = np.concatenate([arrays["dz"], np.zeros((B, S, P * each - V), dtype)], -1)
    positions = lambda rank: slice(S * rank // P, S * (rank + 1) // P) if sequence_parallel else slice(None)

    def program(comm):
        mine = vocabulary.shard_table(device_array(xp, arrays["w"]), comm.rank, P)
        dy = device_array(xp, arrays["dy"][:, positions(comm.rank)])
        dz = device_array(xp, padded_dz[..., comm.rank * each:(comm.rank + 1) * each])
        with comm.phase("embedding forward"):
            y, saved = vocabulary.embedding(device_array(xp, ids), mine, V, comm, sequence_parallel)
        with comm.phase("head forward"):
            z, saved2 = vocabulary.unembedding(y, mine, comm, sequence_parallel)
        with comm.phase("head backward"):
            dx, pending = vocabulary.unembedding_backward_input(dz, saved2)
        dw_out = vocabulary.unembedding_backward_weight(pending)
        with comm.phase("embedding backward"):
            dw_in = vocabulary.embedding_backward(dy, saved)
        return on_host({"y": y, "z": z, "dx": dx, "dw_out": dw_out, "dw_in": dw_in})

    log = Ledger()
    results, expected = run(program, P, ledger=log), ends_reference(ids, **arrays)
    assert not np.concatenate([r["z"] for r in results], -1)[..., V:].any()
    whole = {name: np.concatenate([r[name] for r in results], axis)[(slice(None),) * (axis % 3) + (slice(V),)]
             for name, axis in {"z": 2, "dw_out": 0, "dw_in": 0}.items()}
    for rank, result in enumerate(results):
        alike = {name: result[name] for name in ("y", "dx")}
        assert_same(whole | alike, expected | {name: expected[name][:, positions(rank)] for name in alike})
        formulas = {"embedding": traffic.vocabulary_parallel_embedding, "head": traffic.vocabulary_parallel_head}
        for end, formula in formulas.items():
            for phase, elements in formula(B, S, H, P, rank, sequence_parallel).items():
                assert log.bytes_sent(rank, f"{end} {phase}") == np.dtype(dtype).itemsize * elements


# -- cross-entropy ----------------------------------------------------------------------------------------------------

def cut(logits, rank, P, padding=7.0):
    """A rank's classes; padding ids have some number or other."""
    V = logits.shape[-1]
    each = vocabulary.padded(V, P) // P
    padded = np.concatenate([logits, np.full((*logits.shape[:-1], P * each - V), padding, logits.dtype)], -1)
    return padded[..., rank * each:(rank + 1) * each]


def loss_on_ranks(xp, logits, targets, P, ledger=None, **options):
    """Per rank (total, count) and the whole gradient of the total."""
    V = logits.shape[-1]

    def program(comm):
        mine = device_array(xp, cut(logits, comm.rank, P))
        with comm.phase("forward"):
            total, count, saved = vocabulary.cross_entropy(mine, device_array(xp, targets), V, comm, **options)
        with comm.phase("backward"):
            return to_host(total), to_host(count), to_host(vocabulary.cross_entropy_backward(0.5, saved))

    results = run(program, P, ledger=ledger)
    gradient = np.concatenate([result[2] for result in results], -1)
    assert not gradient[..., V:].any()
    return [result[:2] for result in results], gradient[..., :V]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("P", "V"), SIZES)
def test_cross_entropy_equals_the_whole_one_and_never_gathers_logits(xp, P, V, smoothing, dtype):
    check_loss(xp, P, V, smoothing, dtype)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("P", "V"), [(2, 11), (3, 8), (4, 5)])
def test_so_it_does_in_every_world(world, P, V, smoothing):
    check_loss(np, P, V, smoothing)


def check_loss(xp, P, V, smoothing, dtype="float64"):
    rng = np.random.default_rng(2)
    logits, targets = (3 * rng.standard_normal((2, 5, V))).astype(dtype), rng.integers(-1, V, (2, 5))
    total, count, saved = single_loss.cross_entropy(logits, targets, smoothing=smoothing)
    expected = {"total": total, "dz": single_loss.cross_entropy_backward(0.5, saved)}
    log = Ledger()
    found, gradient = loss_on_ranks(xp, logits, targets, P, log, smoothing=smoothing)
    for rank, (mine, counted) in enumerate(found):
        assert counted == count and counted.dtype.kind == "i"
        assert_same({"total": mine, "dz": gradient}, expected)
        assert_array_equal(mine, found[0][0])                                   # the same bits everywhere
        elements = traffic.vocabulary_parallel_loss(10, P, rank, smoothing > 0)
        assert log.bytes_sent(rank, "forward") == np.dtype(dtype).itemsize * elements
    assert log.messages(phase="backward") == 0


@pytest.mark.parametrize("P", [1, 2, 4, 8])
def test_A12_label_smoothing_counts_the_whole_vocabulary(world, P):
    """NVIDIA/Megatron-LM #7464, #737: eps/V on all 8 classes, not on the rank's own."""
    logits, targets = np.arange(8.0)[None], np.array([2])
    for options, value in (({"smoothing": 0.1}, 5.3083396), ({}, 5.4583396), ({"smoothing": 0.1 * 8 / 7}, 5.2869111)):
        found, gradient = loss_on_ranks(np, logits, targets, P, **options)      # the last: eps/(V-1) on the others
        assert [round(float(total), 7) for total, _ in found] == [value] * P
        assert abs(gradient.sum()) < 1e-15
    _, gradient = loss_on_ranks(np, logits, targets, P, smoothing=0.1)
    assert round(float(2 * gradient[0, 2]), 7) == -0.9082394


@pytest.mark.parametrize("P", [1, 2, 4, 8])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_A12_an_ignored_position_has_no_loss_and_no_gradient_on_any_rank(xp, P, smoothing):
    """pytorch/pytorch #73205: smoothing included."""
    logits, targets = np.arange(16.0).reshape(2, 8) % 5, np.array([-1, 3])
    found, gradient = loss_on_ranks(xp, logits, targets, P, smoothing=smoothing)
    alone, _ = loss_on_ranks(xp, logits[1:], targets[1:], P, smoothing=smoothing)
    assert found == alone and found[0][1] == 1
    assert not gradient[0].any() and gradient[1].all()
    found, gradient = loss_on_ranks(xp, logits, np.array([-1, -1]), P, smoothing=smoothing)
    assert found == [(0, 0)] * P and not gradient.any()
    other, _ = loss_on_ranks(xp, logits, np.array([9, 3]), P, smoothing=smoothing, ignore_index=9)
    assert other == alone


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("P", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_A12_large_logits_stay_finite(xp, P, dtype):
    logits, targets = (1000 * np.arange(8.0))[None].astype(dtype), np.array([2])
    found, gradient = loss_on_ranks(xp, logits, targets, P, smoothing=0.1)
    assert [round(float(total), 3) for total, _ in found] == [4850.0] * P      # 0.9 * 5000 + 0.1 * 3500
    assert np.isfinite(gradient).all()


def test_no_positions_no_loss(xp):
    found, gradient = loss_on_ranks(xp, np.zeros((0, 5)), np.zeros(0, "int64"), 4)
    assert found == [(0, 0)] * 4 and gradient.shape == (0, 5)


# -- bad input --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("call", "says"), [
    (lambda comm, w: vocabulary.embedding(np.array([5]), w, 5, comm), "ids contains 5; expected 0..4, nearest 4"),
    (lambda comm, w: vocabulary.embedding(np.array([-1]), w, 5, comm), "ids contains -1; expected 0..4"),
    (lambda comm, w: vocabulary.embedding(np.array([0.5]), w, 5, comm), "ids has dtype float64; expected integers"),
    (lambda comm, w: vocabulary.cross_entropy(w, np.array([1, 5]), 5, comm), "targets contains 5; expected 0..4"),
    (lambda comm, w: vocabulary.cross_entropy(w, np.array([1, 1, 1]), 5, comm), r"targets \(3,\) do not fit logits"),
    (lambda comm, w: vocabulary.cross_entropy(w, np.array([1, 1]), 5, comm, smoothing=1.0), "smoothing=1.0"),
    (lambda comm, w: vocabulary.shard_table(w, 2, 2), "rank=2 of size=2: expected 0 to 1"),
    (lambda comm, w: vocabulary.unshard_table([w, w], 5), "2 ids on each of 2 ranks do not make 5; .*3 "),
    (lambda comm, w: vocabulary.embedding(np.array([1]), w, 5, comm), "2 ids on each of 2 ranks do not make 5; .*3 "),
    (lambda comm, w: vocabulary.cross_entropy(w, np.array([1, 1]), 7, comm), "3 ids on each of 2 ranks do not make 7"),
])
def test_bad_input_is_named_before_anything_is_sent(call, says):
    """An id that only padding has is none."""
    log = Ledger()
    with pytest.raises(ValueError, match=says):
        run(lambda comm: call(comm, np.zeros((2, 3))), 2, ledger=log)
    assert log.messages() == 0
