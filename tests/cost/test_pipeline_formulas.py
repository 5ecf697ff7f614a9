"""The formulas of pipelines, against the lists of actions, the timeline, and numbers from papers."""

import pytest
from pipelines import every_schedule, names_and_chunks

from refimpl.cost import pipeline as cost
from refimpl.pipeline import build, simulate
from refimpl.pipeline.action import parts

TIMES = [(1, 1, 1), (2, 2, 1), (4, 3, 2), (3, 4, 2), (2, 1, 1), (8, 7, 6), (1, 2, 0)]
UNUSUAL = [(1, 1, 2), (1, 3, 3), (5, 1, 4)]                          # weight gradients that take longest


@pytest.mark.parametrize("name, chunks", names_and_chunks())
def test_bubble_and_makespan_equal_the_timeline_wherever_there_is_a_formula(name, chunks):
    compared = 0
    for schedule in every_schedule(range(1, 7), range(1, 16)):
        if (schedule.name, schedule.chunks) != (name, chunks):
            continue
        size = schedule.stages, schedule.microbatches, chunks
        for times in TIMES + UNUSUAL:
            try:
                stated = cost.bubble(name, *size, *times), cost.makespan(name, *size, *times)
            except ValueError:
                continue
            t, compared = simulate(schedule, *times), compared + 1
            assert stated == pytest.approx((t.max_rank_span - t.ideal, t.makespan), abs=1e-9)
    assert compared > 100


def test_formulas_end_where_they_stop_being_true():
    """Just outside the stated conditions the timeline says something else."""
    outside = [
        ("zb_h1", 4, 3, 1, (1, 1, 1)), ("zb_h1", 4, 8, 1, (1, 1, 2)), ("zb_h2", 4, 6, 1, (1, 1, 1)),
        ("zb_h2", 4, 8, 1, (1, 1, 2)), ("interleaved_zb", 4, 3, 2, (1, 1, 1)), ("interleaved_zb", 4, 8, 2, (2, 3, 3)),
        ("zbv", 4, 6, 2, (1, 1, 1)), ("zbv", 4, 8, 2, (3, 4, 2)), ("dualpipev", 4, 8, 2, (2, 1, 1))]
    for name, p, m, v, (F, I, W) in outside:
        with pytest.raises(ValueError, match=f"{name}: no formula for p=4 m={m} forward={F} input={I} weight={W}; "):
            cost.bubble(name, p, m, v, F, I, W)
        divided = {"zb_h1": F + I - W, "interleaved_zb": F + I - W, "zb_h2": F + I - 2 * W, "zbv": F + I - 2 * W,
                   "dualpipev": F + 2 * I - W}[name]
        t = simulate(build(name, p, m, v), F, I, W)
        assert t.max_rank_span - t.ideal != pytest.approx((p - 1) / v * divided)


@pytest.mark.parametrize("name, chunks", names_and_chunks())
def test_what_is_kept_and_sent_and_the_warm_up_equal_the_lists(name, chunks):
    for schedule in every_schedule(range(1, 7), range(1, 16)):
        if (schedule.name, schedule.chunks) != (name, chunks):
            continue
        size = schedule.stages, schedule.microbatches, chunks
        t = simulate(schedule)
        assert [cost.in_flight(name, *size, rank) for rank in range(schedule.stages)] == t.peak_activations
        assert cost.messages(name, *size) == t.messages["forward"] == t.messages["backward"]
        for rank, row in enumerate(schedule.ranks):
            forward_only = [all(part.kind == "F" for part in parts(action)) for action in row]
            ahead = cost.warm_up(name, *size, rank) + 1
            assert forward_only.index(False) == min(ahead, schedule.microbatches * chunks)


def test_the_course_example_p_8_m_64():
    assert cost.makespan("1f1b", 8, 64) == 213 and cost.bubble("1f1b", 8, 64) == 21
    assert cost.bubble("1f1b", 8, 64) / 192 == 7 / 64 and cost.bubble("1f1b", 8, 64) / 213 == 7 / 71
    assert [cost.in_flight("1f1b", 8, m, rank=r) for m in (8, 64, 512) for r in (0, 7)] == [8, 1] * 3
    assert cost.in_flight("gpipe", 8, 64) == 64


def test_A19_A21_numbers():
    assert [cost.makespan("1f1b", 4, m, 1, 1, 1, 1) for m in (1, 2, 3)] == [12, 15, 18]
    assert [cost.warm_up("1f1b", 4, 2, rank=r) for r in range(4)] == [2, 2, 1, 0]
    assert [cost.in_flight("1f1b", 4, 2, rank=r) for r in range(4)] == [2, 2, 2, 1]
    assert [cost.warm_up("interleaved", 4, 8, 2, r) for r in range(4)] == [10, 8, 6, 4]
    assert cost.makespan("interleaved", 4, 8, 2) == 28.5
    assert [2 * cost.in_flight("interleaved", 4, 8, 2, r) for r in range(4)] == [11, 9, 7, 5]


def test_interleaving_costs_messages_and_some_memory():
    """Korthikanti et al. 2022: 1 + (p-1)/(p v) times the activations; Narayanan et al. 2021: v times the messages."""
    p, v, m = 8, 4, 32
    assert cost.bubble("interleaved", p, m, v) == cost.bubble("1f1b", p, m) / v == 5.25
    assert cost.in_flight("interleaved", p, m, v) == p * (1 + (p - 1) / (p * v)) == 9.75
    assert cost.messages("interleaved", p, m, v) == m * (p * v - 1) and cost.messages("1f1b", p, m) == m * (p - 1)


def test_zero_bubble_papers_table_2_and_deepseeks_table_2_say_the_same():
    """DeepSeek's B is input and weight gradient together: F + B - 2W there is F + I - W here."""
    p, F, I, W = 8, 4.0, 4.0, 3.0
    B = I + W
    assert cost.bubble("zb_h1", p, 16, 1, F, I, W) == (p - 1) * (F + B - 2 * W)
    assert cost.bubble("zb_h2", p, 16, 1, F, I, W) == (p - 1) * (F + I - 2 * W)
    PP = 2 * p                                                          # DualPipeV's stages, each half a rank's share
    assert cost.bubble("dualpipev", p, 16, 2, F, I, W) == (PP / 2 - 1) * ((F + B) + B - 3 * W) / 2
    assert (cost.in_flight("zb_h1", p, 16), cost.in_flight("zb_h2", p, 16)) == (p, 2 * p - 1)
    assert cost.in_flight("dualpipev", p, 16) == (PP + 1) / 2
    assert (cost.bubble("zb_h2", p, 16), cost.step_bubble("zb_h2", p, 16)) == (0, p - 1)


def test_one_rank_has_no_bubble_and_sends_nothing():
    for name, chunks in names_and_chunks():
        assert [ask(name, 1, 4, chunks) for ask in (cost.bubble, cost.step_bubble, cost.messages)] == [0, 0, 0]


@pytest.mark.parametrize("ask", [cost.bubble, cost.makespan, cost.warm_up, cost.in_flight])
def test_a_name_without_formulas_is_refused(ask):
    with pytest.raises(ValueError, match="there are no formulas for 'custom': there are for gpipe, 1f1b"):
        ask("custom", 4, 8)
    with pytest.raises(ValueError, match="there are no formulas for 'custom'"):
        cost.messages("custom", 4, 8)
