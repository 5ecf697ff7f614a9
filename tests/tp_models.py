"""Small transformers for the tests of tensor parallelism: nothing in them is 0 or 1, little of it divides evenly."""

from dataclasses import replace

import numpy as np
from backends import device_array

from refimpl.arrays import to_host
from refimpl.model import block
from refimpl.model import transformer as single
from refimpl.model.config import Config, block_shapes, shapes
from refimpl.parallel import heads, shards, transformer
from refimpl.testing import REPLICATED, compare

GPT2 = Config("gpt2", vocabulary=11, hidden=24, layers=2, heads=12, ffn=10, context=13, dropout=0.2, epsilon=0.1)
LLAMA = Config("llama", vocabulary=11, hidden=24, layers=2, heads=12, ffn=10, epsilon=0.1)
B, S = 2, 12                                            # sequences, positions; 12 heads and positions divide by 2, 3, 4


def drawn(named_shapes, dtype="float64", seed=0):
    """Arrays for these shapes by name, on the host: weights of the size that keeps activations near 1."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in named_shapes.items():
        scale = 0.3 if len(shape) == 1 or name.endswith("b") else 1.0 if "embedding" in name else shape[0] ** -0.5
        made[name] = (scale * rng.standard_normal(shape) + (name.endswith("w") and "norm" in name)).astype(dtype)
    return made


def block_example(config, dtype="float64", b=B, s=S):
    """x, dy (b, s, h) and one block's parameters, on the host."""
    arrays = drawn({"x": (s, b, config.hidden), "dy": (s, b, config.hidden)} | block_shapes(config), dtype)
    x, dy = (s**0.5 * arrays.pop(name).swapaxes(0, 1) for name in ("x", "dy"))
    return x.astype(dtype), dy.astype(dtype), arrays


def model_example(config, dtype="float64", b=B, s=S):
    """tokens, targets (some ignored) and the whole model's parameters, on the host."""
    rng = np.random.default_rng(5)
    tokens, targets = rng.integers(0, config.vocabulary, (2, b, s))
    targets[0, :3] = -1
    return tokens, targets, drawn(shapes(config), dtype)


def on_device(xp, arrays):
    """A dict of host arrays in the library xp."""
    return {name: device_array(xp, a) for name, a in arrays.items()}


def on_host(arrays):
    """A dict of arrays on the host."""
    return {name: to_host(a) for name, a in arrays.items()}


def whole_place(config, b=B, s=S, seed=3, step=2):
    """The place of the whole batch, at some step."""
    return block.Place(range(b), range(s), range(config.heads), seed, step)


def loss_on_one_device(config, tokens, targets, parameters, smoothing=0.1):
    """{"loss": ..., gradients by name} of the mean loss: the truth."""
    place = whole_place(config, *tokens.shape)
    total, count, saved = single.loss(tokens, targets, parameters, config, place, smoothing=smoothing)
    gradients = single.loss_backward(1 / count, saved)
    return {"loss": total / count} | {f"d{name}": g for name, g in gradients.items()}


def loss_on_ranks(comm, config, tokens, targets, parameters, sequence_parallel, smoothing=0.1):
    """The same on a rank, from the whole parameters: {"loss": ..., the rank's gradients by name}."""
    sharing = heads.sharing(comm, config)
    mine = shards.shard(parameters, config, comm.rank, comm.size)
    with comm.phase("forward"):
        total, count, saved = transformer.loss(tokens, targets, mine, config, comm, whole_place(config, *tokens.shape),
                                               smoothing=smoothing, sequence_parallel=sequence_parallel)
    with comm.phase("backward"):
        gradients = transformer.loss_backward(1 / count, saved)
    with comm.phase("finish"):
        gradients = shards.finish(gradients, comm, sharing, sequence_parallel)
    return on_host({"loss": total / count} | {f"d{name}": g for name, g in gradients.items()})


def joined(results, config):
    """The ranks' results as those of one device: losses must agree to the last bit, gradients are joined."""
    assert all(np.array_equal(result["loss"], results[0]["loss"]) for result in results)
    gradients = [{name[1:]: g for name, g in result.items() if name != "loss"} for result in results]
    return {"loss": results[0]["loss"]} | {f"d{name}": g for name, g in shards.unshard(gradients, config).items()}


def assert_same(found, expected):
    """Whole arrays against whole arrays, gradients (d...) measured among themselves: see refimpl.testing."""
    compare([found], expected, dict.fromkeys(expected, REPLICATED), {name for name in expected if name[0] == "d"})


def with_kv(config, kv_heads):
    """The config with so many key-value heads."""
    return replace(config, kv_heads=kv_heads)
