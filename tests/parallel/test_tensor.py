"""Tensor parallelism equals the single device: values, both gradients, and the bytes that the formula states."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl import Ledger, run
from refimpl.arrays import to_host
from refimpl.cost import traffic
from refimpl.model import layers, mlp
from refimpl.parallel import sequence, tensor
from refimpl.precision import wide
from refimpl.testing import assert_sharded_equal

RANKS = [1, 2, 3, 4]
ROWS, INPUTS, OUTPUTS = 5, 7, 6                        # no size divides by 2, 3 and 4


def random(rng, *shape, dtype="float64"):
    return rng.standard_normal(shape).astype(dtype)


def linear_inputs(xp, dtype, rows, inputs, outputs, bias=True):
    rng = np.random.default_rng(0)
    shapes = {"x": (*rows, inputs), "w": (inputs, outputs), "dy": (*rows, outputs)}
    arrays = {name: device_array(xp, random(rng, *shape, dtype=dtype)) for name, shape in shapes.items()}
    return arrays | {"b": device_array(xp, random(rng, outputs, dtype=dtype)) if bias else None}


def linear_reference(x, w, b, dy):
    y, saved = layers.linear(x, w, b)
    dx, dw, db = layers.linear_backward(dy, saved)
    return {"y": y, "dx": dx, "dw": dw} | ({} if b is None else {"db": db})


def on_ranks(forward, backward):
    def program(comm, x, w, b, dy):
        with comm.phase("forward"):
            y, saved = forward(x, w, b, comm)
        with comm.phase("backward"):
            dx, dw, db = backward(dy, saved)
        return {"y": y, "dx": dx, "dw": dw} | ({} if b is None else {"db": db})

    return program


LINEAR = [("float64", True, (ROWS,)), ("float64", False, (2, 3)), ("float32", True, (2, 3)), ("float64", True, (0,))]
COLUMN = {"x": "replicated", "w": 1, "b": 0, "dy": -1, "y": -1}
ROW = {"x": -1, "w": 0, "b": "replicated", "dy": "replicated", "y": "replicated"}


@pytest.mark.parametrize("P", RANKS)
@pytest.mark.parametrize("dtype, bias, rows", LINEAR)
def test_column_parallel_equals_linear_and_sends_one_all_reduce_backward(P, world, xp, dtype, bias, rows):
    inputs = linear_inputs(xp, dtype, rows, INPUTS, OUTPUTS, bias)
    n, item = int(np.prod(rows)) * INPUTS, np.dtype(dtype).itemsize
    assert_sharded_equal(on_ranks(tensor.column_parallel, tensor.column_parallel_backward), linear_reference, inputs,
                         ranks=(P,), shard=COLUMN, traffic={
                             "forward": lambda P, rank: 0,
                             "backward": lambda P, rank: item * traffic.ring_all_reduce(n, P, rank)})


@pytest.mark.parametrize("P", RANKS)
@pytest.mark.parametrize("dtype, bias, rows", LINEAR)
def test_row_parallel_equals_linear_and_sends_one_all_reduce_forward(P, world, xp, dtype, bias, rows):
    inputs = linear_inputs(xp, dtype, rows, INPUTS, OUTPUTS, bias)
    n, item = int(np.prod(rows)) * OUTPUTS, np.dtype(dtype).itemsize
    assert_sharded_equal(on_ranks(tensor.row_parallel, tensor.row_parallel_backward), linear_reference, inputs,
                         ranks=(P,), shard=ROW, traffic={
                             "forward": lambda P, rank: item * traffic.ring_all_reduce(n, P, rank),
                             "backward": lambda P, rank: 0})


@pytest.mark.parametrize("P", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("dtype, activation, hidden", [       # hidden: divides, does not, fewer features than ranks
    ("float64", "gelu", 8), ("float64", "swiglu", 5), ("float64", "relu", 2), ("float32", "gelu", 5),
    ("float32", "swiglu", 6)])
def test_mlp_equals_the_single_device_and_sends_one_all_reduce_each_way(P, world, xp, dtype, activation, hidden):
    rng = np.random.default_rng(1)
    host = mlp.init(rng, INPUTS, hidden, OUTPUTS, dtype=dtype, activation=activation)
    host["b1"] += random(rng, *host["b1"].shape, dtype=dtype)
    host["b2"] += random(rng, OUTPUTS, dtype=dtype)
    host |= {"x": random(rng, ROWS, INPUTS, dtype=dtype), "dy": random(rng, ROWS, OUTPUTS, dtype=dtype)}

    def reference(x, dy, **parameters):
        y, saved = mlp.forward(x, parameters, activation)
        dx, gradients = mlp.backward(dy, saved)
        return {"y": y, "dx": dx} | {f"d{name}": g for name, g in gradients.items()}

    def program(comm, x, dy, **parameters):
        with comm.phase("forward"):
            y, saved = tensor.mlp_forward(x, parameters, comm, activation)
        with comm.phase("backward"):
            dx, gradients = tensor.mlp_backward(dy, saved)
        return {"y": y, "dx": dx} | {f"d{name}": g for name, g in gradients.items()}

    item = np.dtype(dtype).itemsize
    formula = lambda phase: lambda P, rank: item * traffic.tensor_parallel_mlp(ROWS, INPUTS, OUTPUTS, P, rank)[phase]
    assert_sharded_equal(
        program, reference, {name: device_array(xp, a) for name, a in host.items()}, ranks=(P,),
        shard={"w1": -1, "b1": -1, "w2": 0} | dict.fromkeys(("x", "y", "dy", "b2"), "replicated"),
        traffic={"forward": formula("forward"), "backward": formula("backward")})


@pytest.mark.parametrize("P", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_A14_shard_mlp_cuts_so_that_the_shards_join_to_the_whole(P, activation):
    parameters = mlp.init(np.random.default_rng(0), 3, 5, 4, activation=activation)
    shards = [tensor.shard_mlp(parameters, rank, P) for rank in range(P)]
    for name, axis in {"w1": -1, "b1": -1, "w2": 0}.items():
        assert_array_equal(np.concatenate([s[name] for s in shards], axis), parameters[name])
    for shard in shards:
        assert_array_equal(shard["b2"], parameters["b2"])
        assert not any(np.shares_memory(shard[name], parameters[name]) for name in shard)
    joined = tensor.unshard_mlp(shards)
    assert joined.keys() == parameters.keys()
    for name in joined:
        assert_array_equal(joined[name], parameters[name])
        assert not any(np.shares_memory(shard[name], joined[name]) for shard in shards)


def test_many_small_arrays_are_summed_in_one_all_reduce(xp):
    host = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(()), "c": np.zeros((0, 4)), "d": np.arange(5.0)}
    log = Ledger()

    def program(comm):
        sums = tensor.summed_together({name: device_array(xp, a * (comm.rank + 1)) for name, a in host.items()}, comm)
        return {name: to_host(a) for name, a in sums.items()}, tensor.summed_together({}, comm)

    for sums, nothing in run(program, 3, ledger=log):
        assert nothing == {} and sums.keys() == host.keys()
        for name, a in host.items():
            assert_array_equal(sums[name], 6 * a)
    assert log.messages() == 3 * traffic.ring_messages(3, passes=2)
    assert log.bytes_sent() == 8 * 2 * 2 * 12


def test_bfloat16_adds_up_as_numbers(xp):
    """It is stored as uint16; added as integers it would be something else. It travels as float32."""
    numbers, bits = np.array([1.0, 2.5, -3.0, 0.0]), np.array([0x3F80, 0x4020, 0xC040, 0], "uint16")
    assert_array_equal(wide(bits), numbers)
    log = Ledger()
    for total in run(lambda comm: to_host(tensor.summed(device_array(xp, bits), comm)), 2, ledger=log):
        assert total.dtype == "uint16"
        assert_array_equal(wide(total), 2 * numbers)
    assert log.bytes_sent() == 4 * 2 * 4


@pytest.mark.parametrize("dtype, item", [("float16", 2), ("float32", 4), ("float64", 8)])
def test_other_numbers_travel_as_they_are_stored(xp, dtype, item):
    """float16 too: 2 bytes an element."""
    x, log = np.arange(7).astype(dtype), Ledger()
    for total in run(lambda comm: to_host(tensor.summed(device_array(xp, x), comm)), 3, ledger=log):
        assert total.dtype == dtype
        assert_array_equal(total, 3 * x)
    assert log.bytes_sent() == item * 2 * 2 * 7


@pytest.mark.parametrize("split", ["column", "row"])
@pytest.mark.parametrize("P", [1, 3])
def test_split_backward_gives_the_same_bits_as_the_composed_one_and_its_second_half_sends_nothing(split, P):
    """Zero-bubble schedules put the weight half anywhere: it must not wait for other ranks."""
    forward, whole, first, second = (getattr(tensor, f"{split}_parallel{part}") for part in
                                     ("", "_backward", "_backward_input", "_backward_weight"))
    rng = np.random.default_rng(2)
    x, w, b, dy = random(rng, 4, 6), random(rng, 6, 5), random(rng, 5), random(rng, 4, 5)

    def program(comm):
        _, saved = forward(x, w, b, comm)
        dx, pending = first(dy, saved)
        with comm.phase("weight"):
            dw, db = second(pending)
        return (dx, dw, db), whole(dy, forward(x, w, b, comm)[1])

    log = Ledger()
    for mine, theirs in run(program, P, ledger=log):
        for a, b_ in zip(mine, theirs, strict=True):
            assert_array_equal(a, b_)
    assert log.messages(phase="weight") == 0


@pytest.mark.parametrize("P", [2])
def test_A09_the_row_parallel_bias_is_added_once(P, world, xp):
    """huggingface/text-generation-inference #1036: added on every rank it counts P times; so would its gradient."""
    inputs = {name: device_array(xp, np.array(a, "float64")) for name, a in {
        "x": [[1, 2, 3, 4], [2, 0, 1, 1]], "w": np.arange(12).reshape(4, 3), "b": [100, 200, 300],
        "dy": [[1, 2, 3], [4, 5, 6]]}.items()}
    expected = {"y": np.array([[160.0, 270, 380], [115, 219, 323]]), "db": np.array([5.0, 7, 9])}

    def program(comm, x, w, b, dy):
        y, saved = tensor.row_parallel(x, w, b, comm)
        return {"y": y, "db": tensor.row_parallel_backward(dy, saved)[2]}

    assert_sharded_equal(program, lambda **_: expected, inputs, ranks=(P,), shard=ROW)

    def exactly(comm):
        mine = slice(2 * comm.rank, 2 * comm.rank + 2)
        return to_host(program(comm, inputs["x"][:, mine], inputs["w"][mine], inputs["b"], inputs["dy"])["y"])

    for y in run(exactly, P):
        assert_array_equal(y, expected["y"])             # integers: exact


@pytest.mark.parametrize("lin", [tensor, sequence], ids=["tp", "tp+sp"])
@pytest.mark.parametrize("split", ["column", "row"])
@pytest.mark.parametrize(("w", "b", "says"), [
    ((5, 4), 4, r"x \(2, 3, 6\) does not fit w \(5, 4\); expected x \(..., I\) and w \(I, O\)"),
    ((6, 4), 3, r"b \(3,\) does not fit w \(6, 4\); expected b \(4,\), or None"),
    ((6, 4), 1, r"b \(1,\) does not fit w \(6, 4\)")])                            # it would broadcast
def test_shapes_that_do_not_fit_are_named_before_anything_is_sent(lin, split, w, b, says):
    forward, log = getattr(lin, f"{split}_parallel"), Ledger()
    with pytest.raises(ValueError, match=says):
        run(lambda comm: forward(np.zeros((2, 3, 6)), np.zeros(w), np.zeros(b), comm), 2, ledger=log)
    assert log.messages() == 0


def test_no_ranks_are_named():
    with pytest.raises(ValueError, match="tp=0: expected 1 or more ranks; nearest 1"):
        tensor.check_rank(0, 0)
    with pytest.raises(ValueError, match="tp=0: expected 1 or more"):
        sequence.check_length(4, 0)


@pytest.mark.parametrize("name", ["w1", "w2"])
def test_a_weight_that_is_missing_is_named_before_anything_is_sent(name):
    parameters, log = mlp.init(np.random.default_rng(0), 2, 4), Ledger()
    del parameters[name]
    for program in (lambda comm: tensor.mlp_forward(np.zeros((3, 2)), parameters, comm),
                    lambda comm: tensor.shard_mlp(parameters, comm.rank, comm.size),
                    lambda comm: mlp.forward(np.zeros((3, 2)), parameters)):
        with pytest.raises(ValueError, match=f"{name} is missing; expected w1 and w2, .* not .*b1"):
            run(program, 2, ledger=log)
    assert log.messages() == 0


def test_shard_mlp_names_a_rank_that_is_none():
    with pytest.raises(ValueError, match="rank=4 of size=4: expected 0 to 3"):
        tensor.shard_mlp(mlp.init(np.random.default_rng(0), 2, 4), 4, 4)
