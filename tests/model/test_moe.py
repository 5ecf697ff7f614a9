"""The mixture of experts on one device: against its definition, its gradients against finite differences."""

from dataclasses import replace

import numpy as np
import pytest
from backends import device_array
from drawing import draw, relative
from numpy.testing import assert_allclose, assert_array_equal

from refimpl.arrays import to_host
from refimpl.model import moe
from refimpl.model.config import Config, expert_shapes
from refimpl.model.finite_differences import check_gradients
from refimpl.precision import narrow, wide

LLAMA = Config("llama", 5, 6, 1, 3, ffn=5, experts=4, top_k=2)
GPT2 = Config("gpt2", 5, 6, 1, 3, ffn=5, context=9, dropout=0.2, experts=3, shared_experts=2, expert_ffn=3)
CONFIGS = {
    "dropless": LLAMA,
    "softmax last, balance": replace(LLAMA, router="topk-softmax", balance=0.3),
    "sigmoid, bias, shared": replace(LLAMA, router="sigmoid", bias_rate=0.1, balance=0.01, shared_experts=1),
    "capacity": replace(LLAMA, capacity_factor=0.75, balance=0.2),
    "capacity by probability": replace(LLAMA, router="topk-softmax", capacity_factor=1, drop="probability"),
    "switch": replace(LLAMA, top_k=1, capacity_factor=1.25, balance=0.01),
    "all experts": replace(LLAMA, top_k=4), "one expert": replace(LLAMA, experts=1, top_k=1),
    "gpt2": GPT2, "gpt2 with capacity": replace(GPT2, capacity_factor=0.5, top_k=2, balance=0.1),
}
by_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def example(xp, config, b=2, s=5, seed=0):
    """x, parameters (perhaps with a bias), dy: none of them 0 or 1."""
    p = {name: draw(xp, *shape, seed=i + seed, scale=shape[-2] ** -0.5)
         for i, (name, shape) in enumerate(expert_shapes(config).items())}
    if config.bias_rate:
        p["bias"] = draw(xp, config.experts, scale=0.1)
    return draw(xp, b, s, config.hidden, seed=seed), p, draw(xp, b, s, config.hidden, seed=seed + 1)


def definition(x, p, config):
    """Token by token: y, and how many chose and were taken by each expert. In the order of the positions."""
    p = {name: to_host(a) for name, a in p.items()}

    def expert(x, w1, w2):
        if config.family == "llama":
            gate, up = x @ w1[:, 0], x @ w1[:, 1]
            return (gate / (1 + np.exp(-gate)) * up) @ w2
        z = x @ w1
        return (z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))) @ w2

    x, E, k = to_host(x), config.experts, config.top_k
    b, s, _ = x.shape
    y, load, kept = np.zeros_like(x), np.zeros(E, int), np.zeros(E, int)
    for i in range(b):
        wants = []
        for t in range(s):
            z = x[i, t] @ p["router"]
            score = 1 / (1 + np.exp(-z)) if config.router == "sigmoid" else np.exp(z) / np.exp(z).sum()
            ranked = (z if config.router == "topk-softmax" else score) + p.get("bias", 0)
            chosen = np.argsort(-ranked, kind="stable")[:k]
            weights = score[chosen] / (1 if config.router == "softmax-topk" else score[chosen].sum())
            wants += [(e, t, w) for e, w in zip(chosen, weights, strict=True)]
        for e in range(E):
            mine = [(t, w) for expert_, t, w in wants if expert_ == e]
            load[e] += len(mine)
            if config.capacity_factor is not None:
                mine.sort(key=lambda want: -want[1] if config.drop == "probability" else want[0])
                mine = mine[:min(s, int(np.ceil(k * s / E * config.capacity_factor)))]
            kept[e] += len(mine)
            for t, w in mine:
                y[i, t] += w * expert(x[i, t], p["w1"][e], p["w2"][e])
    if config.shared_experts:
        f = config.expert_ffn
        for n in range(config.shared_experts):                         # one by one: as one MLP they must be the same
            part = slice(n * f, n * f + f)
            y += expert(x, p["shared.w1"][..., part], p["shared.w2"][part])
    return y, load, kept


@by_config
def test_forward_is_the_definition(xp, config):
    x, p, _ = example(xp, config, s=7)
    y, saved = moe.forward(x, p, config)
    expected, load, kept = definition(x, p, config)
    assert relative(y, expected) < 1e-14
    assert_array_equal(to_host(saved.routed.load), load)
    assert_array_equal(to_host(saved.routed.kept), kept)
    assert load.sum() == 14 * config.top_k and (kept < load).any() == (config.capacity_factor is not None)


def objective(config, dy, scale):
    def loss(x, bias=None, **p):
        y, saved = moe.forward(x, p | ({} if bias is None else {"bias": bias}), config)
        return (y * dy).sum() + scale * saved.routed.balance
    return loss


def dotted(p):
    """Names for keyword arguments, and back."""
    return {name.replace(".", "_"): a for name, a in p.items()}


@by_config
def test_backward_agrees_with_finite_differences(config):
    x, p, dy = example(np, config)
    scale = 0.7
    _, saved = moe.forward(x, p, config)
    dx, gradients = moe.backward(dy, saved, scale)
    assert gradients.keys() == p.keys() - {"bias"}
    loss = objective(config, dy, scale)
    back = {name.replace(".", "_"): name for name in p}
    check_gradients(lambda x, **q: loss(x, **{back[name]: a for name, a in q.items()}), {"x": x, **dotted(p)},
                    {"x": dx, **dotted(gradients)})


@by_config
def test_the_halves_of_backward_make_the_whole_bitwise(xp, config):
    x, p, dy = example(xp, config)
    _, saved = moe.forward(x, p, config)
    dx, pending = moe.backward_input(dy, saved, 0.5)
    whole_dx, whole = moe.backward(dy, saved, 0.5)
    assert_array_equal(to_host(dx), to_host(whole_dx))
    for name, gradient in moe.backward_weight(pending).items():
        assert_array_equal(to_host(gradient), to_host(whole[name]))


def test_A26_a_dropped_token_gets_0_and_teaches_its_expert_nothing(xp):
    """5 tokens want expert 0, which takes 4: the fifth adds nothing to the residual stream."""
    config = Config("llama", 5, 4, 1, 2, ffn=3, experts=4, top_k=1, capacity_factor=1, min_capacity=4)
    x, p, dy = example(xp, config, b=1)
    p["router"] = device_array(xp, np.zeros((4, 4)))                              # equal scores: the lowest index
    y, saved = moe.forward(x, p, config)
    assert to_host(saved.routed.load).tolist() == [5, 0, 0, 0] and to_host(saved.routed.kept).tolist() == [4, 0, 0, 0]
    assert to_host(y)[0, :4].any(axis=-1).all() and not to_host(y)[0, 4].any()
    dx, gradients = moe.backward(dy, saved)
    shorter, kept = moe.forward(x[:, :4], p, config)
    _, of_four = moe.backward(dy[:, :4], kept)
    for name in ("w1", "w2"):
        assert relative(gradients[name], of_four[name]) < 1e-14
        assert not to_host(gradients[name])[1:].any()                          # experts without tokens: 0, not missing
    assert not to_host(dx)[0, 4].any()


@by_config
def test_what_is_dropped_and_balanced_goes_by_positions_wherever_they_lie(xp, config):
    order = [0, 5, 1, 4, 3, 2]
    x, p, dy = example(xp, config, s=6)
    y, saved = moe.forward(x, p, config)
    dx, gradients = moe.backward(dy, saved, 0.5)
    y2, saved2 = moe.forward(x[:, order], p, config, order)
    dx2, gradients2 = moe.backward(dy[:, order], saved2, 0.5)
    assert relative(y2, to_host(y)[:, order]) < 1e-14 and relative(dx2, to_host(dx)[:, order]) < 1e-13
    for name in gradients:
        assert relative(gradients2[name], gradients[name]) < 1e-13


@pytest.mark.parametrize(("positions", "says"), [
    (range(4), "x has 5 tokens a sequence, and positions are 4 numbers, 4 of them different"),
    ([0], "positions are 1 numbers"), (range(6), "positions are 6 numbers"),
    ([0, 1, 2, 3, 3], "5 numbers, 4 of them different; expected one for each token")])
def test_every_token_has_a_position_of_its_own(positions, says):
    """Else the room of an expert would go to nobody, or to the same token twice."""
    config = Config("gpt2", 11, 6, 1, 2, experts=3, top_k=2, expert_ffn=4, capacity_factor=0.5)
    parameters = {name: np.ones(shape) for name, shape in expert_shapes(config).items()}
    with pytest.raises(ValueError, match=says):
        moe.forward(np.ones((2, 5, 6)), parameters, config, positions)


@by_config
def test_a_sequence_does_not_know_the_others(xp, config):
    """Capacity and balance are per sequence: micro-batches and data-parallel ranks may split them at will."""
    x, p, dy = example(xp, config, b=3)
    y, saved = moe.forward(x, p, config)
    parts = [moe.forward(x[i:i + 1], p, config) for i in range(3)]
    assert relative(y, np.concatenate([to_host(part) for part, _ in parts])) < 1e-14
    for field in moe.Routed._fields:
        total = sum(to_host(getattr(kept.routed, field)) for _, kept in parts)
        assert_allclose(total, to_host(getattr(saved.routed, field)), rtol=1e-14)
    _, whole = moe.backward(dy, saved, 0.5)
    each = [moe.backward(dy[i:i + 1], kept, 0.5)[1] for i, (_, kept) in enumerate(parts)]
    for name in whole:
        assert relative(sum(to_host(g[name]) for g in each), whole[name]) < 1e-13


def test_the_balance_is_its_coefficient_a_token_where_the_load_is_equal():
    """4 experts, each token prefers another one: f is 1, and p sums to 1."""
    config = replace(LLAMA, hidden=4, heads=1, kv_heads=1, balance=0.25, top_k=1)
    _, p, _ = example(np, config)
    x = np.tile(np.eye(4), (3, 2, 1))
    _, saved = moe.forward(x, p | {"router": 2 * np.eye(4)}, config)
    assert_allclose(saved.routed.balance, 0.25 * 3 * 8, rtol=1e-15)
    _, skewed = moe.forward(np.ones((3, 8, 4)), p | {"router": 2 * np.eye(4)[:, ::-1] + [3, 0, 0, 0]}, config)
    assert skewed.routed.balance > 0.25 * 3 * 8


@by_config
@pytest.mark.parametrize(("b", "s"), [(0, 3), (2, 0)])
def test_nothing_in_nothing_out_and_gradients_of_0(xp, config, b, s):
    x, p, dy = example(xp, config, b, s)
    y, saved = moe.forward(x, p, config)
    dx, gradients = moe.backward(dy, saved, 0.5)
    assert y.shape == dx.shape == (b, s, config.hidden) and to_host(saved.routed.balance) == 0
    assert {name: g.shape for name, g in gradients.items()} == expert_shapes(config)
    assert not any(to_host(g).any() for g in gradients.values())


@by_config
@pytest.mark.parametrize(("dtype", "bounds"), [("float32", (1e-5, 1e-4)), ("float16", (5e-3, 5e-3)),
                                               ("bfloat16", (2e-2, 2e-2))])
def test_the_dtype_stays_and_the_result_is_near_float64(xp, config, dtype, bounds):
    """The same experts are chosen: the router's scores are never rounded to 2 bytes."""
    stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    x, p, dy = example(np, config, s=6)
    rounded = {name: narrow(a.astype("float32"), stored) for name, a in (p | {"x": x, "dy": dy}).items()}
    given = {name: device_array(xp, a) for name, a in rounded.items()}
    exact = {name: wide(a).astype("float64") for name, a in rounded.items()}
    if config.bias_rate:
        given["bias"], exact["bias"] = device_array(xp, p["bias"].astype("float32")), p["bias"]
    results = []
    for arrays in (given, exact):
        arrays = dict(arrays)
        x, dy = arrays.pop("x"), arrays.pop("dy")
        y, saved = moe.forward(x, arrays, config)
        dx, gradients = moe.backward(dy, saved, 0.25)
        results.append((y, {"x": dx} | gradients, saved.routed))
    (y, found, report), (y_exact, expected, _) = results
    assert y.dtype == stored and {g.dtype for g in found.values()} == {stored}
    assert to_host(report.balance).dtype == np.float32
    assert relative(wide(to_host(y)), y_exact) < bounds[0]
    every = np.sqrt(sum(np.linalg.norm(g) ** 2 for g in expected.values()))
    for name, want in expected.items():
        error = np.linalg.norm(wide(to_host(found[name])) - want) / max(np.linalg.norm(want), 1e-3 * every)
        assert error < bounds[1], name
