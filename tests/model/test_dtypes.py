"""Every operator in float32, float16 and bfloat16: the dtype stays, and the result is near that in float64.

The inputs are rounded first, so that what is measured is the computation. Bounds: design.md, "Numbers".
"""

import itertools

import numpy as np
import pytest
from backends import device_array
from drawing import draw, draw_integers

from refimpl.arrays import array_namespace, to_host
from refimpl.model import activations, attention, block, blockwise, dropout, embedding, layers, loss, mlp, norms, rope
from refimpl.model import transformer as T
from refimpl.model.config import Config, block_shapes
from refimpl.precision import narrow, wide

B, S, H = 2, 7, 24
GPT2 = Config("gpt2", 13, H, 1, 4, context=S, dropout=0.2)
LLAMA = Config("llama", 13, H, 1, 4, kv_heads=2)
BOUNDS = {"float32": (1e-5, 1e-4), "float16": (5e-3, 5e-3), "bfloat16": (2e-2, 2e-2)}        # outputs, gradients


def by_backward(forward, backward, *names, **options):
    """An operator as a function of arrays by name: its output, and the gradients of `names`."""
    def run(dy, **inputs):
        y, saved = forward(**inputs, **options)
        gradients = backward(dy, saved)
        return {"y": y} | dict(zip(names, gradients if isinstance(gradients, tuple) else (gradients,), strict=True))
    return run


def with_parameters(forward, backward, **options):
    def run(x, dy, **parameters):
        y, saved = forward(x, parameters, **options)
        dx, gradients = backward(dy, saved)
        return {"y": y, "dx": dx} | gradients
    return run


def dropped(x, dy):
    y, saved = dropout.dropout(x, 0.3, (1,), (range(B), range(S), range(H)))
    return {"y": y, "dx": dropout.dropout_backward(dy, saved)}


def looked_up(w, dy):
    y, saved = embedding.embedding(draw_integers(array_namespace(w), B, S, below=5), w)
    return {"y": y, "dw": embedding.embedding_backward(dy, saved)}


def surprised(z):
    xp = array_namespace(z)
    total, count, saved = loss.cross_entropy(z, draw_integers(xp, B, S, below=H + 1) - 1, smoothing=0.1)
    return {"total": total, "dz": loss.cross_entropy_backward(1 / xp.maximum(count, 1), saved)}


def whole_model(config):
    def run(**parameters):
        tokens = draw_integers(array_namespace(parameters["norm.w"]), B, S, below=13)
        targets = draw_integers(array_namespace(tokens), B, S, below=13, seed=1)
        total, count, saved = T.loss(tokens, targets, parameters, config)
        return {"total": total} | T.loss_backward(1 / count, saved)
    return run


def weights(shapes):
    return {name: ("norm" in name and name[-1] == "w", shape) for name, shape in shapes.items()}


ROWS = (0, (B, S, H))
HEADS = {"q": (0, (B, S, 2, 2, 6)), "k": (0, (B, S, 2, 6)), "v": (0, (B, S, 2, 6)), "dy": (0, (B, S, 2, 2, 6))}
OPERATORS = {                                                       # name: (function, inputs as (mean, shape))
    "linear": (by_backward(layers.linear, layers.linear_backward, "dx", "dw", "db"),
               {"x": ROWS, "w": (0, (H, 9)), "b": (0, (9,)), "dy": (0, (B, S, 9))}),
    "add": (lambda x, dy: {"y": layers.add(x, dy)}, {"x": ROWS, "dy": ROWS}),
    "relu": (by_backward(activations.relu, activations.relu_backward, "dx"), {"x": ROWS, "dy": ROWS}),
    "gelu": (by_backward(activations.gelu, activations.gelu_backward, "dx"), {"x": ROWS, "dy": ROWS}),
    "swiglu": (by_backward(activations.swiglu, activations.swiglu_backward, "dx"),
               {"x": (0, (B, S, 2 * H)), "dy": ROWS}),
    "layer_norm": (by_backward(norms.layer_norm, norms.layer_norm_backward, "dx", "dw", "db"),
                   {"x": (1, (B, S, H)), "w": (1, (H,)), "b": (0, (H,)), "dy": ROWS}),
    "rms_norm": (by_backward(norms.rms_norm, norms.rms_norm_backward, "dx", "dw"),
                 {"x": (1, (B, S, H)), "w": (1, (H,)), "dy": ROWS}),
    "dropout": (dropped, {"x": ROWS, "dy": ROWS}),
    "rope": (by_backward(rope.rope, rope.rope_backward, "dx", positions=range(S)), {"x": ROWS, "dy": ROWS}),
    "embedding": (looked_up, {"w": (0, (5, H)), "dy": ROWS}),
    "unembedding": (by_backward(embedding.unembedding, embedding.unembedding_backward, "dx", "dw"),
                    {"x": ROWS, "w": (0, (9, H)), "dy": (0, (B, S, 9))}),
    "attention": (by_backward(attention.attention, attention.attention_backward, "dq", "dk", "dv"), HEADS),
    "blockwise": (by_backward(blockwise.blockwise_attention, blockwise.blockwise_attention_backward, "dq", "dk", "dv",
                              block=3), HEADS),
    "cross_entropy": (surprised, {"z": (0, (B, S, H))}),
    "mlp": (with_parameters(mlp.forward, mlp.backward),
            {"x": ROWS, "dy": ROWS} | {"w1": (0, (H, 9)), "b1": (0, (9,)), "w2": (0, (9, H)), "b2": (0, (H,))}),
    "block of gpt2": (with_parameters(block.forward, block.backward, config=GPT2),
                      {"x": ROWS, "dy": ROWS} | weights(block_shapes(GPT2))),
    "block of llama": (with_parameters(block.forward, block.backward, config=LLAMA),
                       {"x": ROWS, "dy": ROWS} | weights(block_shapes(LLAMA))),
    "gpt2": (whole_model(GPT2), weights(T.shapes(GPT2))),
    "llama": (whole_model(LLAMA), weights(T.shapes(LLAMA))),
}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_the_dtype_stays_and_the_result_is_near_float64(xp, name, dtype):
    function, inputs = OPERATORS[name]
    stored = np.uint16 if dtype == "bfloat16" else np.dtype(dtype)
    large = {"x", "dy", "z", "q", "k", "v", "embedding.tokens"}
    given = {}
    for i, (key, (mean, shape)) in enumerate(inputs.items()):
        host = mean + draw(np, *shape, seed=i, dtype="float32", scale=1.0 if key in large else 0.3)
        given[key] = narrow(host, stored)
    exact = function(**{key: wide(x).astype(np.float64) for key, x in given.items()})
    found = function(**{key: device_array(xp, x) for key, x in given.items()})
    every = np.sqrt(sum(np.linalg.norm(x) ** 2 for key, x in exact.items() if key not in ("y", "total")))
    assert found.keys() == exact.keys()
    for key, want in exact.items():
        got, output = to_host(found[key]), key in ("y", "total")
        assert got.dtype == (np.float32 if key == "total" else stored), key
        error = np.linalg.norm(wide(got) - want) / max(np.linalg.norm(want), 0 if output else 1e-3 * every)
        assert error <= BOUNDS[dtype][not output], f"{key}: {error:.1e}"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_recomputation_in_float16_gives_the_same_bits(family):
    """What was rounded to 2 bytes in the first forward is rounded alike in the second."""
    config = {"gpt2": GPT2, "llama": LLAMA}[family]
    p = {name: draw(np, *shape, seed=i, scale=0.3, dtype="float16") for i, (name, shape) in
         enumerate(block_shapes(config).items())}
    x, dy = draw(np, B, S, H, dtype="float16"), draw(np, B, S, H, seed=1, dtype="float16")
    results = []
    for recompute in ("none", "selective", "full"):
        how = Config(**{**config.__dict__, "recompute": recompute})
        y, saved = block.forward(x, p, how)
        dx, gradients = block.backward(dy, saved)
        results.append([y, dx, *gradients.values()])
    for other, (i, mine) in itertools.product(results[1:], enumerate(results[0])):
        np.testing.assert_array_equal(other[i], mine)
