"""Whole arrays from what ranks hold, and back: whatever cut them, the same bits."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from trainer_models import CONFIGS, on_ranks, setup_of

from refimpl.model.config import shapes
from refimpl.parallel.shards import shard
from refimpl.train.pieces import joined, share_of, whole
from refimpl.train.trainer import first_parameters

LAYOUTS = [{}, {"dp": 3, "zero": 1}, {"dp": 2, "zero": 3}, {"tp": 2}, {"tp": 4, "dp": 2, "zero": 2}, {"pp": 3},
           {"cp": 2, "pp": 2, "zero": 2}]


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("how", LAYOUTS, ids=str)
def test_the_pieces_of_all_ranks_are_the_whole_model_bit_by_bit_in_its_order(family, how):
    setup = setup_of(family, **how)
    truth = first_parameters(setup)
    found = whole(setup.config, setup.layout, on_ranks(setup, lambda trainer: trainer.held("parameter")))
    assert list(found) == list(shapes(setup.config))
    for name, p in truth.items():
        assert_array_equal(found[name], p, strict=True)


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_a14_fused_heads_and_gates_and_ranks_with_no_part_at_all(dtype):
    """ffn 6 and tp 8: two ranks have no hidden feature. An array without elements must not decide the dtype of all."""
    setup = setup_of("llama", tp=8)
    rng = np.random.default_rng(0)
    truth = {name: rng.integers(0, 99, shape).astype(dtype) for name, shape in shapes(setup.config).items()}
    held = []
    for rank in range(8):
        mine = shard(truth, setup.config, rank, 8)
        held.append({name: (0, p.reshape(-1)) for name, p in mine.items() if p.size})
    for name, p in whole(setup.config, setup.layout, held).items():
        assert_array_equal(p, truth[name], strict=True)


@pytest.mark.parametrize("ep, expert_tp, sp", [(1, 2, False), (2, 2, False), (4, 1, True), (2, 1, True)])
def test_experts_are_found_wherever_they_are(ep, expert_tp, sp):
    setup = setup_of("moe", dp=2, tp=2, ep=ep, expert_tp=expert_tp, sequence_parallel=sp, zero=1)
    truth = first_parameters(setup)
    found = whole(setup.config, setup.layout, on_ranks(setup, lambda trainer: trainer.held("parameter")))
    for name, p in truth.items():
        assert_array_equal(found[name], p, strict=True)
    shares = [share_of(setup.layout, rank) for rank in range(4)]
    assert len(set(shares)) == ep * expert_tp


def test_pieces_may_overlap_and_come_in_any_order_but_must_cover_the_array():
    x = np.arange(6.0)
    assert_array_equal(joined("w", (2, 3), x.dtype, [(4, x[4:]), (0, x[:3]), (2, x[2:5])]), x.reshape(2, 3))
    assert joined("w", (0, 3), np.dtype("float32"), []).shape == (0, 3)
    with pytest.raises(ValueError, match=r"w \(2, 3\): no rank has element 3 of 6"):
        joined("w", (2, 3), x.dtype, [(0, x[:3]), (4, x[4:])])
    with pytest.raises(ValueError, match="no rank has element 0 of 6"):
        joined("w", (2, 3), x.dtype, [])
