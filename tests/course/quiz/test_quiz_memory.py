"""What comes back, and when: replayed from attempts, the same for the same attempts."""

import random
from datetime import UTC, datetime, timedelta, timezone

from refimpl.course.progress import Attempt
from refimpl.course.quiz.memory import memories

MONDAY = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def attempt(name, day, passed, detail=None, kind="quiz"):
    return Attempt(kind, name, MONDAY + timedelta(days=day), passed, detail)


def days(memory):
    """In how many days after Monday a question is due."""
    return (memory.due - MONDAY).days


def test_a_wrong_answer_comes_back_soon_and_a_right_one_later():
    found = memories([attempt("wrong", 0, False), attempt("right", 0, True)])
    assert not found["wrong"].passed and found["right"].passed
    assert 1 <= days(found["wrong"]) < days(found["right"]) <= 4


def test_the_oftener_it_was_right_the_longer_it_stays_away_and_a_mistake_brings_it_near():
    history, gaps = [], []
    for _ in range(4):
        due = MONDAY if not history else memories(history)["q"].due
        history.append(Attempt("quiz", "q", due, True))
        gaps.append((memories(history)["q"].due - due).days)
    assert gaps == sorted(set(gaps)) and gaps[-1] > 20
    late = Attempt("quiz", "q", memories(history)["q"].due, False)
    assert (memories([*history, late])["q"].due - late.when).days <= 7


def test_the_same_attempts_give_the_same_days_in_whatever_order_they_were_written():
    history = [attempt(name, day + k / 10, (day * k) % 3 > 0) for day in range(6) for k, name in enumerate("abc")]
    first = memories(history)
    for seed in range(5):
        shuffled = random.Random(seed).sample(history, len(history))
        assert memories(shuffled) == first
    assert first["a"].asked == 6


def test_only_the_last_answer_makes_a_mistake():
    assert memories([attempt("q", 0, False), attempt("q", 1, True)])["q"].passed
    assert not memories([attempt("q", 0, True), attempt("q", 1, False)])["q"].passed


def test_a_second_try_hints_and_exercises_do_not_count():
    found = memories([attempt("q", 0, False), attempt("q", 0.01, True, {"retry": True}),
                      attempt("other", 0, True, kind="exercise"), attempt("third", 0, None)])
    assert set(found) == {"q"} and found["q"].asked == 1 and not found["q"].passed


def test_times_of_another_zone_are_the_same_moments():
    east = timezone(timedelta(hours=9))
    here = [attempt("q", day, True) for day in (0, 3)]
    assert memories([a._replace(when=a.when.astimezone(east)) for a in here]) == memories(here)
