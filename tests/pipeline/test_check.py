"""The checker: schedules that cannot run are refused, with the reason; what happens before what."""

import dataclasses

import pytest
from pipelines import every_schedule

from refimpl.pipeline import ScheduleError, build, check, happens_before, parse, simulate
from refimpl.pipeline.action import parts


def with_rows(schedule, *rows):
    """The schedule with other lists, written as strings."""
    return dataclasses.replace(schedule, ranks=[[parse(word) for word in row.split()] for row in rows])


TWO = build("1f1b", stages=2, microbatches=2)                         # 0F0 0F1 0B0 0B1 | 1F0 1B0 1F1 1B1


@pytest.mark.parametrize("rows, says", [
    (("0F0 0F1 0B0 0B1", "1F0 1B0 1B1"), "1F1 is missing on rank 1"),
    (("0F0 0F1 0B0", "1F0 1B0 1F1 1B1"), "the backward of stage 0, micro-batch 1, on rank 0 needs .*there is none"),
    (("0F0 0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"), "0F0 is there 2 times on rank 0"),
    (("0F0 0F1 0B0 0B0 0B1", "1F0 1B0 1F1 1B1"), "micro-batch 0, on rank 0 .*there is 2 B"),
    (("0F0 0F1 0I0 0B1", "1F0 1B0 1F1 1B1"), "micro-batch 0, on rank 0 .*there is 1 I$"),
    (("0F0 0F1 0B0 0W0 0B1", "1F0 1B0 1F1 1B1"), "there is 1 B, 1 W"),
    (("0F0 0F1 1F0 0B0 0B1", "1B0 1F1 1B1"), "1F0 is on rank 0, but stage 1 is on rank 1"),
    (("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1 2F0"), "2F0 on rank 1: there are stages 0 to 1"),
    (("0F0 0F1 0B0 0B1 0F2", "1F0 1B0 1F1 1B1"), "0F2 on rank 0: there are micro-batches 0 to 1"),
    (("", ""), "0F0 is missing on rank 0; .*; and 4 more"),
])
def test_what_is_missing_doubled_or_misplaced_is_named_by_checker_and_timeline(rows, says):
    wrong = with_rows(TWO, *rows)
    for refuses in (check, simulate):
        with pytest.raises(ScheduleError, match=says):
            refuses(wrong)


@pytest.mark.parametrize("rows, says", [
    (("0F0 0F1 0B0 0B1", "1B0 1F0 1F1 1B1"),
     "rank 1 cannot start 1B0 before 1F0 of rank 1, which comes after 1B0 there"),
    (("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"),
     "rank 0 cannot start 0B0 before 1B0 of rank 1, which comes after 1F1 there; "
     "rank 1 cannot start 1F1 before 0F1 of rank 0, which comes after 0B0 there"),
    (("0F0 0F1 0W0 0I0 0B1", "1F0 1B0 1F1 1B1"), "rank 0 cannot start 0W0 before 0I0 of rank 0, which comes after 0W0"),
    (("0F0 0F1 0B0 0B1", "1F0 (1F1;1B1) 1B0"),
     r"rank 1 cannot start \(1F1;1B1\) before 1F1 of rank 1, which is part of it"),
    (("0F0 (0F1;0B0) 0B1", "1F0 (1F1;1B0) 1B1"),                       # each half could start, but not both at once
     r"rank 0 cannot start \(0F1;0B0\) before 1B0 of rank 1, which is what that rank would do next; "
     r"rank 1 cannot start \(1F1;1B0\) before 0F1 of rank 0, which is what that rank would do next"),
])
def test_a_circle_of_waiting_is_printed_as_who_waits_for_whom(rows, says):
    wrong = with_rows(TWO, *rows)
    for refuses in (check, simulate):
        with pytest.raises(ScheduleError, match=f"a circle of waiting: .*{says}"):
            refuses(wrong)


def test_three_ranks_wait_in_a_circle_and_only_they_are_named():
    """Ranks 1 and 2 wait for each other; rank 0 waits for rank 1, and is not the trouble."""
    wrong = with_rows(build("gpipe", 3, 2), "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F0 2F1 2B0 2B1")
    with pytest.raises(ScheduleError) as caught:
        check(wrong)
    assert "rank 1 cannot start 1B0 before 2B0 of rank 2, which comes after 2F1 there" in str(caught.value)
    assert "rank 2 cannot start 2F1 before 1F1 of rank 1, which comes after 1B0 there" in str(caught.value)
    assert "rank 0 cannot" not in str(caught.value)


def test_the_order_that_proves_a_schedule_possible_respects_every_arrow():
    for schedule in every_schedule(stages=[1, 3], microbatches=[1, 6]):
        order = check(schedule).order
        at = {entry: number for number, entry in enumerate(order)}
        assert sorted(order) == [(rank, i) for rank, row in enumerate(schedule.ranks) for i in range(len(row))]
        assert all(at[rank, i] < at[rank, i + 1] for rank, i in order if (rank, i + 1) in at)
        where, last = schedule.where, len(schedule.placement) - 1
        for (stage, kind, k), place in where.items():
            comes_first = []
            if kind == "F" and stage > 0:
                comes_first = [(stage - 1, "F", k)]
            elif kind in "BI":
                comes_first = [(stage, "F", k), (stage + 1, "B", k), (stage + 1, "I", k)][:3 if stage < last else 1]
            elif kind == "W":
                comes_first = [(stage, "I", k)]
            assert all(at[where[needed]] < at[place] for needed in comes_first if needed in where)


def test_a_schedule_is_checked_once_and_then_remembered():
    assert check(TWO) is check(TWO)
    assert check(TWO).peak_activations == (2, 1)


# -- happens before ---------------------------------------------------------------------------------------------------

def before(schedule, a, b):
    return happens_before(schedule, parse(a), parse(b))


def test_list_order_and_data_make_one_thing_happen_before_another():
    schedule = build("1f1b", stages=3, microbatches=4)
    assert before(schedule, "0F0", "0F1") and not before(schedule, "0F1", "0F0")          # list
    assert before(schedule, "0F0", "2B0") and before(schedule, "2B0", "0B0")              # data, over three ranks
    assert before(schedule, "2F0", "0F3")                                                 # both: F3 waits behind B0
    assert not before(schedule, "2F2", "0F3") and not before(schedule, "0F3", "2F2")      # neither: at the same time
    assert not before(schedule, "0F0", "0F0")


def test_the_two_of_a_pair_come_neither_before_nor_after_each_other():
    schedule = build("dualpipev", stages=2, microbatches=4)
    pair = next(action for row in schedule.ranks for action in row if len(parts(action)) == 2)
    assert not happens_before(schedule, *pair) and not happens_before(schedule, pair.second, pair.first)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "dualpipev"])
def test_what_happens_before_ends_before_the_other_starts_whatever_the_times(name):
    schedule = build(name, stages=2, microbatches=4)
    for times in ((1, 1, 1), (5, 0.1, 2), (0.1, 3, 7)):
        t = simulate(schedule, *times, hop=0.3)
        for a, (ra, ia) in schedule.where.items():
            for b, (rb, ib) in schedule.where.items():
                if happens_before(schedule, a, b):
                    assert t.ends[ra][ia] <= t.starts[rb][ib]
