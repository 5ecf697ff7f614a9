"""Actions and the lists made of them: what they say, how they are written, which lists are none."""

import pytest

from refimpl.pipeline import Action, Pair, Schedule, build, layers_of, parse
from refimpl.pipeline.action import parts

F, B = Action(0, "F", 7), Action(7, "B", 3)


@pytest.mark.parametrize("text, action", [
    ("0F7", F), ("7B3", B), ("12I345", Action(12, "I", 345)), ("0W0", Action(0, "W", 0)), ("(0F7;7B3)", Pair(F, B))])
def test_an_action_is_written_as_it_is_read(text, action):
    assert parse(text) == action and str(action) == text and type(parse(text)) is type(action)


@pytest.mark.parametrize("text", [
    "", "F", "0X1", "0F", "F1", "0f1", "-1F0", "0F1 ", "(0F7;7B3", "(0F7;(0F1;0B1))", "0F1.5"])
def test_what_is_no_action_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is no action: .*such as 0F3"):
        parse(text)


def test_a_pair_has_two_parts_and_an_action_is_its_own():
    assert parts(parse("(0F7;7B3)")) == (F, B) and parts(F) == (F,)


def test_a_schedule_is_printed_a_rank_a_line_and_knows_where_everything_is():
    schedule = build("1f1b", stages=2, microbatches=2)
    assert str(schedule) == "rank0: 0F0 0F1 0B0 0B1\nrank1: 1F0 1B0 1F1 1B1"
    assert repr(schedule) == "<1f1b: stages=2 microbatches=2 chunks=1>"
    assert schedule.where[parse("1B0")] == (1, 1) and len(schedule.where) == 8
    assert build("dualpipev", 2, 4).where[parse("0F3")] == build("dualpipev", 2, 4).where[parse("3B1")] != (0, 0)


def test_stages_go_round_in_a_loop_or_down_and_up_a_v():
    loop, v = build("interleaved", 3, 3, chunks=2), build("zbv", 3, 3)
    assert loop.placement == (0, 1, 2, 0, 1, 2) and v.placement == (0, 1, 2, 2, 1, 0)
    assert [loop.stages_of(rank) for rank in range(3)] == [[0, 3], [1, 4], [2, 5]]
    assert [v.stages_of(rank) for rank in range(3)] == [[0, 5], [1, 4], [2, 3]]


@pytest.mark.parametrize("change, says", [
    ({"stages": 0}, "stages=0: must be a whole number, 1 or more"), ({"microbatches": 1.5}, "microbatches=1.5"),
    ({"chunks": None}, "chunks=None"),
    ({"placement": (0, 0)}, r"placement=\(0, 0\): must name.*\(0, 1\) works"),
    ({"placement": (0, 1, 0)}, "for each of the 2 stages"),
    ({"ranks": [[F]]}, "1 lists of actions for stages=2"),
    ({"ranks": [["0F0"], [F]]}, "rank 0: '0F0' is no Action"),
    ({"ranks": [[F], [Pair(F, F)]]}, r"rank 1: \(0F7;0F7\) is no pair of a forward and a backward"),
    ({"ranks": [[Pair(B, B)], [F]]}, "is no pair of a forward and a backward"),
])
def test_parts_that_do_not_make_a_schedule_are_refused(change, says):
    given = {"name": "x", "stages": 2, "microbatches": 8, "chunks": 1, "placement": (0, 1), "ranks": [[F], [F]]}
    with pytest.raises(ValueError, match=says):
        Schedule(**given | change)


def held(*arguments):
    return [[list(part) for part in parts_] for parts_ in layers_of(*arguments)]


def test_A21_chunks_take_turns_over_the_ranks_so_each_rank_holds_layers_from_everywhere():
    assert held(8, 2, 2) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert held(8, 2, 4) == [[[0], [2], [4], [6]], [[1], [3], [5], [7]]]
    assert held(8, 2) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    assert held(8, 2, 2, "v") == [[[0, 1], [6, 7]], [[2, 3], [4, 5]]]
    assert held(8, 2, 2, (1, 0, 0, 1)) == [[[2, 3], [4, 5]], [[0, 1], [6, 7]]]


@pytest.mark.parametrize("layers", range(6, 20))
def test_layers_that_do_not_divide_are_all_held_once_and_stages_differ_by_one(layers):
    found = [list(part) for rank in layers_of(layers, 3, 2) for part in rank]
    assert sorted(layer for part in found for layer in part) == list(range(layers))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_fewer_layers_than_stages_are_refused_with_what_works():
    with pytest.raises(ValueError, match="layers=7: .* 8 or more; with stages=4 chunks may be up to 1"):
        layers_of(7, 4, 2)
    with pytest.raises(ValueError, match="layers=3: .*stages up to 3"):
        layers_of(3, 4)
    with pytest.raises(ValueError, match="placement='w'"):
        layers_of(8, 4, 2, "w")
    with pytest.raises(ValueError, match="'v' with 2 chunks"):
        layers_of(12, 4, 3, "v")
