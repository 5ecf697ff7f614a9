"""The timeline: the numbers of the papers, the reasons for every wait, and its speed."""

import csv
import math
import time

import pytest
from pipelines import DATA, every_schedule

from refimpl.pipeline import Times, build, parse, simulate

with open(DATA / "zero_bubble_table5.csv", encoding="utf-8") as file:
    TABLE5 = list(csv.DictReader(file))


@pytest.mark.parametrize("row", TABLE5, ids=lambda row: f"{row['model']}-{row['m']}")
def test_bubble_rates_of_the_zero_bubble_paper(row):
    """Qi et al. 2023, table 5, from the times measured in its table 6: 1F1B, ZB-H1, ZB-H2 to the last printed digit."""
    p, m = int(row["p"]), int(row["m"])
    times = [float(row[key]) for key in ("T_F", "T_B", "T_W", "T_comm")]
    for name, column in (("1f1b", "rate_1F1B"), ("zb_h1", "rate_ZB_H1"), ("zb_h2", "rate_ZB_H2")):
        assert round(simulate(build(name, p, m), *times).bubble_of_span, 4) == float(row[column]), name
    interleaved = simulate(build("interleaved", p, m, int(row["v_1F1B_I"])), *times).bubble_of_span
    assert abs(interleaved - float(row["rate_1F1B_I"])) < 0.004          # the paper's formula charges half the messages


def test_the_example_of_the_course_eight_ranks_64_micro_batches():
    t = simulate(build("1f1b", stages=8, microbatches=64), forward=1, input=1, weight=1)
    assert t.makespan == 213 == t.max_rank_span and t.ideal == 192
    assert f"{t.bubble_of_ideal:.2%}" == "10.94%" and f"{t.bubble_of_total:.2%}" == "9.86%"
    assert (t.bubble_of_ideal, t.bubble_of_total) == (7 / 64, 7 / 71)
    assert t.peak_activations == [8, 7, 6, 5, 4, 3, 2, 1]
    assert t.messages == {"forward": 7 * 64, "backward": 7 * 64}


def test_the_three_bubbles_differ_where_ranks_start_late():
    """ZB-H2: no rank waits once it has begun, but the last one begins 3 forwards late, and the first ends as early."""
    t = simulate(build("zb_h2", stages=4, microbatches=8))
    assert (t.makespan, t.max_rank_span, t.ideal) == (27, 24, 24)
    assert (t.bubble_of_span, t.bubble_of_ideal, t.bubble_of_total) == (0, 3 / 24, 3 / 27)
    assert [starts[0] for starts in t.starts] == [0, 1, 2, 3] and [ends[-1] for ends in t.ends] == [24, 25, 26, 27]


def test_each_action_by_hand():
    """Two ranks, two micro-batches, F=1, I=2, W=3, 10 for a message."""
    t = simulate(build("zb_h1", 2, 2), forward=1, input=2, weight=3, hop=10)
    assert str(t.schedule) == "rank0: 0F0 0F1 0I0 0W0 0I1 0W1\nrank1: 1F0 1I0 1F1 1I1 1W0 1W1"
    assert t.starts == [[0, 1, 24, 26, 29, 31], [11, 12, 14, 15, 17, 20]]
    assert t.ends == [[1, 2, 26, 29, 31, 34], [12, 14, 15, 17, 20, 23]]
    assert t.makespan == 34 and t.max_rank_span == 34 and t.busy == [12, 12] and t.idle_seconds == [22, 22]
    assert [str(gap) for gap in t.idle[0]] == ["2 to 24: 0I0 waits for 1I0 of rank 1"]
    assert [str(gap) for gap in t.idle[1]] == ["0 to 11: 1F0 waits for 0F0 of rank 0",
                                               "23 to 34: done, the step ends with 0W1 of rank 0"]
    assert t.idle[0][0] == (2, 24, parse("0I0"), parse("1I0"), 1) and t.idle[1][1].before is None


def test_a_pair_starts_when_both_may_and_ends_together():
    schedule = build("custom", 2, 2, ranks=["0F0 (0F1;0B0) 0B1", "1F0 1B0 1F1 1B1"])
    t = simulate(schedule, forward=1, input=2, weight=3, hop=10)
    assert t.starts == [[0, 27, 59], [11, 12, 43, 44]] and t.ends == [[1, 33, 64], [12, 17, 44, 49]]
    assert str(t.idle[0][0]) == "1 to 27: (0F1;0B0) waits for 1B0 of rank 1"
    assert t.peak_activations == [2, 1]                                  # the pair's forward comes before its backward


def test_a_message_between_two_stages_of_one_rank_costs_nothing():
    """At the bottom of a V the last rank hands on to itself: four hops there and back, in a loop six."""
    assert simulate(build("zbv", 2, 1), hop=100).makespan == 4 * 100 + (4 + 6) / 2       # FFFF I IWI IW, of half a rank
    assert simulate(build("interleaved", 2, 1), hop=100).makespan == 6 * 100 + (4 + 8) / 2
    assert simulate(build("zbv", 2, 1)).messages == {"forward": 2, "backward": 2}


# -- times ------------------------------------------------------------------------------------------------------------

def test_times_are_of_all_that_a_rank_has_and_a_chunk_takes_its_share():
    t = simulate(build("interleaved", 2, 2, chunks=4), forward=4, input=8, weight=12)
    assert {end - start for starts, ends in zip(t.starts, t.ends) for start, end in zip(starts, ends)} == {1, 5}
    assert t.busy == [2 * 24, 2 * 24] and t.ideal == 48


def test_a_time_may_be_one_number_or_one_per_rank_or_one_per_stage():
    schedule = build("interleaved", 2, 4, chunks=2)
    alike = simulate(schedule, 1, 2, 3)
    for times in (([1, 1], [2, 2], 3), ([1] * 4, 2, [3.0] * 4)):
        assert simulate(schedule, *times).starts == alike.starts
    times = Times(schedule, forward=[1, 2], input=[1, 2, 3, 4], weight=0)
    assert [times(parse(f"{stage}F0")) for stage in range(4)] == [0.5, 1, 0.5, 1]
    assert [times(parse(f"{stage}B0")) for stage in range(4)] == [0.5, 1, 1.5, 2]
    assert [times(parse(f"{stage}W0")) for stage in range(4)] == [0, 0, 0, 0]
    assert times(parse("(0F0;2B1)")) == 2
    slow = simulate(build("1f1b", 4, 8), forward=[1, 1, 2, 1])
    assert slow.busy == [24, 24, 32, 24] and slow.ideal == 32 and slow.bubble_of_ideal == (slow.makespan - 32) / 32


@pytest.mark.parametrize("wrong, says", [
    ({"forward": -1}, "forward=-1: must be a time in seconds, 0 or more"), ({"input": math.nan}, "input=nan"),
    ({"weight": math.inf}, "weight=inf"), ({"hop": "fast"}, "hop='fast'"),
    ({"input": [1, -2]}, "input=-2"), ({"hop": -0.5}, "hop=-0.5"), ({"weight": None}, "weight=None"),
    ({"forward": [1] * 3}, "forward has 3 times: give one number, or 2, one per rank, or 4, one per stage"),
])
def test_what_is_no_time_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        simulate(build("interleaved", 2, 4), **wrong)


def test_no_time_at_all_has_no_bubble():
    t = simulate(build("1f1b", 2, 2), 0, 0, 0)
    assert (t.makespan, t.bubble_of_ideal, t.bubble_of_total, t.bubble_of_span) == (0, 0, 0, 0) and t.idle == [[], []]


# -- what holds for all -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("times", [(1, 1, 1, 0), (1.5, 2.25, 0.5, 0.125)])
def test_idle_and_work_fill_every_ranks_step_and_every_wait_has_its_cause(times):
    for schedule in every_schedule(stages=[1, 2, 4], microbatches=[1, 3, 8]):
        t = simulate(schedule, *times)
        for rank, gaps in enumerate(t.idle):
            assert t.busy[rank] + t.idle_seconds[rank] == pytest.approx(t.makespan)
            for gap in gaps:
                where, position = schedule.where[gap.waits_for if len(gap.waits_for) == 3 else gap.waits_for.first]
                assert where == gap.of_rank
                if gap.before is None:
                    assert t.ends[where][position] == gap.end == t.makespan
                else:
                    assert where != rank and t.ends[where][position] + times[3] == gap.end
        assert t.ideal <= t.max_rank_span + 1e-9 and t.max_rank_span <= t.makespan


def best_of(runs, work, clock=time.perf_counter):
    """Seconds of the fastest of `runs` tries: what the code takes when nobody disturbs it."""
    seconds = []
    for _ in range(runs):
        begin = clock()
        work()
        seconds.append(clock() - begin)
    return min(seconds)


def test_a_usual_schedule_is_built_and_timed_within_5_ms_and_a_huge_one_within_5_s():
    assert best_of(10, lambda: simulate(build("1f1b", 8, 64))) < 0.005
    assert best_of(1, lambda: simulate(build("1f1b", 128, 2048)), time.process_time) < 5     # not what others compute
