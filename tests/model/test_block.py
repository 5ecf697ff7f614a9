"""One layer: its backward against finite differences, in both families, with and without recomputation."""

from dataclasses import replace

import numpy as np
import pytest
from backends import device_array
from drawing import draw, relative
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model import block
from refimpl.model.config import Config, block_shapes
from refimpl.model.finite_differences import check_gradients

GPT2 = Config("gpt2", 5, 4, 1, 2, ffn=5, context=9, dropout=0.3)
LLAMA = Config("llama", 5, 8, 1, 4, kv_heads=2, ffn=5)
CONFIGS = {"gpt2": GPT2, "gpt2 without dropout": replace(GPT2, dropout=0.0), "gpt2 grouped": replace(GPT2, kv_heads=1),
           "gpt2 one head": replace(GPT2, heads=1, kv_heads=1), "llama": LLAMA,
           "llama one key head": replace(LLAMA, hidden=16, kv_heads=1, rope_base=7.0, epsilon=0.1)}


def parameters(xp, config, dtype="float64"):
    """None of them 0 or 1, so that none can hide."""
    return {name: device_array(xp, (to_host(draw(np, *shape, seed=i, scale=0.5)) + ("norm" in name and name[-1] == "w"))
                               .astype(dtype)) for i, (name, shape) in enumerate(block_shapes(config).items())}


def example(xp, config, b=2, s=3):
    return draw(xp, b, s, config.hidden), parameters(xp, config), draw(xp, b, s, config.hidden, seed=1)


def definition(x, p, config):
    """A layer without dropout, head by head, as the papers write it."""
    gpt2, d, g = config.family == "gpt2", config.head, config.group
    s, p = x.shape[1], {name: to_host(a) for name, a in p.items()}

    def normed(x, name):
        x = x - x.mean(-1, keepdims=True) if gpt2 else x
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.epsilon) * p[name + ".w"] + p.get(name + ".b", 0)

    def turned(x):                                               # (b, s, d), as complex numbers
        angle = np.outer(np.arange(s), config.rope_base ** (-2 * np.arange(d // 2) / d))
        z = (x[..., :d // 2] + 1j * x[..., d // 2:]) * np.exp(1j * angle)
        return np.concatenate([z.real, z.imag], -1)

    n1, contexts = normed(x, "norm1"), []
    for head in range(config.heads):
        group, member = divmod(head, g)                          # of each group: its queries, then its key and value
        q, k, v = (n1 @ p["attention.wqkv"][:, group, part] + (p["attention.bqkv"][group, part] if gpt2 else 0)
                   for part in (member, g, g + 1))
        q, k = (q, k) if gpt2 else (turned(q), turned(k))
        weights = np.exp(q @ k.swapaxes(1, 2) / d**0.5) * np.tri(s)
        contexts.append(weights / weights.sum(-1, keepdims=True) @ v)
    x = x + np.concatenate(contexts, -1) @ p["attention.wo"] + p.get("attention.bo", 0)
    n2, w1 = normed(x, "norm2"), p["mlp.w1"]
    if gpt2:
        z = n2 @ w1 + p["mlp.b1"]
        a = z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    else:
        gate, up = n2 @ w1[:, 0], n2 @ w1[:, 1]
        a = gate / (1 + np.exp(-gate)) * up
    return x + a @ p["mlp.w2"] + p.get("mlp.b2", 0)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_forward_is_the_definition(xp, config):
    """Epsilon and the base of the rotation are those of the config: a backward that errs alike would not notice."""
    config = replace(config, dropout=0.0, epsilon=0.1, rope_base=7.0)
    x, p, _ = example(xp, config, s=5)
    assert relative(block.forward(x, p, config)[0], definition(to_host(x), p, config)) < 1e-14


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(("b", "s"), [(2, 3), (1, 1)])
def test_backward_agrees_with_finite_differences(xp, config, b, s):
    x, p, dy = example(xp, config, b, s)
    place = block.whole(x, config, seed=3, step=2)
    y, saved = block.forward(x, p, config, 1, place)
    assert y.shape == x.shape
    dx, gradients = block.backward(dy, saved)
    assert gradients.keys() == p.keys()
    check_gradients(lambda x, **p: (block.forward(x, p, config, 1, place)[0] * dy).sum(), {"x": x, **p},
                    {"x": dx, **gradients})


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize(("b", "s"), [(0, 3), (2, 0)])
def test_nothing_in_nothing_out_and_gradients_of_0(xp, config, b, s):
    for how in ({}, {"attention": "blockwise"}, {"recompute": "full"}):
        x, p, dy = example(xp, config, b, s)
        y, saved = block.forward(x, p, replace(config, **how))
        dx, gradients = block.backward(dy, saved)
        assert y.shape == dx.shape == (b, s, config.hidden)
        assert {name: g.shape for name, g in gradients.items()} == block_shapes(config)
        assert not any(to_host(g).any() for g in gradients.values())


@pytest.mark.parametrize("attention", ["naive", "blockwise"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_recomputation_gives_the_same_bits(xp, config, recompute, attention):
    """A15: and the dropout masks of the first forward, without keeping them."""
    config = replace(config, attention=attention)
    x, p, dy = example(xp, config)
    place = block.whole(x, config, seed=3, step=2)
    y, saved = block.forward(x, p, config, 1, place)
    dx, gradients = block.backward(dy, saved)
    y2, saved2 = block.forward(x, p, replace(config, recompute=recompute), 1, place)
    dx2, gradients2 = block.backward(dy, saved2)
    for mine, other in [(y2, y), (dx2, dx), *((gradients2[name], gradients[name]) for name in gradients)]:
        assert_array_equal(to_host(mine), to_host(other))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_blockwise_attention_gives_the_same_numbers(xp, config):
    x, p, dy = example(xp, config)
    y, saved = block.forward(x, p, config)
    dx, gradients = block.backward(dy, saved)
    y2, saved2 = block.forward(x, p, replace(config, attention="blockwise"))
    dx2, gradients2 = block.backward(dy, saved2)
    norm = np.sqrt(sum(np.linalg.norm(to_host(g)) ** 2 for g in gradients.values()))
    assert relative(y2, y) < 1e-14 and relative(dx2, dx) < 1e-13
    for name in gradients:                                     # the key bias has no gradient in truth: see design.md
        assert np.linalg.norm(to_host(gradients2[name]) - to_host(gradients[name])) < 1e-13 * norm


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_the_halves_of_backward_make_the_whole_bitwise(xp, config, recompute):
    x, p, dy = example(xp, config)
    _, saved = block.forward(x, p, replace(config, recompute=recompute))
    dx, pending = block.backward_input(dy, saved)
    whole_dx, whole = block.backward(dy, saved)
    assert_array_equal(to_host(dx), to_host(whole_dx))
    halves = block.backward_weight(pending)
    assert halves.keys() == whole.keys()
    for name in whole:
        assert_array_equal(to_host(halves[name]), to_host(whole[name]))


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_the_future_does_not_change_the_past(xp, config):
    x, p, _ = example(xp, config, s=5)
    y, _ = block.forward(x, p, config)
    start, _ = block.forward(x[:, :3], p, config)
    assert relative(start, to_host(y)[:, :3]) < 1e-14


def test_sequences_can_be_computed_apart_with_the_masks_of_the_whole_batch(xp):
    """Data parallelism, micro-batches: `place` says which sequences of the batch these are."""
    x, p, _ = example(xp, GPT2, b=4)
    whole, _ = block.forward(x, p, GPT2)
    for i in range(4):
        place = replace(block.whole(x[i:i + 1], GPT2), sequences=range(i, i + 1))
        assert relative(block.forward(x[i:i + 1], p, GPT2, place=place)[0], to_host(whole)[i:i + 1]) < 1e-14
    other, _ = block.forward(x[1:2], p, GPT2)                           # as if it were sequence 0
    assert relative(other, to_host(whole)[1:2]) > 0.01


@pytest.mark.parametrize("attention", ["naive", "blockwise"])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_positions_may_lie_in_any_order(xp, config, attention):
    """Zigzag, striped: causality, rotation and masks go by what the positions are, not by where they lie."""
    config = replace(config, attention=attention)
    x, p, dy = example(xp, config, s=6)
    order = [0, 5, 1, 4, 3, 2]
    y, saved = block.forward(x, p, config)
    dx, gradients = block.backward(dy, saved)
    y2, saved2 = block.forward(x[:, order], p, config, place=replace(block.whole(x, config), positions=order))
    dx2, gradients2 = block.backward(dy[:, order], saved2)
    assert relative(y2, to_host(y)[:, order]) < 1e-14 and relative(dx2, to_host(dx)[:, order]) < 1e-13
    norm = np.sqrt(sum(np.linalg.norm(to_host(g)) ** 2 for g in gradients.values()))
    for name in gradients:
        assert np.linalg.norm(to_host(gradients2[name]) - to_host(gradients[name])) < 1e-13 * norm


def masks(xp, layer=0, **numbers):
    """Of a layer's three sites: attention (b, n, g, s, s), projection and MLP (b, s, h)."""
    x, p, _ = example(xp, GPT2, b=8, s=8)
    _, saved = block.forward(x, p, GPT2, layer, block.whole(x, GPT2, **numbers))
    _, _, core, _, (projection, _), _, _, (mlp, _) = saved
    return [to_host(mask) for mask in (core[0][4], projection, mlp)]


def test_every_site_layer_step_and_seed_has_a_mask_of_its_own(xp):
    first = masks(xp)
    assert [mask.shape for mask in first] == [(8, 2, 1, 8, 8), (8, 8, 4), (8, 8, 4)]
    pairs = [first[1:]]
    for others in (masks(xp, layer=1), masks(xp, step=1), masks(xp, seed=1)):
        pairs += zip(first, others, strict=True)
    for one, other in pairs:
        assert 0.3 < (one != other).mean() < 0.54                                     # 2 * 0.3 * 0.7 = 0.42 expected


def test_a_rank_with_some_of_the_heads_has_its_part_of_the_context(xp):
    """What stands between the projections takes any part of wqkv's groups: A14, the cut is along one axis."""
    for config in (GPT2, LLAMA):
        config = replace(config, hidden=12, heads=6, kv_heads=3)
        qkv = draw(xp, 2, 3, 3 * 4 * 2)
        place = block.whole(qkv, config)
        whole, _ = block.attend(qkv, (3, 4, 2), config, 0, place)
        for first, last in ((0, 1), (1, 3)):
            mine = qkv.reshape(2, 3, 3, 8)[:, :, first:last].reshape(2, 3, (last - first) * 8)
            heads = range(2 * first, 2 * last)
            part, _ = block.attend(mine, (last - first, 4, 2), config, 0, replace(place, heads=heads))
            assert_array_equal(to_host(part), to_host(whole)[:, :, 4 * first:4 * last])


@pytest.mark.parametrize("rank", range(4))
def test_A13_a_rank_may_have_one_query_head_of_a_group_and_the_whole_key_head(xp, rank):
    """2 key-value heads, 4 ranks: ranks 0 and 1 share key head 0. Its shard of wqkv says all that attend needs."""
    config = replace(LLAMA, dropout=0.0)
    qkv = draw(xp, 2, 3, 2 * 4 * 2)
    place = block.whole(qkv, config)
    whole, _ = block.attend(qkv, (2, 4, 2), config, 0, place)
    group, member = divmod(rank, 2)
    mine = qkv.reshape(2, 3, 2, 4, 2)[:, :, group, [member, 2, 3]].reshape(2, 3, 6)
    part, _ = block.attend(mine, (1, 3, 2), config, 0, replace(place, heads=range(rank, rank + 1)))
    assert relative(part, to_host(whole)[:, :, 2 * rank:2 * rank + 2]) < 1e-15
