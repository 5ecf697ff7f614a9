"""The formulas of a mixture, against published models and against what parallel/expert.py defines."""

import itertools

import numpy as np
import pytest

from refimpl import Layout
from refimpl.cost import moe
from refimpl.model import router
from refimpl.model.config import Config, shapes

MIXTRAL = {"hidden": 4096, "layers": 32, "heads": 32, "vocabulary": 32000, "kv_heads": 8, "tied": False, "bias": False,
           "experts": 8, "ffn": 14336, "top_k": 2}


def test_mixtral_has_47_billion_parameters_of_which_a_token_uses_13():
    """Jiang et al. 2024, table 1 (47B, 13B); the total as the sum over its published weights."""
    found = moe.parameters(**MIXTRAL)
    assert found["total"] == 46_702_792_704
    assert f"{found['active'] / 1e9:.1f}" == "12.9"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(("experts", "top_k", "shared"), [(1, 1, 0), (5, 2, 0), (8, 8, 1), (4, 1, 3)])
def test_shapes_hold_exactly_the_parameters_of_the_formula(family, experts, top_k, shared):
    gpt2 = family == "gpt2"
    config = Config(family, 11, 12, 3, 6, kv_heads=2, ffn=7, experts=experts, top_k=top_k, expert_ffn=5,
                    shared_experts=shared)
    counted = {name: int(np.prod(shape)) for name, shape in shapes(config).items()}
    found = moe.parameters(12, 3, 6, 11, experts, 5, top_k, shared, gated=not gpt2, kv_heads=2, tied=gpt2, bias=gpt2,
                           positions=config.context if gpt2 else 0)
    assert found["total"] == sum(counted.values())
    of_experts = sum(n for name, n in counted.items() if name.endswith(("moe.w1", "moe.w2")))
    assert found["active"] == sum(counted.values()) - of_experts * (experts - top_k) // experts
    layer = moe.layer_parameters(12, experts, 5, top_k, shared, gated=not gpt2)
    assert 3 * layer["experts"] == of_experts
    assert layer["total"] == layer["router"] + layer["experts"] + layer["shared"]


def test_capacity_is_the_one_that_the_router_applies():
    factors = 0.5, 1, 1.1, 1.25, 4
    for sizes in itertools.product((1, 2, 3), (0, 1, 7, 100), (3, 4, 10), factors, (0, 4)):
        assert moe.capacity(*sizes) == router.capacity(*sizes), sizes
    assert moe.capacity(2, 4096, 8, 1.25) == 1280


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_equal_loads_send_the_share_of_the_other_ranks(ep):
    """T = 64 tokens a rank, k = 2: each of ep ranks gets 128/ep choices of each other one."""
    counts = [[128 // ep] * ep for _ in range(ep)]
    for rank in range(ep):
        assert set(moe.all_to_alls(counts, rank, 10).values()) == {moe.balanced_all_to_all(64, 2, 10, ep)}
    assert moe.balanced_all_to_all(64, 2, 10, ep) == 1280 * (ep - 1) // ep


def test_over_all_ranks_as_much_is_sent_back_as_there_and_backward_as_forward():
    counts = [[3, 0, 5], [1, 1, 1], [7, 0, 0]]
    sums = [sum(moe.all_to_alls(counts, rank, 2)[phase] for rank in range(3))
            for phase in ("dispatch", "combine", "combine backward", "dispatch backward")]
    assert sums == [2 * 14] * 4
    assert moe.all_to_alls(counts, 1, 2) == {"dispatch": 4, "combine": 0, "combine backward": 4, "dispatch backward": 0}


def test_ep_does_not_multiply_the_world():
    """DeepSeek-V3: 2048 GPUs, pp 16, ep 64: dense gradients are summed over 128 ranks, an expert's over 2."""
    layout = Layout(dp=8, pp=2, tp=2, ep=8, expert_tp=1)
    assert layout.world == 32 and layout.size("ep") * layout.size("expert_dp") * layout.size("expert_tp") * 2 == 32
    layout = Layout(dp=128, pp=16, ep=64)
    assert (layout.world, layout.size("dp_cp"), layout.size("expert_dp")) == (2048, 128, 2)


def test_features_cut_over_tp_send_what_an_mlp_sends_and_the_small_ones_beside():
    plain = moe.expert_tensor_parallel(2, 16, 24, 2, 4, 0)
    assert [leg["x"] for leg in plain.values()] == [2 * 2 * 16 * 24 * 3 // 4] * 2
    sequential = moe.expert_tensor_parallel(2, 16, 24, 2, 4, 0, sequence_parallel=True)
    assert sequential["forward"] == {"x": 2 * 2 * 16 * 24 * 3 // 4, "weights": 48, "choices": 48}
    assert sequential["backward"] == {"x": 2 * 2 * 16 * 24 * 3 // 4, "weights": 48, "choices": 0}
    assert moe.expert_tensor_parallel(2, 16, 24, 2, 1, 0)["backward"] == {"x": 0, "weights": 0, "choices": 0}


def test_statistics_are_k_numbers_a_token_and_one_for_its_position():
    assert moe.sequence_statistics(3, 8, 2, cp=2) == (3 * 2 + 1) * 4
    assert moe.sequence_statistics(3, 8, 2, tp=2) == (3 * 2 + 1) * 4
    assert moe.sequence_statistics(3, 8, 2, cp=2, tp=2) == (3 * 2 + 1) * (2 + 4)
    assert moe.sequence_statistics(3, 8, 2) == 0
