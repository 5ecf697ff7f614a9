"""Operators, forward and backward, on the host and on the device: the same numbers, up to rounding?

    host arrays --NumPy--> outputs, gradients
        |                                        || device - host || / || host ||
        `-> device arrays --CuPy--> the same

Not the same bits: a GPU adds up products in another order, and its exp and tanh differ in the last place. The bounds
are those of the whole project for gradients, 1e-12 in float64 and 1e-4 in float32. An operator that hands a device
array to NumPy, or a host array to CuPy, raises here.

The model's, those of tensor and of data parallelism. Context and expert parallelism, pipelines and ZeRO are reached by
the layouts of `steps.in_order`.
"""

import numpy as np

from refimpl import run
from refimpl.arrays import add_at_, to_device, to_host
from refimpl.model import (
    activations,
    adam,
    attention,
    block,
    blockwise,
    dropout,
    embedding,
    layers,
    loss,
    mlp,
    moe,
    norms,
    rope,
    transformer,
)
from refimpl.model.config import Config, block_shapes, expert_shapes, shapes
from refimpl.parallel import data, sequence, shards, tensor
from refimpl.parallel import transformer as parallel
from refimpl.testing import norm_of_all, relative_difference

TOLERANCE = {"float64": 1e-12, "float32": 1e-4}
B, S, H, V = 2, 12, 24, 11                                    # sequences, positions, features, vocabulary
GPT2 = Config("gpt2", V, H, layers=2, heads=6, ffn=10, context=S, dropout=0.2)
LLAMA = Config("llama", V, H, layers=2, heads=6, kv_heads=2, ffn=10)
MOE = Config("llama", V, H, layers=2, heads=6, ffn=10, experts=4, top_k=2, expert_ffn=6, shared_experts=1,
             capacity_factor=1.25, balance=0.01)


def compare(like, dtype="float64"):
    """The operators on the host and in the library of `like`: {name: largest relative difference of an output}."""
    found = {}
    for name, (operator, inputs) in operators(dtype).items():
        expected = flat(operator(**copied(inputs, np.empty(0))))
        mine = flat(operator(**copied(inputs, like)))
        if mine.keys() != expected.keys():
            raise ValueError(f"{name}: {sorted(mine)} on the device, {sorted(expected)} on the host")
        norm = norm_of_all(expected.values())
        found[name] = max(relative_difference(to_host(mine[key]), expected[key], norm) for key in expected)
    return found


def copied(inputs, like):
    """The same inputs, arrays and dicts of arrays as copies in the library of `like`."""
    if isinstance(inputs, dict):
        return {name: copied(thing, like) for name, thing in inputs.items()}
    return to_device(inputs.copy(), like)


def flat(result, name="y"):
    """All arrays in nested tuples, lists and dicts, by a name that says where they were. Numbers count as arrays."""
    if isinstance(result, dict):
        return {f"{name}.{key}": x for part, thing in result.items() for key, x in flat(thing, part).items()}
    if isinstance(result, (tuple, list)):
        return {f"{name}.{key}": x for k, thing in enumerate(result) for key, x in flat(thing, str(k)).items()}
    if result is None:
        return {}
    return {name: result if hasattr(result, "dtype") else np.asarray(result)}


# The operators, as functions of arrays by name


def both_ways(forward, backward):
    """An operator and its backward: y, and all gradients for dy."""
    def operator(dy, **inputs):
        y, saved = forward(**inputs)
        return {"y": y, "gradients": backward(dy, saved)}
    return operator


def of_layer(forward, backward):
    """The same for what takes its parameters as a dict."""
    def operator(x, dy, parameters):
        y, saved = forward(x, parameters)
        return {"y": y, "gradients": backward(dy, saved)}
    return operator


def operators(dtype="float64"):
    """{name: (operator, its inputs: host arrays, or dicts of them, by name)}"""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape).astype(dtype)
    ids = lambda below: rng.integers(0, below, (B, S))
    matrix, bias, x = draw(H, H), draw(H), draw(B, S, H)
    queries, keys, values = draw(B, S, 2, 3, 4), draw(B, S, 2, 4), draw(B, S, 2, 4)
    dropped = attention.Dropout(0.3, (1,), range(B), range(6))
    attend = lambda f, causal: lambda q, k, v: f(q, k, v, causal=causal, dropout=dropped)
    qkv = {"q": queries, "k": keys, "v": values, "dy": draw(*queries.shape)}
    norm = {"x": x, "w": draw(H), "b": bias, "dy": draw(B, S, H)}
    dense = {"x": x, "w": matrix, "b": bias, "dy": draw(B, S, H)}
    found = {
        "relu": (both_ways(activations.relu, activations.relu_backward), {"x": x, "dy": draw(B, S, H)}),
        "gelu": (both_ways(activations.gelu, activations.gelu_backward), {"x": x, "dy": draw(B, S, H)}),
        "swiglu": (both_ways(activations.swiglu, activations.swiglu_backward), {"x": x, "dy": draw(B, S, H // 2)}),
        "linear": (both_ways(layers.linear, layers.linear_backward), dense),
        "layer norm": (both_ways(norms.layer_norm, norms.layer_norm_backward), norm),
        "rms norm": (both_ways(norms.rms_norm, norms.rms_norm_backward), {k: norm[k] for k in ("x", "w", "dy")}),
        "rope": (both_ways(lambda x: rope.rope(x, range(S)), rope.rope_backward),
                 {"x": draw(B, S, 3, 4), "dy": draw(B, S, 3, 4)}),
        "dropout": (both_ways(lambda x: dropout.dropout(x, 0.3, (1,), (range(B), range(S), range(H))),
                              dropout.dropout_backward), {"x": x, "dy": draw(B, S, H)}),
        "embedding": (both_ways(embedding.embedding, embedding.embedding_backward),
                      {"ids": ids(V), "w": draw(V, H), "dy": draw(B, S, H)}),
        "unembedding": (both_ways(embedding.unembedding, embedding.unembedding_backward),
                        {"x": x, "w": draw(V, H), "dy": draw(B, S, V)}),
        "mlp": (of_layer(mlp.forward, mlp.backward),
                {"x": x, "dy": draw(B, S, H), "parameters": mlp.init(rng, H, 10, dtype=dtype)}),
        "attention": (both_ways(attend(attention.attention, True), attention.attention_backward), qkv),
        "attention, all keys": (both_ways(attend(attention.attention, False), attention.attention_backward), qkv),
        "blockwise attention": (both_ways(attend(blockwise.blockwise_attention, True),
                                          blockwise.blockwise_attention_backward), qkv),
        "cross-entropy": (cross_entropy, {"logits": draw(B, S, V), "targets": ids(V + 1) - 1}),
        "softmax cross-entropy": (softmax_cross_entropy, {"logits": draw(B, V), "targets": ids(V)[:, 0]}),
        "scatter-add": (lambda index, values: add_at_(0 * values[:V], index, values),
                        {"index": rng.integers(0, V, 40), "values": draw(40, H)}),
        "adam": (adam_steps, {"parameter": draw(H, H), "gradient": draw(H, H)}),
    }
    for name, config in (("gpt2", GPT2), ("llama", LLAMA), ("mixture of experts", MOE)):
        weights = {key: draw(*shape) * shape[0] ** -0.5 for key, shape in block_shapes(config).items()}
        found[f"block, {name}"] = one_block(config), {"x": x, "dy": draw(B, S, H), "parameters": weights}
        weights = {key: draw(*shape) * shape[0] ** -0.5 for key, shape in shapes(config).items()}
        whole = {"tokens": ids(V), "targets": ids(V), "parameters": weights}
        found[f"model, {name}"] = one_model(config), whole
        if not config.experts:
            found[f"data-parallel, {name}"] = data_parallel(config), whole
            found[f"tensor-parallel, {name}"] = model_cut(config), whole
    experts = {key: draw(*shape) * 0.2 for key, shape in expert_shapes(MOE).items()}
    found["mixture of experts"] = one_mixture, {"x": x, "dy": draw(B, S, H), "parameters": experts}
    whole = mlp.init(rng, H, 10, dtype=dtype)
    found["tensor-parallel mlp"] = tensor_parallel, {"x": x, "dy": draw(B, S, H), "parameters": whole}
    for name, kind in (("tensor", tensor), ("sequence", sequence)):
        found[f"{name}-parallel pair"] = pair(kind), {"x": x, "dy": draw(B, S, H), "w1": matrix, "w2": draw(H, H)}
    return found


def cross_entropy(logits, targets):
    """Total, count, gradient."""
    total, count, saved = loss.cross_entropy(logits, targets, smoothing=0.1)
    return {"total": total, "count": count, "dlogits": loss.cross_entropy_backward(0.5, saved)}


def softmax_cross_entropy(logits, targets):
    """Mean loss, gradient."""
    mean, saved = loss.softmax_cross_entropy(logits, targets)
    return {"mean": mean, "dlogits": loss.softmax_cross_entropy_backward(1.0, saved)}


def adam_steps(parameter, gradient):
    """Two steps."""
    memory = adam.moments(parameter)
    for step in (1, 2):
        adam.update(parameter, step * gradient, memory, step, adam.Adam(decay=0.1))
    return {"parameter": parameter, "m": memory.m, "v": memory.v}


def one_block(config):
    """A layer of the model."""
    def operator(x, dy, parameters):
        y, saved = block.forward(x, parameters, config, layer=1)
        return {"y": y, "gradients": block.backward(dy, saved, 0.5)}
    return operator


def one_mixture(x, dy, parameters):
    """The experts of a layer."""
    y, saved = moe.forward(x, parameters, MOE)
    return {"y": y, "gradients": moe.backward(dy, saved, 0.5)}


def one_model(config):
    """The model and its loss."""
    def operator(tokens, targets, parameters):
        total, count, saved = transformer.loss(tokens, targets, parameters, config)
        return {"total": total, "count": count, "gradients": transformer.loss_backward(0.1, saved)}
    return operator


# On ranks of this process


def data_parallel(config):
    """The model on 2 ranks, each with a sequence, gradients summed in buckets."""
    def operator(tokens, targets, parameters):
        def program(comm):
            mine = slice(comm.rank, comm.rank + 1)
            place = transformer.Place(range(B)[mine], range(S), range(config.heads), 3, 2)
            buckets = data.plan({name: p.size for name, p in parameters.items()}, 500)
            step = data.GradientBuckets(parameters, buckets, comm)
            return data.loss_and_gradients([(tokens[mine], targets[mine], place)], parameters, config, step)
        return run(program, B)
    return operator


def model_cut(config):
    """The model on 2 tensor-parallel ranks."""
    def operator(tokens, targets, parameters):
        def program(comm):
            mine = shards.shard(parameters, config, comm.rank, comm.size)
            place = transformer.Place(range(B), range(S), range(config.heads), 3, 2)
            total, count, saved = parallel.loss(tokens, targets, mine, config, comm, place)
            return {"total": total, "count": count, "gradients": parallel.loss_backward(0.1, saved)}
        return run(program, 2)
    return operator


def tensor_parallel(x, dy, parameters):
    """An MLP on 3 ranks."""
    def program(comm):
        y, saved = tensor.mlp_forward(x, tensor.shard_mlp(parameters, comm.rank, comm.size), comm)
        return {"y": y, "gradients": tensor.mlp_backward(dy, saved)}
    return run(program, 3)


def pair(kind):
    """Two linear layers on 2 ranks, of `tensor`, or of `sequence`, where positions are cut outside of them."""
    def operator(x, dy, w1, w2):
        def program(comm):
            half = slice(comm.rank * H // 2, (comm.rank + 1) * H // 2)
            mine = sequence.own(S, comm.rank, comm.size) if kind is sequence else slice(None)
            z, first = kind.column_parallel(x[:, mine].copy(), w1[:, half].copy(), None, comm)
            y, second = kind.row_parallel(z, w2[half].copy(), None, comm)
            dz, *gradients = kind.row_parallel_backward(dy[:, mine].copy(), second)
            return {"y": y, "gradients": [gradients, kind.column_parallel_backward(dz, first)]}
        return run(program, 2)
    return operator
