"""The sequence map: who holds what, what is kept and what is sent are those of a layer that runs."""

import time

import numpy as np
import pytest

from refimpl import Ledger, run
from refimpl.cost.memory import layer_activations
from refimpl.course.widgets import SequenceMap
from refimpl.course.widgets import sequence_map as drawn
from refimpl.measure.meter import held_bytes
from refimpl.model.config import Config, block_shapes
from refimpl.parallel import block, shards
from refimpl.testing import cut

B, S, H, HEADS = 1, 8, 16, 8
ways = pytest.mark.parametrize("sequence_parallel", [False, True])
ranks = pytest.mark.parametrize("t", drawn.RANKS)


def layer(comm, sequence_parallel):
    """(bytes kept, size of the output) of a float16 layer on this rank, with dropout and selective recomputation."""
    config = Config("gpt2", vocabulary=16, hidden=H, layers=1, heads=HEADS, dropout=0.1, recompute="selective")
    rng = np.random.default_rng(0)
    whole = {name: (rng.normal(size=shape) / 8).astype(np.float16) for name, shape in block_shapes(config).items()}
    x, mine = np.ones((B, S, H), np.float16), shards.shard(whole, config, comm.rank, comm.size)
    x = cut(x, 1, comm.rank, comm.size).copy() if sequence_parallel else x
    with comm.phase("forward"):
        y, saved = block.forward(x, mine, config, comm, sequence_parallel=sequence_parallel)
    kept = held_bytes(parameters=mine, saved=saved)["saved"]
    with comm.phase("backward"):
        block.backward(y, saved)
    return kept, y.size


@ways
@ranks
def test_what_is_kept_and_what_is_held_is_what_a_layer_keeps_and_returns(t, sequence_parallel):
    results = run(layer, t, sequence_parallel)
    units = sum(drawn.kept(array, t, sequence_parallel) for array in drawn.LAYER)
    for rank, (kept, size) in enumerate(results):
        assert kept == units * S * B * H
        (top, low), (left, right) = drawn.held(drawn.LAYER[-1], rank, t, sequence_parallel)
        assert size == (low - top) * (right - left) * B * S * H


@ranks
def test_the_bars_are_what_is_counted(t):
    shown = drawn.draw_sequence(t, True)
    for sequence_parallel in (False, True):
        log = Ledger()
        run(layer, t, sequence_parallel, ledger=log)
        elements = log.bytes_sent(rank=0) / 2 / (B * S * H)
        assert f"{elements * drawn.B * drawn.S * drawn.H / 1e6:,.0f} million elements sent" in shown.words
        kept = layer_activations(drawn.S, drawn.B, drawn.H, drawn.HEADS, t, sequence_parallel, recompute="selective")
        assert f"{kept / 2**20:,.0f} MiB kept" in shown.words


@ways
def test_all_ranks_together_have_every_array_whole(sequence_parallel):
    t = 4
    for array in drawn.LAYER:
        area = sum((low - top) * (right - left) for (top, low), (left, right) in
                   (drawn.held(array, rank, t, sequence_parallel) for rank in range(t)))
        alike = array.cut == "addend" or array.gathered or array.cut is None and not sequence_parallel
        assert area == (t if alike else 1)


def test_purple_lines_are_where_something_is_sent():
    count = lambda picture: picture.svg.count('class="stroke purple"')
    assert [count(drawn.draw_sequence(4, way)) for way in (False, True)] == [2, 4]     # g; f and g
    assert count(drawn.draw_sequence(1, True)) == 0


def test_what_cannot_be_is_refused_and_the_widget_is_quick():
    with pytest.raises(ValueError, match="3 ranks"):
        drawn.draw_sequence(3)
    explorer = SequenceMap()
    explorer.set(t=8, sequence_parallel=False)
    assert explorer.shown == drawn.draw_sequence(8, False)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        drawn.draw_sequence(8, True)
        times.append(time.perf_counter() - began)
    assert min(times) < 20e-3
