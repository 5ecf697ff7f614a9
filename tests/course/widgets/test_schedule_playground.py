"""The playground: what runs is scored as `simulate` says, what gets stuck says where, what is no schedule says why."""

import re
from xml.etree import ElementTree

import pytest

from refimpl.course.widgets import SchedulePlayground
from refimpl.course.widgets.schedule_playground import EXAMPLES, as_far_as_it_goes, draw_played, play, read
from refimpl.pipeline import FAMILIES, ScheduleError, build, check, simulate


def written(schedule):
    """A schedule as somebody would type it."""
    return "\n".join(" ".join(map(str, row)) for row in schedule.ranks)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("p, m", [(2, 4), (3, 6), (4, 8)])
def test_a_known_schedule_typed_in_is_read_and_timed_as_itself(name, p, m):
    known = build(name, p, m)
    played = play(written(known))
    assert played.schedule.ranks == known.ranks and played.schedule.placement == known.placement
    assert played.timeline.makespan == simulate(known).makespan and not played.stuck


@pytest.mark.parametrize("name, par", [("1f1b", "1f1b"), ("gpipe", "1f1b"), ("zb_h1", "zb_h1"), ("zb_h2", "zb_h1"),
                                       ("interleaved", "interleaved"), ("zbv", "zbv")])
def test_par_is_the_known_schedule_of_its_kind(name, par):
    played = play(written(build(name, 4, 8)))
    assert played.par.schedule.name == par
    title = draw_played(written(build(name, 4, 8))).title
    if name == par:
        assert title == "It runs: par in time, par in memory"


def test_the_score_says_how_far_from_par():
    assert draw_played(EXAMPLES["one micro-batch at a time"]).title == \
        "It runs: 18 over par in time, 2 under par in memory"
    assert draw_played(EXAMPLES["all forwards first (GPipe)"]).title == "It runs: par in time, 1 over par in memory"
    assert draw_played(written(build("zb_h2", 4, 8))).title == "It runs: par in time, 3 over par in memory"


def test_a_rank_leaves_its_own_stage_out():
    assert read("F0 B0\nF0 B0").ranks == read("0F0 0B0\n1F0 1B0").ranks
    assert read("F0 I0 W0").ranks == build("custom", 1, 1, ranks=["0F0 0I0 0W0"]).ranks


def test_a_number_of_micro_batches_that_interleaving_does_not_take_has_a_par_all_the_same():
    lists = "0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2\n1F0 1F1 1F2 3F0 3F1 3F2 3B0 3B1 3B2 1B0 1B1 1B2"
    assert play(lists).par is not None


def test_a_circle_is_drawn_as_far_as_it_gets_and_says_who_is_at_what():
    played = play(EXAMPLES["a circle"])
    assert {rank: (str(action), str(needed), other) for rank, (action, needed, other) in played.stuck.items()} == {
        0: ("0B0", "1B0", 1), 1: ("1F1", "0F1", 0)}
    assert played.ends == [[1.0], []]
    shown = draw_played(EXAMPLES["a circle"])
    assert shown.title.startswith("Stuck") and "rank 0 is at 0B0, which needs 1B0 of rank 1" in shown.words
    hints = [e[0].text for e in ElementTree.fromstring(shown.svg).iter() if e.tag.endswith("}rect") and len(e)]
    assert hints == ["0F0: 0 to 1", "0B0 needs 1B0 of rank 1", "1F1 needs 0F1 of rank 0"]


def test_a_rank_that_waits_for_itself_is_told_so():
    assert "which stands later in its own list" in draw_played("F0 W0 I0").words


@pytest.mark.parametrize("name", FAMILIES)
def test_what_can_run_is_never_stuck_and_gets_the_times_of_the_timeline(name):
    """Two ways to time a schedule, written apart, agree wherever nothing is in the way."""
    schedule = build(name, 3, 6)
    starts, ends, stuck = as_far_as_it_goes(schedule)
    t = simulate(schedule)
    assert not stuck and starts == t.starts and ends == t.ends


@pytest.mark.parametrize("swap", [(0, 3), (1, 2), (2, 5), (0, 7)])
def test_stuck_is_what_check_refuses(swap):
    rows = [list(row) for row in build("1f1b", 3, 4).ranks]
    a, b = swap
    rows[1][a], rows[1][b] = rows[1][b], rows[1][a]
    lists = "\n".join(" ".join(map(str, row)) for row in rows)
    refused = False
    try:
        check(read(lists))
    except ScheduleError:
        refused = True
    assert bool(play(lists).stuck) == refused


@pytest.mark.parametrize("lists, says", [
    ("", "0 lines: write one for each rank, for 1 to 6 ranks"),
    ("F0 B0\n" * 7, "7 lines"),
    ("F0 X0", "rank 0: 'X0' is no action: write F, B, I or W and the micro-batch"),
    ("F0 B0\nF0 1", "rank 1: '1' is no action"),
    ("F12 B12", "micro-batch 12: write 0 to 11 at most"),
    ("(0F0;0F1) B0", "no pair of a forward and a backward"),
    ("F0 " * 49, "write 1 to 48 actions for a rank"),
])
def test_what_is_no_schedule_is_refused_in_a_sentence(lists, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        draw_played(lists)


@pytest.mark.parametrize("lists, number, says", [
    ("F0 F1 B0 B1\nF0 B0 F1", 1, "the backward of stage 1, micro-batch 1, on rank 1 needs one B"),
    ("F0 B0\nF1 B1", 4, "0F1 is missing on rank 0; the backward of stage 0, micro-batch 1, on rank 0 needs one B"),
    ("F0 F0 B0", 1, "0F0 is there 2 times on rank 0"),
    ("1F0 B0\nF0 B0", 1, "1F0 is on rank 0, but stage 1 is on rank 1"),
    ("F0 I0 W0 W0", 1, "there is 1 I, 2 W"),
    ("F0 F1 F2 F3 F4 F5 F6", 7, "and 1 more"),
])
def test_what_is_missing_or_misplaced_is_said_below_the_lists(lists, number, says):
    shown = draw_played(lists)
    assert shown.title == f"Not yet a schedule: {number} thing{'s' * (number > 1)} to mend"
    assert says in shown.words
    boxes = [e for e in ElementTree.fromstring(shown.svg).iter() if e.tag.endswith("}rect")]
    assert len(boxes) == len(lists.split()) + 1                                                       # 1: the paper


def test_the_widget_plays_at_every_key_and_from_the_menu():
    playground = SchedulePlayground()
    menu = playground.children[0].children[0]
    for words, lists in EXAMPLES.items():
        menu.label = words
        assert playground.shown == draw_played(lists)
    playground.controls["lists"].value = "F0 B"
    assert "rank 0: &#x27;B&#x27; is no action" in playground.status.value
