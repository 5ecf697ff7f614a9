"""The meter counts what is held, and what a layer holds is what the papers say: with ==."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from backends import device_array
from drawing import draw, draw_integers

from refimpl.cost import memory
from refimpl.measure.meter import Meter, held_bytes
from refimpl.model import block
from refimpl.model import transformer as T
from refimpl.model.config import Config, block_shapes


class Aside(NamedTuple):
    x: object
    kind = "aside"


# What counts.

def test_arrays_are_found_in_any_container(xp):
    x, y = xp.zeros(3), xp.zeros((2, 5), np.float16)
    others = None, 3.0, np.float64(3), "text", range(5), np.dtype("f4"), np.float16, len
    assert held_bytes(saved={"a": [x, (y, *others)]}) == {"saved": 44}
    assert held_bytes(saved=x, other=[]) == {"saved": 24, "other": 0}


def test_views_count_once_and_as_what_they_keep_alive(xp):
    x = xp.zeros((4, 6))
    row, corner = x[1], x.reshape(24)[:6].reshape(2, 3).T[:1]
    assert held_bytes(saved=[row, corner]) == {"saved": 192}
    assert held_bytes(saved=[x[2:], x, x]) == {"saved": 192}
    assert held_bytes(saved=[row.copy(), corner.copy()]) == {"saved": 48 + 16}


def test_equal_contents_are_not_the_same_memory(xp):
    assert held_bytes(saved=[xp.zeros(3), xp.zeros(3)]) == {"saved": 48}


def test_no_elements_weigh_nothing(xp):
    assert held_bytes(saved=[xp.zeros((0, 3)), xp.zeros((0, 3))]) == {"saved": 0}


def test_memory_of_two_kinds_counts_as_the_first(xp):
    w, x = xp.zeros(5), xp.zeros(7)
    assert held_bytes(parameters={"w": w}, saved=(x, w[:2])) == {"parameters": 40, "saved": 56}
    assert held_bytes(saved=(x, w[:2]), parameters={"w": w}) == {"saved": 96, "parameters": 0}


def test_a_named_tuple_may_name_its_kind(xp):
    assert held_bytes(saved=(xp.zeros(1), Aside(xp.zeros(2)), xp.zeros(4))) == {"saved": 40, "aside": 16}


def test_peaks_are_of_each_kind_and_of_all_together():
    saved, gradients = [], {}
    meter = Meter(saved=saved, gradients=gradients)
    assert meter.sample() == {"saved": 0, "gradients": 0}
    saved.append(np.zeros(10))
    assert meter.sample() == meter.live == {"saved": 80, "gradients": 0}
    gradients["w"] = np.zeros(4)
    saved[0] = np.zeros(8)
    meter.sample()
    saved.clear()
    gradients["w"] = np.zeros(5)
    assert meter.sample() == {"saved": 0, "gradients": 40}
    assert meter.peak == {"saved": 80, "gradients": 40}                    # each at its own time
    assert meter.total_peak == 96 and meter.at_peak == {"saved": 64, "gradients": 32}


# What a layer keeps.

SIZES = [(6, 3, 8, 2), (5, 1, 12, 3), (1, 2, 4, 1), (16, 2, 8, 8)]        # s, b, h, a: odd ones, one position, one head


def kept(xp, config, s, b, dtype="float16"):
    p = {name: device_array(xp, draw(np, *shape, seed=i, scale=0.3, dtype=dtype))
         for i, (name, shape) in enumerate(block_shapes(config).items())}
    x = draw(xp, b, s, config.hidden, dtype=dtype)
    _, saved = block.forward(x, p, config)
    found = held_bytes(parameters=p, saved=saved)
    assert found.pop("parameters") == sum(x.nbytes for x in p.values())
    return found


@pytest.mark.parametrize(("s", "b", "h", "a"), SIZES)
def test_a_gpt2_layer_in_float16_keeps_what_korthikanti_et_al_count(xp, s, b, h, a):
    """Table 2 of arXiv 2205.05198: s b h (34 + 5 a s/h); recomputed selectively 34 s b h, in full 2 s b h."""
    config = Config("gpt2", 5, h, 1, a, context=s, dropout=0.1)
    statistics = {"statistics": 4 * 2 * 2 * s * b}                        # two norms, mean and scale, float32
    assert kept(xp, config, s, b) == {"saved": 34 * s * b * h + 5 * a * s * s * b} | statistics
    assert kept(xp, replace(config, recompute="selective"), s, b) == {"saved": 34 * s * b * h} | statistics
    assert kept(xp, replace(config, recompute="full"), s, b) == {"saved": 2 * s * b * h}


@pytest.mark.parametrize(("s", "b", "h", "a"), SIZES)
def test_its_parts_are_those_of_the_paper(s, b, h, a):
    """Attention 11 s b h + 5 a s^2 b, MLP 19 s b h, two norms 4 s b h: which is which, by what is kept where."""
    config = Config("gpt2", 5, h, 1, a, context=s, dropout=0.1)
    p = {name: draw(np, *shape, dtype="float16") for name, shape in block_shapes(config).items()}
    _, (norm1, wqkv, core, wo, drop1, norm2, mlp, drop2) = block.forward(draw(np, b, s, h, dtype="float16"), p, config)
    sbh = s * b * h
    count = lambda *parts: held_bytes(parameters=p, saved=parts)["saved"]
    assert count(norm1, norm2) == 4 * sbh
    assert count(wqkv, core, wo, drop1) == 11 * sbh + 5 * a * s * s * b
    assert count(mlp, drop2) == 19 * sbh
    assert (count(wqkv), count(core), count(wo), count(drop1)) == (2 * sbh, 6 * sbh + 5 * a * s * s * b, 2 * sbh, sbh)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("attention", ["naive", "blockwise"])
@pytest.mark.parametrize("options", [
    {"family": "gpt2", "dropout": 0.1}, {"family": "gpt2", "ffn": 7}, {"family": "gpt2", "dropout": 0.1, "kv_heads": 2},
    {"family": "llama"}, {"family": "llama", "kv_heads": 2, "ffn": 9}, {"family": "llama", "kv_heads": 1}])
def test_what_any_layer_keeps_equals_the_formula(xp, options, attention, recompute, dtype):
    s, b, h, a = 5, 3, 24, 4
    c = Config(vocabulary=5, hidden=h, layers=1, heads=a, attention=attention, recompute=recompute, **options)
    item, llama = np.dtype(dtype).itemsize, c.family == "llama"
    saved = memory.layer_activations(s, b, h, a, recompute=recompute, kv_heads=c.kv_heads, ffn=c.ffn, gated=llama,
                                     dropout=c.dropout > 0, blockwise=attention == "blockwise", item=item)
    statistics = memory.layer_statistics(s, b, recompute=recompute, norm="rms" if llama else "layer", item=item)
    found = kept(xp, c, s, b, dtype)
    assert (found["saved"], found.get("statistics", 0)) == (saved, statistics)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_whole_model_keeps_its_layers_a_mask_and_the_head(family, recompute):
    """Korthikanti et al., section 4.3: embedding dropout s b h, last norm 2 s b h, head 2 s b h, logits 4 s b V."""
    s, b, h, a, V, L = 6, 2, 8, 2, 11, 3
    c = Config(family, V, h, L, a, context=s, dropout=0.1 if family == "gpt2" else 0.0, recompute=recompute)
    p = T.init(c, np.random.default_rng(0), "float16")
    tokens, targets = draw_integers(np, b, s, below=V), draw_integers(np, b, s, below=V, seed=1)
    _, _, saved = T.loss(tokens, targets, p, c)
    gpt2 = family == "gpt2"
    layer = memory.layer_activations(s, b, h, a, recompute=recompute, ffn=c.ffn, gated=not gpt2, dropout=gpt2)
    found = held_bytes(parameters=p, inputs=(tokens, targets), saved=saved)
    assert found["saved"] == L * layer + (s * b * h if gpt2 else 0) + 4 * s * b * h + 4 * s * b * V


def test_the_peak_of_a_training_step_is_at_the_end_of_forward(xp):
    """Layer by layer, as a run does it: saved activations grow in forward and go in backward, gradients come."""
    c = Config("gpt2", 5, 8, 3, 2, context=6, dropout=0.1)
    p = {name: device_array(xp, x) for name, x in T.init(c, np.random.default_rng(0), "float16").items()}
    saved, gradients = [], {}
    meter = Meter(parameters=p, gradients=gradients, saved=saved)
    x = draw(xp, 2, 6, 8, dtype="float16")
    for layer in range(3):
        x, mine = T.block_forward(x, T.of_block(p, layer), c, layer)
        saved.append(mine)
        meter.sample()
    layer = memory.layer_activations(6, 2, 8, 2)
    assert meter.live["saved"] == 3 * layer
    for layer_number in reversed(range(3)):
        x, mine = T.block_backward(x, saved.pop())
        gradients |= {f"blocks.{layer_number}.{name}": g for name, g in mine.items()}
        meter.sample()
    blocks = 2 * 3 * sum(memory.layer_parameters(8, 2).values())
    assert meter.live["saved"] == 0 and meter.live["gradients"] == blocks
    assert meter.peak["saved"] == 3 * layer
    assert meter.at_peak["gradients"] == (0 if meter.at_peak["saved"] == 3 * layer else blocks // 3)
