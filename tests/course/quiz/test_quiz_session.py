"""Which questions are asked: by lesson, level, mistakes, what is due."""

from datetime import UTC, datetime, timedelta

import pytest

from refimpl.course.quiz.memory import Memory
from refimpl.course.quiz.questions import load
from refimpl.course.quiz.session import choose, standing

QUESTIONS = load()
NOW = datetime(2026, 3, 2, tzinfo=UTC)
REMEMBERED = {
    "ring-bits": Memory(1, False, NOW + timedelta(days=1)),               # missed, not due yet
    "ring-is-two": Memory(2, True, NOW - timedelta(days=1)),              # right, due
    "tp-f-and-g": Memory(1, False, NOW - timedelta(days=5)),              # missed, long due
    "tp-two-columns": Memory(1, True, NOW + timedelta(days=9)),
}


def ids(**how):
    return [question.id for question in choose(QUESTIONS, REMEMBERED, now=NOW, **how)]


def test_all_are_asked_in_the_order_of_the_files():
    assert ids() == [question.id for question in QUESTIONS]


@pytest.mark.parametrize("lesson", ["05", "5", 5])
def test_a_lesson_may_be_written_in_any_way(lesson):
    chosen = choose(QUESTIONS, {}, lesson=lesson)
    assert chosen and {question.lesson for question in chosen} == {"05"}


def test_level_and_lesson_narrow_down_together():
    assert ids(lesson="05", level="recall") == ["tp-all-reduces", "tp-column-backward", "tp-f-and-g"]


def test_mistakes_are_those_whose_last_answer_was_wrong():
    assert ids(mistakes=True) == ["ring-bits", "tp-f-and-g"]
    assert ids(mistakes=True, lesson="01") == ["ring-bits"]


def test_due_are_those_that_should_be_back_by_now_the_longest_overdue_first():
    assert ids(due=True) == ["tp-f-and-g", "ring-is-two"]


def test_mistakes_and_due_are_both():
    assert ids(due=True, mistakes=True) == ["tp-f-and-g", "ring-is-two", "ring-bits"]


def test_what_there_is_not_is_said():
    with pytest.raises(ValueError, match="lesson='99': there are questions for 00, 01, 0"):
        ids(lesson="99")
    with pytest.raises(ValueError, match="level='hard': expected recall, apply, trap"):
        ids(level="hard")


def test_standing_in_words():
    ids = ("ring-elements", "ring-bits", "ring-is-two", "tp-two-columns")
    assert [standing(REMEMBERED.get(id), NOW) for id in ids] == ["new", "missed", "due", "due 2026-03-11"]
