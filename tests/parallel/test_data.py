"""Data parallelism: buckets in one order everywhere, one sum a step, every token counts alike, as on one device."""

from dataclasses import replace

import numpy as np
import pytest
from backends import device_array
from dp_models import CAPS, GPT2, LLAMA, assert_gradients_equal, batch_of, micro_batches_of, on_one_device, sizes_of
from numpy.testing import assert_array_equal
from tp_models import on_device, on_host

from refimpl import Ledger, run
from refimpl.arrays import to_host
from refimpl.cost import traffic
from refimpl.model import transformer
from refimpl.model.config import shapes
from refimpl.parallel import data
from refimpl.parallel.data import COUNTS, GRADIENTS, GradientBuckets, plan
from refimpl.precision import narrow, wide

# -- which gradients travel together ----------------------------------------------------------------------------------

SIZES = {"a": 3, "b": 5, "c": 1, "d": 2, "e": 8}                        # in order of use


@pytest.mark.parametrize(("cap", "first", "buckets"), [
    (1, None, ["e", "d", "c", "b", "a"]),                               # a gradient larger than the cap is alone
    (3, None, ["e", "dc", "b", "a"]),
    (8, None, ["e", "dcb", "a"]),
    (11, None, ["edc", "ba"]),
    (19, None, ["edcba"]),
    (float("inf"), None, ["edcba"]),
    (19, 8, ["e", "dcba"]),                                             # a small first bucket
    (8, 19, ["edcba"]),
])
def test_buckets_are_filled_in_reverse_order_of_use(cap, first, buckets):
    assert plan(SIZES, cap, first) == [list(names) for names in buckets]


def test_a_model_without_parameters_has_no_buckets():
    assert plan({}, 1) == []
    assert run(lambda comm: GradientBuckets({}, [], comm).finish(), 2) == [{}, {}]


@pytest.mark.parametrize("cap", [0, -1, float("nan")])
def test_a_bucket_must_hold_something(cap):
    with pytest.raises(ValueError, match="cap=.*: a bucket holds more than 0"):
        plan(SIZES, cap)
    with pytest.raises(ValueError, match="first=.*: a bucket holds more than 0"):
        plan(SIZES, 4, first=cap)


# -- sums over ranks --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [2])
@pytest.mark.parametrize("cap", [1, 4, 6, 8])
def test_gradients_that_become_ready_in_another_order_meet_their_own(world, P, cap):
    """A08: deepspeedai/DeepSpeed #2343."""
    def program(comm):
        parameters = {"p1": np.zeros(4), "p2": np.zeros(4)}
        step = GradientBuckets(parameters, plan({"p1": 4, "p2": 4}, cap), comm, average=True)
        mine = [("p1", 1.0), ("p2", 10.0)] if comm.rank == 0 else [("p2", 20.0), ("p1", 3.0)]
        for name, value in mine:
            step.ready(name, np.full(4, value))
        return step.finish()

    for found in run(program, P):
        assert_array_equal(found["p1"], [2.0] * 4)
        assert_array_equal(found["p2"], [15.0] * 4)


def integers(rank, name):
    """A gradient of rank's own whose sums are exact."""
    return np.arange(SIZES[name]) + 10.0 * (rank + 1)


def summed_in(order_of, P, cap, xp=np, dtype="float64", ledger=None, micro_batches=1):
    """{name: sum} of each rank, where rank r hands over order_of(r), with the ledger's counts."""
    def program(comm):
        like = {name: device_array(xp, np.zeros(n, dtype)) for name, n in SIZES.items()}
        step = GradientBuckets(like, plan(SIZES, cap), comm)
        for k in range(micro_batches):
            for name in order_of(comm.rank):
                gradient = device_array(xp, narrow(np.float32(integers(comm.rank, name)), np.dtype(dtype)))
                if k + 1 < micro_batches:
                    with step.no_sync():
                        step.ready(name, gradient)
                else:
                    step.ready(name, gradient)
        return {name: to_host(wide(g)) for name, g in step.finish().items()}

    return run(program, P, ledger=ledger)


@pytest.mark.parametrize("P", [1, 2, 3, 5])
@pytest.mark.parametrize("cap", [1, 8, 100])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint16"])
def test_every_rank_gets_every_sum_once_in_any_dtype(xp, P, cap, dtype):
    """uint16 is bfloat16: its sums are of the numbers, not of the bits."""
    log = Ledger()
    results = summed_in(lambda rank: np.roll(list(SIZES), rank), P, cap, xp, dtype, log, micro_batches=2)
    for found in results:
        assert list(found) == list(SIZES)
        for name in SIZES:
            assert_array_equal(found[name], 2 * sum(integers(rank, name) for rank in range(P)))
    buckets = [sum(SIZES[name] for name in names) for names in plan(SIZES, cap)]
    for rank in range(P):
        assert log.bytes_sent(rank, GRADIENTS) == np.dtype(dtype).itemsize * traffic.data_parallel(buckets, P, rank)
        assert log.messages(rank, GRADIENTS) == len(buckets) * traffic.ring_messages(P, passes=2)


@pytest.mark.parametrize("P", [2, 3])
@pytest.mark.parametrize("cap", [3, 100])
def test_what_a_rank_does_not_use_counts_as_0_there(world, P, cap):
    """Rank 0 has used c and e only; the last one has no data at all."""
    order = lambda rank: "ce" if rank == 0 else "" if rank == P - 1 else "edcba"
    for found in summed_in(order, P, cap):
        for name in SIZES:
            expected = sum((integers(rank, name) for rank in range(P) if name in order(rank)), np.zeros(SIZES[name]))
            assert_array_equal(found[name], expected)


@pytest.mark.parametrize(("dtype", "large"), [("float16", 2048), ("uint16", 256)])
def test_sums_of_2_byte_gradients_are_rounded_once(xp, dtype, large):
    """large + 1 is large again in 2 bytes, however often: rounded at every stop, two ranks would count for nothing."""
    def program(comm):
        mine = narrow(np.full(7, 1 if comm.rank else large, np.float32), np.dtype(dtype))
        step = GradientBuckets({"w": device_array(xp, mine)}, [["w"]], comm)
        step.ready("w", device_array(xp, mine))
        return to_host(wide(step.finish()["w"]))

    for found in run(program, 3):
        assert_array_equal(found, np.full(7, large + 2))


@pytest.mark.parametrize("dtype", ["float16", "uint16"])
def test_micro_batches_of_2_byte_gradients_can_be_added_in_float32(dtype):
    """0.1 in float16, 4000 times: added in float16 it would stop growing at 256."""
    small = narrow(np.full(3, 0.1, np.float32), np.dtype(dtype))

    def program(comm, dtype):
        step = GradientBuckets({"w": small}, [["w"]], comm, dtype)
        with step.no_sync():
            for _ in range(3999):
                step.ready("w", small)
        step.ready("w", small)
        return step.finish()["w"]

    for wide_sum, narrow_sum in zip(run(program, 2, "float32"), run(program, 2, None)):
        assert wide_sum.dtype == np.float32 and narrow_sum.dtype == dtype
        np.testing.assert_allclose(wide_sum, 8000 * wide(small), rtol=1e-4)
        assert (wide(narrow_sum) < 600).all()


@pytest.mark.parametrize(("call", "says"), [
    (lambda step: step.ready("z", np.zeros(3)), "gradient 'z': expected one of a, b, c, d, e"),
    (lambda step: step.ready("a", np.zeros(4)), r"gradient of a has shape \(4,\), its parameter \(3,\)"),
    (lambda step: [step.ready("a", np.zeros(3)) for _ in range(2)], "a is ready twice in one step"),
    (lambda step: GradientBuckets({"a": np.zeros(3)}, [["a"]], step.comm, "uint16").ready("a", np.zeros(3)),
     "y has dtype float64: a bfloat16 is half a float32"),
    (lambda step: [step.finish(), step.ready("a", np.zeros(3))], "a is ready twice in one step"),
])
def test_a_gradient_that_does_not_belong_is_named(call, says):
    like = {name: np.zeros(n) for name, n in SIZES.items()}
    with pytest.raises(ValueError, match=says):
        run(lambda comm: call(GradientBuckets(like, plan(SIZES, 100), comm)), 1)


@pytest.mark.parametrize(("buckets", "dtypes", "says"), [
    ([["a"]], "dd", "expected each of a, b once"), ([["a", "b"], ["a"]], "dd", "expected each of a, b once"),
    ([["a", "b"], []], "dd", "expected each of a, b once, and no empty bucket"),
    ([["a", "b"]], "df", "has gradients of float32, float64: give one dtype"),
    ([["a", "b"]], "hh", "has gradients of int16; expected one of float64, float32, float16, uint16"),
])
def test_buckets_that_do_not_fit_the_parameters_are_refused(buckets, dtypes, says):
    like = {name: np.zeros(2, dtype) for name, dtype in zip("ab", dtypes)}
    with pytest.raises(ValueError, match=says):
        run(lambda comm: GradientBuckets(like, buckets, comm), 1)


@pytest.mark.parametrize("P", [1, 2, 4, 5])
def test_what_is_sent_is_twice_psi_but_for_one_part_in_P(P):
    """And so whatever the number of buckets and of micro-batches: 2 psi (P-1)/P, here where P divides."""
    for buckets in ([600], [200, 400], [20] * 30):
        assert traffic.data_parallel(buckets, P, rank=P - 1) * P == 2 * 600 * (P - 1)


# -- every token counts alike -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("P", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [0, 1, 3, 13])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_shares_hold_every_sequence_once_in_order(P, n, micro_batches):
    parts = [part for rank in range(P) for part in data.share(n, rank, P, micro_batches)]
    assert [k for part in parts for k in part] == list(range(n))
    assert len(parts) == P * micro_batches and max(map(len, parts)) <= -(-n // P)


@pytest.mark.parametrize(("arguments", "says"), [
    ((-3, 0, 2), "sequences=-3: expected 0 or more"), ((4, 2, 2), r"rank=2 is not one of 2 ranks; expected 0\.\.1"),
    ((4, -1, 2), "rank=-1 is not one of 2 ranks"), ((4, 0, 0), "rank=0 is not one of 0 ranks")])
def test_a_share_of_what_is_not_there_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        data.share(*arguments)


def test_there_is_at_least_one_micro_batch():
    with pytest.raises(ValueError, match="micro_batches=0: expected 1 or more"):
        data.share(4, 0, 2, 0)


def mean_on_ranks(values_of, P, targets_of=None):
    """The mean of the ranks' values by way of a gradient: d/dw of the mean of w x, in micro-batches."""
    def program(comm):
        mine = [np.array(x, float) for x in values_of[comm.rank]]
        targets = [np.zeros(len(x), int) for x in mine] if targets_of is None else targets_of[comm.rank]
        count = max(data.valid_tokens(targets, comm), 1)
        step = GradientBuckets({"w": np.zeros(())}, [["w"]], comm)
        with step.no_sync():
            for x, t in zip(mine, targets):
                step.ready("w", np.asarray((x * (t != -1)).sum() / count))
        return float(step.finish()["w"])

    return run(program, P)


@pytest.mark.parametrize("P", [2])
def test_an_uneven_split_does_not_bias_the_mean(world, P):
    """A05: huggingface/transformers #608; the mean of the ranks' means would be 7.25."""
    assert mean_on_ranks([[range(1, 8)], [range(8, 14)]], P) == [7.0, 7.0]
    assert mean_on_ranks([[range(1, 14)], []], P) == [7.0, 7.0]             # a rank without data: no 0/0, no hang


@pytest.mark.parametrize("P", [1, 2])
def test_unmasked_tokens_are_counted_over_all_micro_batches(world, P):
    """A06: meta-pytorch/torchtune PR #1875; the mean of the micro-batches' means would be 3.0."""
    split = [[[4.0], [1.0, 2.0, 3.0]]] if P == 1 else [[[4.0]], [[1.0, 2.0, 3.0]]]
    assert mean_on_ranks(split, P) == [2.5] * P
    masked = [[np.array([0, -1])] for _ in range(P)]
    assert mean_on_ranks([[[3.0, 100.0]]] * P, P, masked) == [3.0] * P
    nothing = [[np.array([-1])] for _ in range(P)]
    assert mean_on_ranks([[[5.0]]] * P, P, nothing) == [0.0] * P            # all masked: 0/0 -> 0


# -- a whole model ----------------------------------------------------------------------------------------------------

def on_ranks(comm, config, tokens, targets, parameters, cap, micro_batches=1, dtype=None):
    """{"loss": ..., gradients by name} of one rank."""
    step = GradientBuckets(parameters, plan(sizes_of(parameters), cap), comm, dtype)
    mine = micro_batches_of(tokens, targets, config, comm, micro_batches)
    loss, gradients = data.loss_and_gradients(mine, parameters, config, step)
    return {"loss": np.float64(loss)} | on_host(gradients)


def check(xp, config, P, cap, micro_batches, sequences=5):
    tokens, targets, parameters = batch_of(config, sequences)
    arrays = device_array(xp, tokens), device_array(xp, targets), on_device(xp, parameters)
    log = Ledger()
    results = run(lambda comm: on_ranks(comm, config, *arrays, cap, micro_batches), P, ledger=log)
    expected = on_one_device(config, tokens, targets, parameters)
    buckets = [sum(parameters[name].size for name in names) for names in plan(sizes_of(parameters), cap)]
    for rank, found in enumerate(results):
        assert_gradients_equal(found, expected)
        assert all(np.array_equal(found[name], results[0][name]) for name in found)
        assert log.bytes_sent(rank, GRADIENTS) == 8 * traffic.data_parallel(buckets, P, rank)
    assert log.bytes_sent(phase=COUNTS) == 8 * traffic.data_parallel_counts(P)
    assert log.bytes_sent() == log.bytes_sent(phase=GRADIENTS) + log.bytes_sent(phase=COUNTS)


both = pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])


@both
@pytest.mark.parametrize("P", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_loss_and_every_gradient_are_those_of_one_device_and_bytes_the_formulas(config, P, cap, micro_batches):
    """5 sequences, some of whose tokens are ignored; with dropout: masks do not depend on who has which sequence."""
    check(np, config, P, cap, micro_batches)


@both
@pytest.mark.parametrize("P", [2, 4])
def test_so_they_are_in_every_world(world, config, P):
    check(np, config, P, CAPS[1], 2)


@both
def test_so_they_are_in_both_libraries(xp, config):
    check(xp, config, 3, CAPS[1], 2)


@both
def test_ranks_without_sequences_take_part(config):
    check(np, config, 5, CAPS[1], 2, sequences=3)


def test_experts_that_every_rank_has_learn_as_on_one_device():
    """Capacity and auxiliary loss are defined per sequence, so how sequences are dealt out does not matter."""
    config = replace(LLAMA, experts=4, top_k=2, expert_ffn=6, balance=0.1, capacity_factor=1.0)
    for P, micro_batches in ((2, 1), (3, 2)):
        check(np, config, P, CAPS[1], micro_batches)
    log, (tokens, targets, parameters) = Ledger(), batch_of(config)
    run(on_ranks, 1, config, tokens, targets, parameters, CAPS[1], ledger=log)
    (b, s), h = tokens.shape, config.hidden
    layer = h * (h + 2 * 2 * 2) + h * h + h * 4 + 2 * 3 * h * 6                  # router, and 2 of 4 experts
    expected = 6 * b * s * (config.layers * (layer + 2 * s * h) + config.vocabulary * h)
    assert log.flops() == expected


@both
def test_float32_gradients_are_those_of_one_device(config):
    tokens, targets, parameters = batch_of(config)
    narrowed = {name: p.astype("float32") for name, p in parameters.items()}
    results = run(lambda comm: on_ranks(comm, config, tokens, targets, narrowed, CAPS[1], 2), 3)
    assert {g.dtype.name for name, g in results[0].items() if name != "loss"} == {"float32"}
    assert_gradients_equal(results[0], on_one_device(config, tokens, targets, parameters), 1e-4)


def test_the_tied_table_is_handed_over_once_whole_and_last():
    """Its two gradients, the head's and the embedding's, meet before it is sent."""
    tokens, targets, parameters = batch_of(GPT2)
    order = []
    _, _, (saved, saved_loss) = transformer.loss(tokens, targets, parameters, GPT2)
    dlogits = transformer.cross_entropy_backward(1.0, saved_loss)
    data.backward(dlogits, saved, lambda name, gradient: order.append((name, gradient)), order.append)
    names = [entry[0] for entry in order if isinstance(entry, tuple)]
    assert names[:2] == ["norm.b", "norm.w"] and names[-2:] == ["embedding.positions", "embedding.tokens"]
    assert sorted(names) == sorted(shapes(GPT2))
    assert [entry for entry in order if not isinstance(entry, tuple)] == ["head", 1, 0, "embed"]
    expected = transformer.backward(dlogits, saved)
    for name, gradient in (entry for entry in order if isinstance(entry, tuple)):
        assert_array_equal(gradient, expected[name])


@pytest.mark.parametrize(("recompute", "weights", "core"), [("none", 3, 3), ("selective", 3, 4), ("full", 4, 4)])
def test_every_product_is_declared_and_with_recomputation_again(recompute, weights, core):
    """Passes over a layer's weights, and over attention's scores and context; the head has 3 in any case."""
    config, log = replace(LLAMA, recompute=recompute), Ledger()
    tokens, targets, parameters = batch_of(config)
    run(on_ranks, 1, config, tokens, targets, parameters, CAPS[1], ledger=log)
    (b, s), h = tokens.shape, config.hidden
    matrices = h * (h + 2 * 2 * 2) + h * h + 3 * h * config.ffn                 # 2 key-value heads of 2 features
    expected = config.layers * (weights * 2 * b * s * matrices + core * 4 * b * s * s * h)
    assert log.flops() == expected + 3 * 2 * b * s * config.vocabulary * h


# -- dp x tp ----------------------------------------------------------------------------------------------------------

def test_the_same_pieces_reduce_the_shards_of_a_tensor_parallel_model():
    from tp_models import B, S, assert_same, loss_on_one_device, model_example

    from refimpl import Layout, Mesh
    from refimpl.parallel import heads, shards, vocabulary
    from refimpl.parallel import transformer as cut

    config = replace(GPT2, dropout=0.0)
    tokens, targets, parameters = model_example(config, s=S)

    def program(comm):
        mesh = Mesh(comm, Layout(dp=2, tp=2))
        mine = shards.shard(parameters, config, mesh.tp.rank, 2)
        sharing = heads.sharing(mesh.tp, config)
        part = data.share(B, mesh.dp.rank, 2)[0]
        rows = slice(part.start, part.stop)
        step = GradientBuckets(mine, plan(sizes_of(mine), 300), mesh.dp)
        count = data.valid_tokens([targets[rows]], mesh.dp)
        _, _, (saved, saved_loss) = cut.loss(tokens[rows], targets[rows], mine, config, mesh.tp)
        dlogits = vocabulary.cross_entropy_backward(1 / count, saved_loss)
        data.backward(dlogits, saved, step.ready, model=cut)
        return shards.finish(step.finish(), mesh.tp, sharing)

    results = run(program, 4)
    expected = loss_on_one_device(config, tokens, targets, parameters, smoothing=0.0)
    del expected["loss"]
    for pair in (results[:2], results[2:]):
        assert_same({f"d{name}": g for name, g in shards.unshard(pair, config).items()}, expected)
