"""What a run is, before it starts: who takes which part of the batch, and what does not fit together."""

import numpy as np
import pytest
from trainer_models import CONFIGS, DATA, setup_of

from refimpl import Layout
from refimpl.model.loss import IGNORED
from refimpl.train.setup import CP_KINDS, Setup


@pytest.mark.parametrize("dp", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("batch", [1, 7, 8])                                  # fewer sequences than ranks, too
@pytest.mark.parametrize("micro_batch", [None, 1, 3])
def test_every_sequence_is_in_exactly_one_micro_batch_of_one_rank(dp, batch, micro_batch):
    if micro_batch and micro_batch > batch:
        micro_batch = batch
    setup = setup_of(dp=dp, pp=2, batch=batch, micro_batch=micro_batch)
    parts = [setup.sequences(rank, k) for rank in range(dp) for k in range(setup.microbatches)]
    assert [sequence for part in parts for sequence in part] == list(range(batch))
    assert micro_batch is None or max(map(len, parts)) <= micro_batch
    assert setup.tokens == 8 * batch


def test_without_a_size_the_pipeline_gets_two_micro_batches_a_stage_if_there_are_so_many():
    assert [setup_of(pp=pp, batch=16).microbatches for pp in (1, 2, 3)] == [2, 4, 6]
    assert setup_of(pp=3, batch=5).microbatches == 5 and setup_of(dp=4, pp=2, batch=5).microbatches == 2


@pytest.mark.parametrize("kind", CP_KINDS)
def test_every_position_is_on_exactly_one_rank(kind):
    setup = setup_of(cp=4, sequence=8, cp_kind=kind, ulysses=2 if kind == "hybrid" else None)
    assert sorted(p for rank in range(4) for p in setup.positions(rank)) == list(range(8))


def test_the_batch_is_the_same_whatever_the_layout():
    """What a step sees is decided by seed, step and sizes alone."""
    one, other = setup_of(), setup_of(dp=3, pp=2, tp=2, zero=2)
    for step in (0, 5):
        for mine, theirs in zip(one.batch(DATA, step), other.batch(DATA, step)):
            np.testing.assert_array_equal(mine, theirs)
    assert not np.array_equal(one.batch(DATA, 0)[0], one.batch(DATA, 1)[0])


def test_targets_follow_tokens_and_a_share_of_them_is_ignored():
    tokens, targets = setup_of(batch=64, sequence=8).batch(DATA, 3)
    ignored = targets == IGNORED
    np.testing.assert_array_equal(np.where(ignored, 0, targets)[:, :-1], np.where(ignored[:, :-1], 0, tokens[:, 1:]))
    assert 0.1 < ignored.mean() < 0.3
    assert not (setup_of(ignored=0.0).batch(DATA, 3)[1] == IGNORED).any()


@pytest.mark.parametrize("schedule, chunks, placed", [
    ("1f1b", None, [range(0, 2), range(2, 5)]), ("interleaved", 2, 4), ("zbv", 2, 4)])
def test_layers_are_dealt_out_to_all_stages_in_order(schedule, chunks, placed):
    layers = setup_of(layers=5, pp=2, schedule=schedule, chunks=chunks).layers
    assert [layer for stage in layers for layer in stage] == list(range(5))
    assert len(layers) == (placed if isinstance(placed, int) else len(placed))


MISFITS = [
    (dict(sequence=0), "sequence=0: expected 1 or more; nearest 1"),
    (dict(batch=0), "global_batch=0: expected 1 or more; nearest 1"),
    (dict(micro_batch=8), "micro_batch=8: expected 1 to global_batch=7 sequences; nearest 7"),
    (dict(micro_batch=0), "micro_batch=0: expected 1 to global_batch=7 sequences; nearest 1"),
    (dict(zero=4), "zero=4: expected 0, 1, 2 or 3; nearest 3"),
    (dict(cp_kind="zigzack"), "cp_kind='zigzack': expected one of ring, zigzag, .*; nearest 'zigzag'"),
    (dict(ignored=1.0), "ignored=1.0: expected a share"),
    (dict(sequence=9), "sequence=9 is longer than context=8, .*; nearest 8"),
    (dict(tp=3), "tp=3"),
    (dict(ep=2, dp=2), "ep=2 with a dense model: there are no experts to deal out; nearest 1"),
    (dict(family="moe", tp=2, expert_tp=1), "expert_tp"),
    (dict(pp=4), "layers=3: 4 ranks"),
    (dict(schedule="1f2b"), "1f2b.*1f1b"),
    (dict(cp=2, cp_kind="hybrid"), "ulysses=None with cp_kind='hybrid'"),
    (dict(cp=2, ulysses=2), "ulysses=2 with cp_kind='zigzag'"),
    (dict(cp=4, cp_kind="hybrid", ulysses=3), "ulysses=3"),
    (dict(cp=3), "8"),
    (dict(cp=8, cp_kind="ulysses"), "heads"),
    (dict(tp=4, sequence=6, sequence_parallel=True), "6"),
]


@pytest.mark.parametrize("how, says", MISFITS, ids=lambda value: str(value)[:40])
def test_what_does_not_fit_is_said_before_a_rank_starts(how, says):
    with pytest.raises(ValueError, match=says):
        setup_of(**how)


def test_a_default_setup_trains_on_one_rank():
    setup = Setup(CONFIGS["gpt2"], sequence=8)
    assert setup.layout == Layout() and setup.layout.world == 1 and setup.microbatches == 2
