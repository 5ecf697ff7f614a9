"""Sizes of models: parameters against published weights, FLOPs against the papers' equations and run times."""

import csv
import math
from pathlib import Path

import pytest

from refimpl.cost import memory, models
from refimpl.cost.models import ALIASES, MODELS, change, custom, find, of_transformer
from refimpl.cost.sizes import Latent, Model
from refimpl.model.config import Config, shapes

DATA = Path(__file__).parent.parent / "data"
MEGATRON = list(csv.DictReader((DATA / "megatron_sc21_table1.csv").open()))
KORTHIKANTI = list(csv.DictReader((DATA / "korthikanti.csv").open()))
A100 = 312e12


# Parameters.

@pytest.mark.parametrize(("name", "total"), [
    ("gpt2-small", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200),
    ("llama2-7b", 6_738_415_616), ("llama2-13b", 13_015_864_320), ("llama2-70b", 68_976_648_192),
    ("llama3-8b", 8_030_261_248), ("llama3-70b", 70_553_706_496), ("llama3-405b", 405_853_388_800),
    ("mixtral-8x7b", 46_702_792_704), ("mixtral-8x22b", 140_620_634_112), ("deepseek-v3", 671_026_419_200)])
def test_published_models_have_exactly_as_many_parameters(name, total):
    """As the sums over their published weights."""
    assert find(name).parameters == find(name).parts["total"] == total


@pytest.mark.parametrize(("name", "billions", "active"), [
    ("gpt3-175b", "174.6", "174.6"), ("mixtral-8x7b", "46.7", "12.9"), ("mixtral-8x22b", "140.6", "39.2"),
    ("deepseek-v3", "671.0", "37.6"), ("llama2-70b", "69.0", "69.0"), ("moe-409b", "409.0", "19.0")])
def test_totals_and_active_parameters_are_those_of_the_papers(name, billions, active):
    assert f"{find(name).parameters / 1e9:.1f}" == billions
    assert f"{find(name).active_parameters / 1e9:.1f}" == active


@pytest.mark.parametrize("row", MEGATRON, ids=lambda row: row["params_B"])
def test_the_megatron_series_has_the_parameters_of_equation_2(row):
    """Narayanan et al. 2021; the equation leaves out the last norm's 2 h."""
    model = find(f"megatron-{row['params_B']}b")
    h, l, V, s = model.hidden, model.layers, 51200, 2048
    assert (model.heads, h, l) == tuple(int(row[key]) for key in ("heads", "hidden", "layers"))
    assert model.parameters - 2 * h == 12 * l * h * h + 13 * l * h + (V + s) * h
    assert math.isclose(model.parameters - 2 * h, 12 * l * h**2 * (1 + 13 / (12 * h) + (V + s) / (12 * l * h)))
    assert abs(model.parameters / 1e9 - float(row["params_B"])) < 0.06


@pytest.mark.parametrize("config", [
    Config("gpt2", 50257, 768, 12, 12), Config("gpt2", 11, 15, 1, 3, ffn=7), Config("gpt2", 11, 16, 2, 8, kv_heads=4),
    Config("llama", 128256, 4096, 32, 32, kv_heads=8, ffn=14336), Config("llama", 7, 12, 3, 6, kv_heads=1),
    Config("llama", 7, 12, 3, 6, experts=4, top_k=2, expert_ffn=5, shared_experts=2),
    Config("gpt2", 7, 12, 3, 6, experts=4, top_k=2, expert_ffn=5)])
def test_our_own_transformer_has_as_many_parameters_as_its_shapes_hold(config):
    assert of_transformer(config).parameters == sum(math.prod(shape) for shape in shapes(config).values())


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if not model.experts])
def test_the_two_ways_to_count_agree(name):
    model = find(name)
    counted = memory.parameters(model.hidden, model.layers, model.heads, model.vocabulary, model.ffn, model.kv_heads,
                                model.gated, model.tied, model.bias, model.positions)
    assert model.parameters == counted["total"]
    assert model.parts["attention"] == counted["attention"] and model.parts["mlp"] == counted["mlp"]


def test_A30_a_gated_mlp_has_three_matrices():
    """EleutherAI/cookbook #36: 56B for a 72B model. To the digits of the case, which leaves out the norms."""
    sizes = {"layers": 80, "hidden": 8192, "heads": 64, "vocabulary": 152064, "ffn": 24576}
    for gated, billions in ((True, "72.28"), (False, "56.18")):
        model = custom(**sizes, gated=gated)
        assert f"{(model.parameters - model.parts['norms']) / 1e9:.2f}" == billions


def test_experts_are_counted_all_and_active():
    """8 experts of three matrices, 2 of them active; the router and attention always."""
    model = find("mixtral-8x7b")
    one = 3 * 4096 * 14336
    assert model.parts["experts"] == 32 * 8 * one and model.parts["router"] == 32 * 8 * 4096
    assert model.parameters - model.active_parameters == 32 * 6 * one


def test_deepseek_has_latent_attention_three_dense_layers_and_a_shared_expert():
    """DeepSeek-V3 report, section 4.2, by hand."""
    model = find("deepseek-v3")
    h, a = 7168, 128
    attention = (h * 1536 + 1536 + 1536 * a * 192) + (h * 576 + 512 + 512 * a * 256) + a * 128 * h
    assert model.parts["attention"] == 61 * attention
    assert model.parts["mlp"] == 3 * 3 * h * 18432
    assert model.parts["experts"] == 58 * 256 * 3 * h * 2048 and model.parts["shared"] == 58 * 3 * h * 2048
    assert model.parts["router"] == 58 * 256 * (h + 1)
    assert model.is_dense(2) and not model.is_dense(3)


def test_biases_and_norms_may_be_the_attentions_own():
    plain, own = (Model("m", 2, 16, 4, 11, kv_heads=2, bias=False, norm="rms", qkv_bias=some, qk_norm=some)
                  for some in (False, True))
    assert own.parameters - plain.parameters == 2 * ((4 + 2 * 2) * 4 + 2 * 4)


def test_heads_may_be_wider_than_hidden_over_heads():
    model = Model("m", 1, 16, 4, 11, head=8, bias=False)
    assert model.parts["attention"] == 4 * 16 * 4 * 8


# FLOPs.

@pytest.mark.parametrize("name", ["megatron-22b", "gpt3-175b", "megatron-1008b"])
@pytest.mark.parametrize("s", [1, 2048, 5000])
def test_flops_of_a_step_are_those_of_the_equations(name, s):
    """Narayanan et al. 2021, equation 3 (full recomputation); Korthikanti et al. 2022, equations 7 and 8."""
    model, B = find(name), 7
    h, l, V = model.hidden, model.layers, model.vocabulary
    assert math.isclose(model.flops(B, s), 72 * B * l * s * h**2 * (1 + s / (6 * h) + V / (12 * h * l)))
    assert math.isclose(model.flops(B, s, "full"), 96 * B * l * s * h**2 * (1 + s / (6 * h) + V / (16 * h * l)))
    assert math.isclose(model.selective_flops_as_published(B, s),
                        72 * B * l * s * h**2 * (1 + s / (3 * h) + V / (12 * h * l)))
    assert model.flops(B, s, "selective") - model.flops(B, s) == 4 * B * l * s * s * h


RECOMPUTED = list(zip(MEGATRON, (3.53, 3.70, 3.70, 14.45, 16.06, 24.82, 54.08),
                      (33.5, 33.5, 34.4, 33.3, 33.7, 35.6, 39.2)))


@pytest.mark.parametrize(("row", "seconds", "mfu"), RECOMPUTED, ids=[row["params_B"] for row in MEGATRON])
def test_percent_of_peak_with_recomputation_is_no_mfu(row, seconds, mfu):
    """Table 1 prints hardware FLOPs: the same run time gives a third less of model FLOPs."""
    model, n, B = find(f"megatron-{row['params_B']}b"), int(row["gpus"]), int(row["batch"])
    time = model.flops(B, recompute="full") / (n * float(row["tflops_per_gpu"]) * 1e12)
    assert abs(time - seconds) < 0.006
    assert abs(model.flops(B) / (time * n * A100) - mfu / 100) < 0.0006
    assert abs(model.flops(B, recompute="full") / (time * n * A100) - float(row["pct_peak"]) / 100) < 0.006


@pytest.mark.parametrize("row", KORTHIKANTI, ids=lambda row: row["model"])
def test_mfu_and_hfu_of_korthikanti_et_al(row):
    """Their run times, and equations 7 and 8: 41.5 and 43.7%, 51.4 and 52.8%."""
    model = find("megatron-22b" if row["model"] == "22B" else "gpt3-175b")
    done, B = float(row["iter_present_s"]) * int(row["gpus"]) * A100, int(row["global_batch"])
    assert abs(100 * model.flops(B) / done - float(row["mfu"])) < 0.25
    assert abs(100 * model.selective_flops_as_published(B) / done - float(row["hfu"])) < 0.25


def test_34_days():
    """Narayanan et al. 2021, section 5.1: 175B, 300B tokens, 1024 A100 at 140 TFLOP/s."""
    model = find("gpt3-175b")
    days = model.flops(300e9 / 2048, recompute="full") / (1024 * 140e12) / 86400
    assert 33.5 < days < 35


def test_flops_of_parts_add_up_and_experts_count_as_often_as_a_token_meets_them():
    model = find("mixtral-8x7b")
    forward = model.forward_flops(100)
    assert forward["matrices"] == 32 * model.layer_flops(5, 100)["matrices"]
    layer = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 8 * 4096 + 2 * 3 * 4096 * 14336
    assert model.layer_flops(0, 100)["matrices"] == 2 * 100 * layer
    assert forward["core"] == 32 * 4 * 100**2 * 4096 and forward["head"] == 2 * 100 * 4096 * 32000
    assert forward["total"] == forward["matrices"] + forward["core"] + forward["head"]


def test_dense_and_expert_layers_have_flops_of_their_own():
    model = find("deepseek-v3")
    dense, experts = (model.layer_flops(layer, 10)["matrices"] for layer in (0, 60))
    assert dense - experts == 2 * 10 * (3 * 7168 * 18432 - 9 * 3 * 7168 * 2048 - 256 * 7168)
    assert model.forward_flops(10)["matrices"] == 3 * dense + 58 * experts
    assert model.layer_flops(0, 10)["core"] == 2 * 10 * 10 * 128 * (192 + 128)


# Names and changes.

@pytest.mark.parametrize(("name", "found"), [("GPT3", "gpt3-175b"), ("Llama-3-70B", "llama3-70b"),
                                             ("gpt2", "gpt2-small"), ("megatron_1t", "megatron-1008b"),
                                             ("mixtral", "mixtral-8x7b")])
def test_models_have_more_than_one_name(name, found):
    assert find(name) is MODELS[found]


def test_aliases_lead_somewhere():
    assert set(ALIASES.values()) <= MODELS.keys() and not ALIASES.keys() & MODELS.keys()


@pytest.mark.parametrize(("name", "says"), [("gpt3-170b", "nearest gpt3-175b"), ("lama3-70b", "nearest llama3-70b"),
                                            ("xyz", "there are gpt2-small, gpt2-medium")])
def test_an_unknown_model_is_answered_with_the_nearest(name, says):
    with pytest.raises(ValueError, match=f"there is no model '{name}': {says}"):
        find(name)


def test_what_follows_from_a_size_follows_again():
    wider = change(find("gpt2-small"), hidden=1536)
    assert (wider.head, wider.ffn) == (128, 6144)
    more = change(find("gpt2-small"), heads=24)
    assert (more.kv_heads, more.head) == (24, 32)
    assert change(find("llama3-8b"), heads=64).kv_heads == 8                       # given, so it stays
    assert change(find("llama3-8b"), layers=None) == find("llama3-8b")


def test_a_model_of_your_own_is_a_gpt_if_tied_and_not_gated():
    sizes = {"layers": 24, "hidden": 2304, "heads": 24, "vocabulary": 51200}
    assert custom(**sizes, tied=True).parameters == find("megatron-1.7b").parameters
    assert custom(**sizes, tied=True).dropout and not custom(**sizes).dropout


@pytest.mark.parametrize(("sizes", "says"), [
    ({"heads": 5}, "heads=5 does not divide hidden=16; heads may be 1, 2, 4, 8 or 16"),
    ({"kv_heads": 3}, "kv_heads=3 does not divide heads=4; kv_heads may be 1, 2 or 4"),
    ({"layers": 0}, "layers=0: expected a whole number, 1 or more"), ({"hidden": -16}, "hidden=-16"),
    ({"vocabulary": 1.5}, "vocabulary=1.5"), ({"ffn": 0}, "ffn=0"), ({"experts": -1}, "experts=-1"),
    ({"experts": 4, "top_k": 5}, "top_k=5 of experts=4; at most 4"),
    ({"dense_layers": 3}, "dense_layers=3 of layers=2; at most 2"),
    ({"norm": "batch"}, "norm='batch': expected one of layer, rms"), ({"sequence": True}, "sequence=True")])
def test_sizes_that_do_not_fit_are_named(sizes, says):
    with pytest.raises(ValueError, match=says):
        Model(**{"name": "m", "layers": 2, "hidden": 16, "heads": 4, "vocabulary": 11} | sizes)


def test_unknown_recomputation_is_named():
    with pytest.raises(ValueError, match="recompute='some': expected one of none, selective, full"):
        find("gpt2").flops(recompute="some")


def test_a_model_is_hashable_and_says_what_its_layers_are_made_of():
    model = Model("m", 2, 16, 4, 11, experts=2, dense_layers=1, latent=Latent(8, 4, 2, 2, 4))
    assert hash(model) == hash(change(model))
    assert {tensor.part for tensor in model.tensors(1)} == {"attention", "router", "experts", "norms"}
    assert {tensor.part for tensor in model.tensors(0)} == {"attention", "mlp", "norms"}
    assert models.SIZES[0] == "name"
