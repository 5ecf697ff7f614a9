"""The formulas of memory, against published numbers; tests/measure/test_meter.py holds what is counted to them."""

import pytest

from refimpl.cost.memory import layer_activations, layer_parameters, layer_statistics, parameters

GIB = 2**30
LLAMA = {"gated": True, "tied": False, "bias": False}


# Parameters.

@pytest.mark.parametrize(("options", "total"), [
    ({"hidden": 768, "layers": 12, "heads": 12, "vocabulary": 50257, "positions": 1024}, 124_439_808),        # GPT-2
    ({"hidden": 1600, "layers": 48, "heads": 25, "vocabulary": 50257, "positions": 1024}, 1_557_611_200),     # XL
    (LLAMA | {"hidden": 4096, "layers": 32, "heads": 32, "vocabulary": 32000, "ffn": 11008},
     6_738_415_616),                                                                                          # 2 7B
    (LLAMA | {"hidden": 8192, "layers": 80, "heads": 64, "vocabulary": 32000, "ffn": 28672, "kv_heads": 8},
     68_976_648_192),                                                                                         # 2 70B
    (LLAMA | {"hidden": 4096, "layers": 32, "heads": 32, "vocabulary": 128256, "ffn": 14336, "kv_heads": 8},
     8_030_261_248),                                                                                          # 3 8B
])
def test_published_models_have_exactly_as_many_parameters(options, total):
    """As the sums over their published weights."""
    assert parameters(**options)["total"] == total


def test_A30_a_gated_mlp_has_three_matrices():
    """EleutherAI/cookbook #36: 56B for a 72B model. To the digits of the case, which leaves out the norms."""
    case = {"hidden": 8192, "layers": 80, "heads": 64, "vocabulary": 152064, "ffn": 24576, "tied": False, "bias": False}
    for gated, billions in ((True, "72.28"), (False, "56.18")):
        count = parameters(**case, gated=gated)
        assert f"{(count['total'] - count['norms']) / 1e9:.2f}" == billions
        assert count["norms"] == 161 * 8192


def test_A30_grouped_queries_shrink_keys_and_values_only():
    whole, grouped = (layer_parameters(8192, 64, kv_heads=n, bias=False) for n in (64, 8))
    assert whole["attention"] - grouped["attention"] == 2 * 8192 * (8192 - 1024)
    assert (whole["mlp"], whole["norms"]) == (grouped["mlp"], grouped["norms"])


def test_A30_any_whole_ffn_will_do():
    assert layer_parameters(4096, 32, ffn=11008, gated=True, bias=False)["mlp"] == 3 * 4096 * 11008
    assert layer_parameters(8, 2, ffn=7)["mlp"] == 2 * 8 * 7 + 7 + 8


def test_tied_tables_count_once():
    tied, apart = (parameters(8, 2, 2, 11, tied=tied) for tied in (True, False))
    assert apart["total"] - tied["total"] == apart["head"] == 88 and tied["head"] == 0


@pytest.mark.parametrize(("h", "a", "l", "billions"), [
    (2304, 24, 24, 1.65), (3072, 32, 30, 3.56), (4096, 32, 36, 7.47), (8192, 64, 48, 39.10), (10240, 80, 60, 76.05),
    (12288, 96, 80, 145.62), (20480, 128, 105, 529.60)])
def test_the_megatron_series_has_the_parameters_of_its_equation(h, a, l, billions):
    """Narayanan et al. 2021, table 1 and equation 2, which leaves out the last norm's 2 h."""
    total = parameters(h, l, a, 51200, positions=2048)["total"]
    assert total - 2 * h == 12 * l * h * h + 13 * l * h + (51200 + 2048) * h
    assert f"{total / 1e9:.2f}" == f"{billions:.2f}"


# Activations.

KINDS = {"tp": {}, "tp, sp": {"sequence_parallel": True}, "selective": {"recompute": "selective"},
         "sp, selective": {"recompute": "selective", "sequence_parallel": True}, "full": {"recompute": "full"}}


@pytest.mark.parametrize(("s", "b", "h", "a", "ranks"), [(2048, 4, 6144, 64, (1, 2, 4, 8)), (9, 3, 12, 3, (1, 3))])
def test_table_2_of_korthikanti_et_al(s, b, h, a, ranks):
    """Multiplied by t, so that all are whole numbers: s b h (10 + 24/t + 5 a s/(h t)), ..."""
    for t in ranks:
        check_table_2(s, b, h, a, t)


def check_table_2(s, b, h, a, t):
    sbh, pairs = s * b * h, 5 * a * s * s * b
    count = {kind: layer_activations(s, b, h, a, t, **options) for kind, options in KINDS.items()}
    assert count["tp"] * t == sbh * (10 * t + 24) + pairs
    assert count["tp, sp"] * t == 34 * sbh + pairs
    assert count["selective"] * t == sbh * (10 * t + 24)
    assert count["sp, selective"] * t == 34 * sbh
    assert count["full"] == 2 * sbh
    assert layer_activations(s, b, h, a, t, recompute="full", sequence_parallel=True) * t == 2 * sbh


@pytest.mark.parametrize(("model", "gib"), [
    ((64, 6144, 48, 4, 1, 1), [59.250, 39.563, 29.250, 9.5625, 4.500]),              # 22B: a, h, L, b, p, v
    ((96, 12288, 96, 1, 8, 3), [66.844, 41.414, 37.781, 12.3516, 5.812])])           # 175B, interleaved
def test_figure_1_of_korthikanti_et_al_to_three_digits(model, gib):
    """Per GPU, s = 2048, t = 8; a first stage holds L layers' worth whatever p, interleaved 1 + (p-1)/(p v) as much."""
    a, h, L, b, p, v = model
    for options, published in zip(KINDS.values(), gib, strict=True):
        held = layer_activations(2048, b, h, a, 8, **options) * L * (1 + (p - 1) / (p * v)) / GIB
        assert abs(held - published) < 0.0006


def test_shards_of_one_layer_add_up_where_they_are_cut():
    """An ffn that does not divide: 7 features on 3 ranks are 2, 2 and 3; what is outside the blocks is on each rank."""
    whole = layer_activations(6, 2, 12, 3, ffn=7)
    shards = [layer_activations(6, 2, 12, 3, 3, ffn=7, rank=rank) for rank in range(3)]
    assert sum(shards) - 2 * 10 * 6 * 2 * 12 == whole
    assert shards[2] - shards[0] == 2 * 2 * 6 * 2
    assert sum(layer_activations(6, 2, 12, 3, 3, ffn=7, rank=r, sequence_parallel=True) for r in range(3)) == whole


def test_key_heads_that_ranks_share_are_kept_by_each():
    """2 key-value heads on 4 ranks: one each, so twice as many in all."""
    options = {"kv_heads": 2, "recompute": "selective", "dropout": False}
    alone = layer_activations(4, 1, 16, 4, **options)
    shards = 4 * layer_activations(4, 1, 16, 4, 4, sequence_parallel=True, **options)
    assert shards - alone == 2 * 2 * 4 * 4 * 2                       # k and v, 2 heads of 4 features, 4 tokens, 2 bytes


def test_blockwise_attention_keeps_a_number_per_row_in_place_of_the_probabilities():
    naive, blockwise = (layer_activations(64, 2, 32, 4, blockwise=kind) for kind in (False, True))
    assert naive - blockwise == 5 * 4 * 64 * 64 * 2 - 4 * 4 * 64 * 2


def test_without_dropout_there_are_no_masks_and_one_copy_of_the_probabilities():
    with_, without = (layer_activations(8, 2, 16, 4, dropout=kind) for kind in (True, False))
    assert with_ - without == 2 * 8 * 2 * 16 + 3 * 4 * 8 * 8 * 2


def test_statistics_are_two_numbers_per_position_and_norm():
    assert layer_statistics(8, 2) == 2 * 2 * 8 * 2 * 4
    assert layer_statistics(8, 2, t=4, sequence_parallel=True, norm="rms") == 2 * 8 * 2 * 4 // 4
    assert layer_statistics(8, 2, recompute="full") == 0


@pytest.mark.parametrize(("options", "says"), [
    ({"t": 3}, "tp=3 does not divide heads=8; tp may be 1, 2, 4 or 8"),
    ({"a": 3}, "heads=3 does not divide hidden=16; heads may be 1, 2, 4, 8 or 16"),
    ({"kv_heads": 3}, "kv_heads=3 does not divide heads=8; kv_heads may be 1, 2, 4 or 8"),
    ({"a": 12, "h": 24, "kv_heads": 3, "t": 4},
     "kv_heads=3 are neither cut nor shared evenly by tp=4; tp may be 1, 3, 6 or 12"),
    ({"s": 6, "t": 4, "sequence_parallel": True}, "sequence=6 is not divisible by tp=4; tp may be 1, 2, 3 or 6"),
    ({"recompute": "some"}, "recompute='some': expected one of none, selective, full"),
    ({"t": 0}, "tp=0 does not divide heads=8"),
])
def test_what_cannot_be_cut_is_named_with_what_works(options, says):
    with pytest.raises(ValueError, match=says):
        layer_activations(**{"s": 8, "b": 1, "h": 16, "a": 8} | options)
