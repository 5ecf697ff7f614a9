"""Sequence parallelism equals the single device: values, every gradient, what is an addend and what is whole, bytes."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal
from tp_models import B, assert_same, drawn, on_device, on_host

from refimpl import Ledger, run
from refimpl.arrays import to_host
from refimpl.cost import traffic
from refimpl.model import layers, norms
from refimpl.parallel import sequence
from refimpl.precision import narrow, wide
from refimpl.testing import assert_sharded_equal, cut

INPUTS, OUTPUTS = 5, 6                     # lengths: 12 divides by 2, 3 and 4; 7 does not; 3 are fewer than 4 ranks


def inputs_of(xp, dtype, s, bias=True):
    arrays = drawn({"x": (B, s, INPUTS), "w": (INPUTS, OUTPUTS), "b": (OUTPUTS,), "dy": (B, s, OUTPUTS)}, dtype)
    return on_device(xp, arrays) | ({} if bias else {"b": None})


def reference(x, w, b, dy):
    y, saved = layers.linear(x, w, b)
    dx, dw, db = layers.linear_backward(dy, saved)
    return {"y": y, "dx": dx, "dw": dw} | ({} if b is None else {"db": db})


def on_ranks(split):
    forward, backward_input, backward_weight = (
        getattr(sequence, f"{split}_parallel{part}") for part in ("", "_backward_input", "_backward_weight"))

    def program(comm, x, w, b, dy):
        with comm.phase("forward"):
            y, saved = forward(x, w, b, comm)
        with comm.phase("backward"):
            dx, pending = backward_input(dy, saved)
        with comm.phase("weight"):
            dw, db = backward_weight(pending)
        return {"y": y, "dx": dx, "dw": dw} | ({} if b is None else {"db": db})

    return program


CASES = [("float64", 12, True), ("float64", 7, True), ("float64", 3, False), ("float32", 7, True)]


def check_column(xp, P, dtype, s, bias=True):
    item = np.dtype(dtype).itemsize
    gather = lambda P, rank: item * B * INPUTS * traffic.ring_all_gather(s, P, rank)
    scatter = lambda P, rank: item * B * INPUTS * traffic.ring_reduce_scatter(s, P, rank)
    assert_sharded_equal(on_ranks("column"), reference, inputs_of(xp, dtype, s, bias), ranks=P,
                         shard={"x": 1, "w": 1, "b": 0, "dy": 2, "y": 2}, traffic={
                             "forward": gather,
                             "backward": lambda P, rank: gather(P, rank) + scatter(P, rank),
                             "weight": lambda P, rank: 0})


def check_row(xp, P, dtype, s, bias=True):
    item = np.dtype(dtype).itemsize
    assert_sharded_equal(on_ranks("row"), reference, inputs_of(xp, dtype, s, bias), ranks=P,
                         shard={"x": 2, "w": 0, "b": "replicated", "dy": 1, "y": 1}, traffic={
                             "forward": lambda P, rank: item * B * OUTPUTS * traffic.ring_reduce_scatter(s, P, rank),
                             "backward": lambda P, rank: item * B * OUTPUTS * traffic.ring_all_gather(s, P, rank),
                             "weight": lambda P, rank: 0})


@pytest.mark.parametrize("P", [1, 2, 3, 4])
@pytest.mark.parametrize(("dtype", "s", "bias"), CASES)
def test_column_parallel_gathers_x_twice_and_scatters_dx(xp, P, dtype, s, bias):
    check_column(xp, P, dtype, s, bias)


@pytest.mark.parametrize("P", [1, 2, 3, 4])
@pytest.mark.parametrize(("dtype", "s", "bias"), CASES)
def test_A09_row_parallel_scatters_y_and_every_rank_has_the_gradient_of_the_bias(xp, P, dtype, s, bias):
    """Whole, and equal to the dense one: backward gathers dy."""
    check_row(xp, P, dtype, s, bias)


@pytest.mark.parametrize("P", [2, 3, 4])
@pytest.mark.parametrize("s", [12, 7])
@pytest.mark.parametrize("check", [check_column, check_row], ids=["column", "row"])
def test_so_they_do_in_every_world(world, P, check, s):
    check(np, P, "float64", s)


def test_A09_the_row_parallel_bias_is_added_once(xp):
    """To each position once, and its gradient counts each position once: not per rank."""
    x, w, b = np.array([[1.0, 2, 3, 4], [2, 0, 1, 1]]), np.arange(12.0).reshape(4, 3), np.array([100.0, 200, 300])
    expected = {"y": np.array([[160.0, 270, 380], [115, 219, 323]]), "db": np.array([5.0, 7, 9])}

    def program(comm, x, w, b, dy):
        y, saved = sequence.row_parallel(x, w, b, comm)
        return {"y": y, "db": sequence.row_parallel_backward(dy, saved)[2]}

    inputs = on_device(xp, {"x": x, "w": w, "b": b, "dy": np.array([[1.0, 2, 3], [4, 5, 6]])})
    assert_sharded_equal(program, lambda **_: expected, inputs, ranks=2,
                         shard={"x": 1, "w": 0, "b": "replicated", "dy": 0, "y": 0})


@pytest.mark.parametrize("P", [2])
def test_A10_dy_is_gathered_before_it_meets_the_weights(xp, world, P):
    """huggingface/nanotron #46: gathering partial input gradients gives [1, 20] on both ranks, of the right shape."""
    w, dy = np.array([[1.0], [10.0]]), np.array([[1.0], [2.0]])

    def program(comm):
        mine = slice(comm.rank, comm.rank + 1)
        x = device_array(xp, np.ones((2, 1)))
        _, saved = sequence.row_parallel(x, device_array(xp, w[mine]), None, comm)
        return to_host(sequence.row_parallel_backward(device_array(xp, dy[mine]), saved)[0])

    first, second = run(program, P)
    assert_array_equal(first, [[1], [2]])
    assert_array_equal(second, [[10], [20]])


@pytest.mark.parametrize("P", [1, 2, 4])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_A11_norm_gradients_are_summed_over_tp_and_not_averaged(xp, P, kind):
    """NVIDIA/Megatron-LM #1446, EleutherAI/gpt-neox PR #1259: contributions 1 2 3 4, on 2 ranks 3 and 7, in all 10."""
    x = np.tile([[1.0], [-1.0]], (4, 1, 1)).swapaxes(1, 2)                       # (4, 1, 2): normed, it is itself
    dy = x * np.array([1.0, 2, 3, 4])[:, None, None]
    w, b = device_array(xp, np.ones(2)), device_array(xp, np.zeros(2)) if kind == "layer" else None

    def program(comm):
        mine = sequence.own(4, comm.rank, comm.size)
        _, saved = norms.norm(device_array(xp, x[mine]), w, b, eps=0.0)
        _, pending = norms.norm_backward_input(device_array(xp, dy[mine]), saved)
        dw, db = norms.norm_backward_weight(pending)
        local = {"norm.w": dw, "mlp.b2": dw} | ({} if db is None else {"norm.b": db})
        return on_host(local), on_host(sequence.sum_addends(local, comm))

    results = run(program, P)
    contributions = {1: [10], 2: [3, 7], 4: [1, 2, 3, 4]}[P]
    for (local, summed), mine in zip(results, contributions, strict=True):
        assert_array_equal(local["norm.w"], [mine, mine])
        assert_array_equal(summed["norm.w"], [10, 10])
        assert_array_equal(summed["mlp.b2"], local["mlp.b2"])                   # no addend: left alone
        if kind == "layer":
            assert_array_equal(summed["norm.b"], [10, -10])


def test_A11_a_sequence_that_does_not_divide_is_named_with_what_works():
    works = "pad it to 12, cut it to 8, or let tp be one of 1, 2, 5, 10"
    with pytest.raises(ValueError, match=f"sequence=10 is not divisible by tp=4, .*; {works}"):
        sequence.check_length(10, 4)
    with pytest.raises(ValueError, match="sequence=3 .*; pad it to 4, or let tp be one of 1, 3"):
        sequence.check_length(3, 4)
    sequence.check_length(12, 4)
    sequence.check_length(0, 4)


@pytest.mark.parametrize("split", ["column", "row"])
@pytest.mark.parametrize("P", [1, 3])
def test_the_composed_backward_gives_the_same_bits_as_its_halves(split, P):
    arrays = inputs_of(np, "float64", 6)
    shard = {"column": {"x": 1, "w": 1, "b": 0, "dy": 2}, "row": {"x": 2, "w": 0, "dy": 1}}[split]

    def program(comm):
        local = {}
        for name, a in arrays.items():
            how = shard.get(name, "replicated")
            local[name] = cut(a, how, comm.rank, P)
        halves = on_ranks(split)(comm, **local)
        _, saved = getattr(sequence, f"{split}_parallel")(local["x"], local["w"], local["b"], comm)
        composed = getattr(sequence, f"{split}_parallel_backward")(local["dy"], saved)
        return [(halves[name], mine) for name, mine in zip(("dx", "dw", "db"), composed, strict=True)]

    for pairs in run(program, P):
        for mine, other in pairs:
            assert_array_equal(mine, other)


def test_the_shard_is_all_that_is_kept_of_x():
    def program(comm):
        x = np.ones((1, 4, 3))
        _, saved = sequence.column_parallel(x, np.ones((3, 2)), None, comm)
        return saved[0] is x

    assert run(program, 2) == [True, True]


@pytest.mark.parametrize(("dtype", "gathered", "scattered"), [("float16", 2, 2), ("bfloat16", 2, 4), ("float32", 4, 4)])
def test_shards_add_up_as_numbers_and_travel_in_so_many_bytes(xp, dtype, gathered, scattered):
    """bfloat16 is stored as uint16; added as integers it would be something else, so sums travel as float32."""
    stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    numbers = np.array([[1.0], [2.5], [-3.0], [0.125]], np.float32)

    def program(comm):
        with comm.phase("scatter"):
            mine = sequence.scatter_sum(device_array(xp, narrow(numbers * (comm.rank + 1), stored)), comm)
        with comm.phase("gather"):
            whole = sequence.gather(mine, comm)
        assert mine.dtype == whole.dtype == stored
        return wide(to_host(whole))

    log = Ledger()
    for whole in run(program, 2, ledger=log):
        assert_array_equal(whole, 3 * numbers)
    assert log.bytes_sent(phase="scatter") == scattered * 4 and log.bytes_sent(phase="gather") == gathered * 4


def test_addends_travel_in_one_all_reduce():
    gradients = {f"blocks.{layer}.norm1.w": np.ones(3) for layer in range(5)} | {"embedding.positions": np.ones((4, 3))}
    log = Ledger()
    results = run(lambda comm: sequence.sum_addends(gradients, comm), 4, ledger=log)
    assert log.messages() == 4 * traffic.ring_messages(4, passes=2)
    for result in results:
        assert_same(result, {name: 4 * g for name, g in gradients.items()})
