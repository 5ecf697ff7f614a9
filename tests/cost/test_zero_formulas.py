"""ZeRO's formulas, against the paper's numbers; tests/parallel/test_zero_costs.py holds what is counted to them."""

import pytest

from refimpl.cost import memory, traffic

STAGES = (0, 1, 2, 3)
TABLE_1 = {                                    # GB a rank: psi -> N -> stages 1, 2, 3 (Rajbhandari et al. 2020)
    7.5e9: {1: (120, 120, 120), 4: (52.5, 41.3, 30), 16: (35.6, 21.6, 7.5), 64: (31.4, 16.6, 1.88),
            256: (30.4, 15.4, 0.47), 1024: (30.1, 15.1, 0.12)},
    128e9: {1: (2048, 2048, 2048), 4: (896, 704, 512), 16: (608, 368, 128), 64: (536, 284, 32), 256: (518, 263, 8),
            1024: (513, 257, 2)},
    1e12: {1: (16000, 16000, 16000), 4: (7000, 5500, 4000), 16: (4750, 2875, 1000), 64: (4187, 2218, 250),
           256: (4046, 2054, 62.5), 1024: (4011, 2013, 15.6)},
}


@pytest.mark.parametrize(("psi", "N"), [(psi, N) for psi, row in TABLE_1.items() for N in row])
def test_every_cell_of_the_papers_table_1(psi, N):
    """To 1 GB, or half of its last digit: some cells are rounded, others cut off."""
    for stage, cell in zip((1, 2, 3), TABLE_1[psi][N]):
        found = sum(memory.model_states([int(psi)], N, stage).values()) / 1e9
        assert found == pytest.approx(cell, abs=1 if cell > 100 else 0.051 if cell > 2 else 0.006)
    assert sum(memory.model_states([int(psi)], N, 0).values()) == 16 * psi


def test_figure_1_of_the_paper():
    found = [sum(memory.model_states([7_500_000_000], 64, stage).values()) / 1e9 for stage in STAGES]
    assert found == [120, 31.40625, 16.640625, 1.875]


@pytest.mark.parametrize("N", [1, 2, 3, 7])
def test_bytes_are_the_closed_forms_where_nothing_is_padded(N):
    psi = 42 * 5
    forms = [16 * psi, 4 * psi + 12 * psi // N, 2 * psi + 14 * psi // N, 16 * psi // N]
    assert [sum(memory.model_states([42] * 5, N, stage).values()) for stage in STAGES] == forms
    with_float32_gradients = [sum(memory.model_states([42] * 5, N, stage, gradient=4).values()) for stage in STAGES]
    assert with_float32_gradients == [18 * psi, 6 * psi + 12 * psi // N, 2 * psi + 16 * psi // N, 18 * psi // N]


def test_A23_padding_is_held_too():
    """266240 elements on 768 ranks, alignment 1536: 348 each, 1024 more than there are."""
    assert traffic.padded(266240, 768, 1536) == 267264 == 348 * 768
    held = [memory.model_states([266240], 768, stage, alignment=1536) for stage in (1, 3)]
    assert held[1] == {"parameters": 696, "gradients": 696, "optimizer": 4176}
    assert held[0]["parameters"] == 2 * 267264
    assert memory.model_states([266240], 768, 0)["parameters"] == 2 * 266240
    assert (traffic.padded(57, 2, 4), traffic.padded(13, 8), traffic.padded(0, 8)) == (60, 16, 0)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("N", [1, 2, 4, 12])
def test_traffic_is_2_2_k_plus_1_and_3_k(N, k):
    psi = 24 + 12 + 60
    for rank in range(N):
        found = [traffic.zero_step([24, 12, 60], N, rank, stage, k) for stage in STAGES]
        assert [sum(sent.values()) * N for sent in found] == [psi * (N - 1) * times for times in (2, 2, k + 1, 3 * k)]


def test_the_legs_have_dtypes_of_their_own():
    """Megatron: float32 gradients scattered, 4 bytes; bfloat16 parameters gathered, 2."""
    sent = traffic.zero_step([1000], 4, 0, 1)
    assert 4 * sent["gradients"] + 2 * sent["parameters"] == (4 + 2) * 750


def test_a_table_that_is_used_twice_is_gathered_four_times():
    apart = traffic.zero_step([40, 80], 4, 0, 3, microbatches=5)
    tied = traffic.zero_step([40, 80], 4, 0, 3, microbatches=5, gathers=[4, 2])
    assert tied["parameters"] - apart["parameters"] == 5 * 2 * 30 and tied["gradients"] == apart["gradients"]


@pytest.mark.parametrize("stage", STAGES)
def test_hybrid_copies_sum_their_shards_once(stage):
    sent = traffic.zero_step([64], 4, 1, stage, microbatches=3, replicas=2, replica=1)
    assert sent["replicas"] == 2 * (64 // (4 if stage else 1)) // 2
    assert traffic.zero_step([64], 4, 1, stage)["replicas"] == 0


def test_at_its_most_a_rank_has_whole_units_beside_its_shards():
    units = [8, 100, 60, 40]
    at_rest = [sum(memory.model_states(units, 4, stage).values()) for stage in STAGES]
    most = [sum(memory.model_states_peak(units, 4, stage).values()) for stage in STAGES]
    assert [m - r for m, r in zip(most, at_rest)] == [0, 0, 2 * (100 + 60), 2 * (100 + 8) + 2 * (100 + 60)]
    assert sum(memory.model_states_peak(units, 4, 3, buffers=1, gathered=1).values()) - at_rest[3] == 2 * (100 + 100)
    assert memory.model_states_peak([], 4, 3) == {"parameters": 0, "gradients": 0, "optimizer": 0}
