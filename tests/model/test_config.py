"""A transformer's sizes, names and shapes."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from refimpl.cost import memory
from refimpl.model.config import Config, block_shapes, init, of_block, shapes

GPT2 = {"family": "gpt2", "vocabulary": 50257, "hidden": 768, "layers": 12, "heads": 12}
LLAMA = {"family": "llama", "vocabulary": 128256, "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8,
         "ffn": 14336}


def count(config):
    return sum(int(np.prod(shape)) for shape in shapes(config).values())


def test_models_have_the_parameters_that_are_known_of_them():
    """GPT-2 small and XL, Llama 3 8B, Llama 2 70B: as the sums over their published weights."""
    assert count(Config(**GPT2)) == 124_439_808
    assert count(Config("gpt2", 50257, 1600, 48, 25)) == 1_557_611_200
    assert count(Config(**LLAMA)) == 8_030_261_248
    assert count(Config("llama", 32000, 8192, 80, 64, kv_heads=8, ffn=28672)) == 68_976_648_192


@pytest.mark.parametrize("options", [
    GPT2, LLAMA, {**GPT2, "hidden": 15, "heads": 3, "ffn": 7, "layers": 0}, {**GPT2, "kv_heads": 4},
    {"family": "llama", "vocabulary": 7, "hidden": 12, "layers": 3, "heads": 6, "kv_heads": 1}])
def test_shapes_hold_exactly_the_parameters_of_the_formula(options):
    c = Config(**options)
    gpt2 = c.family == "gpt2"
    sizes = c.hidden, c.layers, c.heads, c.vocabulary, c.ffn, c.kv_heads
    options = {"gated": not gpt2, "tied": gpt2, "bias": gpt2, "positions": c.context if gpt2 else 0}
    assert count(c) == memory.parameters(*sizes, **options)["total"]


def test_a_llama_has_neither_biases_nor_positions_and_a_head_of_its_own():
    names = shapes(Config("llama", 11, 8, 2, 4, kv_heads=2, ffn=6))
    assert names["blocks.1.attention.wqkv"] == (8, 2, 4, 2)               # 2 groups of q q k v, 2 features each
    assert names["blocks.1.mlp.w1"] == (8, 2, 6)
    assert names["head.tokens"] == names["embedding.tokens"] == (11, 8)
    assert not [name for name in names if name.rpartition(".")[2].startswith("b") or "positions" in name]


def test_experts_take_the_place_of_the_mlp_and_have_no_biases():
    for family, first in (("gpt2", (12,)), ("llama", (12, 2))):
        c = Config(family, 11, 12, 1, 3, experts=5, top_k=2, expert_ffn=7, shared_experts=2)
        found = {name.removeprefix("moe."): shape for name, shape in block_shapes(c).items() if name[0] == "m"}
        assert found == {"router": (12, 5), "w1": (5, *first, 7), "w2": (5, 7, 12),
                         "shared.w1": (*first, 14), "shared.w2": (14, 12)}
    assert Config("llama", 11, 12, 1, 3, ffn=9, experts=2).expert_ffn == 9


def test_init_draws_what_experts_add_to_the_residual_stream_smaller():
    c = Config("llama", 11, 64, 8, 4, experts=4, expert_ffn=32, shared_experts=1)
    p = init(c, np.random.default_rng(5))
    for name, deviation in (("router", 0.02), ("w1", 0.02), ("w2", 0.005), ("shared.w1", 0.02), ("shared.w2", 0.005)):
        assert abs(p[f"blocks.3.moe.{name}"].std() / deviation - 1) < 0.1


def test_sizes_that_are_not_given_have_their_usual_values():
    gpt2, llama = Config("gpt2", 11, 12, 1, 3), Config("llama", 11, 12, 1, 3)
    assert (gpt2.ffn, gpt2.kv_heads, gpt2.head, gpt2.group, gpt2.tied, gpt2.activation) == (48, 3, 4, 1, True, "gelu")
    assert (llama.ffn, llama.tied, llama.activation) == (32, False, "swiglu")
    assert Config("llama", 11, 8, 1, 2).ffn == 22                         # 8 * 8 / 3 rounded up
    assert Config("llama", 11, 12, 1, 6, kv_heads=2).group == 3


def test_init_is_repeatable_and_as_gpt2_has_it():
    c = Config("gpt2", 300, 64, 8, 4, context=50)
    first, second = (init(c, np.random.default_rng(5), "float32") for _ in range(2))
    assert {name: p.shape for name, p in first.items()} == shapes(c)
    for name, p in first.items():
        assert p.dtype == np.float32
        assert_array_equal(p, second[name])
        if name.rpartition(".")[2].startswith("b"):
            assert not p.any()
        elif "norm" in name:
            assert (p == 1).all()
        else:
            deviation = 0.02 / 4 if name.endswith(("wo", "w2")) else 0.02         # 1/sqrt(2 * 8) of the usual
            assert abs(p.std() / deviation - 1) < 0.1


def test_a_blocks_part_are_the_same_arrays_by_shorter_names():
    c = Config("gpt2", 11, 8, 12, 2)
    p = init(c, np.random.default_rng(0))
    part = of_block(p, 1)
    assert {name: x.shape for name, x in part.items()} == block_shapes(c)         # and none of blocks.10, blocks.11
    assert part["mlp.w1"] is p["blocks.1.mlp.w1"]


@pytest.mark.parametrize(("options", "says"), [
    ({"family": "gpt3"}, "family='gpt3': expected one of gpt2, llama; nearest 'gpt2'"),
    ({"hidden": 20, "heads": 12}, "heads=12 does not divide hidden=20; heads may be 1, 2, 4, 5, 10 or 20"),
    ({"kv_heads": 5}, "kv_heads=5 does not divide heads=12; kv_heads may be 1, 2, 3, 4, 6 or 12"),
    ({"family": "llama", "hidden": 12}, "heads=12 of hidden=12 have 1 features each, and rotary positions need an even "
                                        "number; heads may be 1, 2, 3 or 6"),
    ({"dropout": 1.0}, "dropout=1.0: expected at least 0 and less than 1"),
    ({"family": "llama", "dropout": 0.1}, "dropout=0.1: a Llama-style model has none"),
    ({"attention": "flash"}, "attention='flash': expected one of naive, blockwise"),
    ({"recompute": "all"}, "recompute='all': expected one of none, selective, full; nearest 'full'"),
    ({"vocabulary": 0}, "vocabulary=0: expected 1 or more"),
    ({"layers": -1}, "layers=-1: expected 0 or more"),
    ({"kv_heads": 0}, "kv_heads=0: expected 1 or more"),
    ({"ffn": 0}, "ffn=0: expected 1 or more"),
    ({"context": 0}, "context=0: expected 1 or more"),
    ({"hidden": 768.0}, "hidden=768.0: expected a whole number, 1 or more"),
    ({"heads": "12"}, "heads='12': expected a whole number"),
    ({"epsilon": -1e-5}, "epsilon=-1e-05: expected more than 0; usual is 1e-05"),
    ({"family": "llama", "rope_base": 0.0}, "rope_base=0.0: expected more than 0; usual is 10000"),
    ({"experts": -1}, "experts=-1: expected 0 or more; nearest 0"),
    ({"experts": 4, "top_k": 5}, "top_k=5: there are experts=4, and a token uses each at most once; nearest 4"),
    ({"experts": 4, "top_k": 0}, "top_k=0: expected 1 or more"),
    ({"experts": 4, "router": "topk-softmax"}, "router='topk-softmax' with top_k=1: a single weight is always 1, and "
                                               "the router would not learn; expected router='softmax-topk', or top_k"),
    ({"experts": 4, "router": "sigmoid"}, "router='sigmoid' with top_k=1"),
    ({"router": "softmax"}, "router='softmax': expected one of softmax-topk, topk-softmax, sigmoid; nearest"),
    ({"drop": "random"}, "drop='random': expected one of position, probability"),
    ({"experts": 4, "capacity_factor": 0}, "capacity_factor=0: expected a finite number above 0, such as"),
    ({"experts": 4, "capacity_factor": float("inf")}, "capacity_factor=inf: .* or None to drop nothing"),
    ({"balance": -0.1}, "balance=-0.1: expected 0 or more"),
    ({"bias_rate": -1}, "bias_rate=-1: expected 0 or more"),
    ({"expert_ffn": 0}, "expert_ffn=0: expected 1 or more"),
    ({"shared_experts": -2}, "shared_experts=-2: expected 0 or more"),
    ({"min_capacity": -1}, "min_capacity=-1: expected 0 or more"),
])
def test_sizes_that_do_not_fit_are_named_with_what_works(options, says):
    with pytest.raises(ValueError, match=says):
        Config(**GPT2 | options)


def test_a_config_cannot_change():
    with pytest.raises(AttributeError):
        Config(**GPT2).hidden = 5
