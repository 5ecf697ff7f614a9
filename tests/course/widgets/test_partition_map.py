"""The partition map: what it shows is what ran, to the byte, and each byte that is cut is on one rank."""

import pytest

from refimpl.cost import memory, traffic
from refimpl.course.widgets import PartitionMap
from refimpl.course.widgets.partition_map import PSI, STRIPS, draw_partition
from refimpl.course.widgets.partition_run import COMING, EMPTY, HERE, LEFT, MOST, OWN, SIZE, SUM, UNITS, run_step

stages = pytest.mark.parametrize("stage", [0, 1, 2, 3])
ranks = pytest.mark.parametrize("N", range(1, MOST + 1))
SIZES = [SIZE] * UNITS


def at(stage, N, words, k=1):
    """The moment of this name."""
    return next(moment for moment in run_step(stage, N, k).moments if moment.words == words).ranks


@stages
@ranks
@pytest.mark.parametrize("k", [1, 2])
def test_what_is_filled_weighs_what_the_meter_counted_at_every_moment(stage, N, k):
    """Area is memory: shards that are not grey, times bytes of an element, are all bytes that a rank holds."""
    for words, holdings in run_step(stage, N, k).moments:
        for holding in holdings:
            filled = sum(size * SIZE // N * sum(state is not None for unit in getattr(holding, name) for state in unit)
                         for name, size in STRIPS)
            assert filled == sum(holding.nbytes.values()), words


@stages
@ranks
def test_bytes_at_rest_at_most_and_sent_are_the_formulas(stage, N):
    for k in (1, 3):
        ran, sent = run_step(stage, N, k), traffic.zero_step(SIZES, N, 0, stage, k)
        rest = memory.model_states(SIZES, N, stage)
        assert ran.moments[0].ranks[0].nbytes == ran.moments[-1].ranks[0].nbytes == rest
        assert ran.peak == sum(memory.model_states_peak(SIZES, N, stage).values())
        assert ran.sent == {"zero gather": 2 * sent["parameters"], "zero reduce": 2 * sent["gradients"]}


@stages
@ranks
def test_every_shard_that_is_cut_is_on_one_rank_and_the_rest_on_all(stage, N):
    holdings = at(stage, N, "before the step")
    for kind, cut in (("parameters", stage == 3), ("gradients", stage >= 2), ("optimizer", stage >= 1)):
        for unit in range(UNITS):
            states = zip(*(getattr(holding, kind)[unit] for holding in holdings))
            owners = [sum(state is not None for state in shard) for shard in states]
            assert owners == [1 if cut else N] * N


@stages
@pytest.mark.parametrize("N", [2, 5])
def test_a_rank_has_its_own_gradients_then_the_sums_of_what_it_updates(stage, N):
    for rank, holding in enumerate(at(stage, N, "all gradients are summed", 2)):
        for unit in holding.gradients:
            summed = [k for k, state in enumerate(unit) if state == SUM]
            assert summed == ([rank] if stage else list(range(N)))
    before = at(stage, N, "backward of layer 1, micro-batch 1", 2)[0]
    assert before.gradients[0] == ([EMPTY] * N if stage < 2 else [EMPTY] + [None] * (N - 1))
    if stage < 2:
        assert before.gradients[1] == [OWN] * N                      # a second micro-batch will be added
        assert COMING in at(stage, N, "backward of layer 1, micro-batch 2", 2)[0].gradients[1]
    else:
        assert before.summing[1] == [COMING] * N and before.summing[0] == [None] * N
    left = at(stage, N, "all gradients are summed")[0].gradients[0]
    assert (LEFT in left) == (stage == 1)


def test_stage_3_has_this_layer_and_the_next_one_whole_and_nothing_else():
    for number, words in enumerate(["forward of layer 0", "forward of layer 1", "forward of layer 2"]):
        for holding in at(3, 4, words):
            assert holding.gathered[number] == [HERE] * 4
            assert holding.gathered[number + 1:] == [[COMING] * 4, [None] * 4][:UNITS - number - 1]
            assert holding.gathered[:number] == [[None] * 4] * number
    assert all(unit == [None] * 4 for holding in at(3, 4, "Adam has stepped") for unit in holding.gathered)
    assert at(1, 4, "Adam has stepped")[2].parameters[0] == [COMING, COMING, HERE, COMING]


@stages
@ranks
def test_every_moment_has_a_picture(stage, N):
    for moment in range(len(run_step(stage, N).moments)):
        shown = draw_partition(stage, N, moment)
        assert shown.svg.count("rank ") >= N and "NaN" not in shown.svg
        assert 9 * len(shown.title) < 880                                         # pixels: it is not cut off


def test_the_picture_names_stage_moment_and_numbers():
    shown = draw_partition(3, 4, 2)
    assert shown.title == "ZeRO-3 on 4 ranks, forward of layer 1: 5.33 bytes a parameter on each"
    assert "stage 1 sends 3.00, stage 2 sends 3.00, stage 3 sends 4.50 bytes" in shown.words
    assert PSI * 16 / 4 == sum(run_step(3, 4).moments[0].ranks[0].nbytes.values())
    assert draw_partition(0, 1, 0).title.startswith("Plain DP on 1 rank, before the step: 16.00 bytes")


@pytest.mark.parametrize("arguments, says", [
    ((4,), "stage 4 on 4 ranks: there are stages 0 to 3"), ((1, 0), "on 1 to 6 ranks"), ((1, 7), "on 1 to 6 ranks"),
    ((1, 4, 10), "moment=10: this step has moments 0 to 9"), ((1, 4, -1), "moment=-1")])
def test_what_has_no_picture_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        draw_partition(*arguments)


def test_the_widget_moves_and_a_shorter_step_moves_the_moment_back():
    explorer = PartitionMap()
    assert explorer.shown == explorer.still() == draw_partition()
    explorer.set(stage=3, moment=4)
    assert explorer.shown == draw_partition(3, 4, 4)
    explorer.controls["micro_batches"].value = 3
    assert explorer.controls["moment"].max == 1 + 6 * 3 + 2
    explorer.controls["moment"].value = 21
    explorer.controls["micro_batches"].value = 1
    assert explorer.controls["moment"].value == 9 and explorer.shown == draw_partition(3, 4, 9)
