"""The mistake book and attempts on the move."""

import csv
import json
from datetime import UTC, datetime, timedelta

import pytest

from refimpl.course import drill, interview, moving
from refimpl.course import mistakes as book
from refimpl.course.progress import Progress
from refimpl.course.quiz.questions import load
from refimpl.course.quiz.session import record

QUESTIONS = load()
DAY = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def me(tmp_path):
    return Progress(tmp_path / "progress.sqlite")


def answer(me, question, right, day=0):
    """Answer a question rightly or wrongly; the choice."""
    shown = question.show()
    choice = next(choice for choice in shown.choices if choice.right is right)
    detail = {"choice": choice.text, "numbers": shown.numbers, "retry": False}
    me.add("quiz", question.id, right, detail, DAY + timedelta(days=day))
    return choice


def test_a_question_is_a_mistake_while_its_last_answer_was_wrong(me):
    one, two, three = QUESTIONS[:3]
    answer(me, one, False, 0)
    answer(me, one, True, 1)
    answer(me, two, False, 1)
    answer(me, two, False, 2)
    answer(me, three, False, 3)
    found = book.mistakes(QUESTIONS, me.attempts())
    assert [(m.question.id, m.times) for m in found] == [(three.id, 1), (two.id, 2)]


def test_a_second_try_right_after_the_reason_does_not_count(me):
    question = QUESTIONS[0]
    answer(me, question, False)
    shown = question.show()
    record(me, shown, shown.right, retry=True)
    assert [m.question.id for m in book.mistakes(QUESTIONS, me.attempts())] == [question.id]


def test_topics_count_what_is_known_missed_and_due(me):
    mine = [q for q in QUESTIONS if q.lesson == "05"][:3]
    answer(me, mine[0], True)
    answer(me, mine[1], True)
    answer(me, mine[2], False)
    topics = {t.lesson: t for t in book.topics(QUESTIONS, me.attempts(), DAY + timedelta(hours=1))}
    assert (topics["05"].asked, topics["05"].known, topics["05"].missed) == (3, 2, 1)
    assert topics["05"].questions == sum(q.lesson == "05" for q in QUESTIONS)
    assert topics["01"].asked == 0
    later = {t.lesson: t for t in book.topics(QUESTIONS, me.attempts(), DAY + timedelta(days=100))}
    assert later["05"].due == 3


def test_the_curve_over_time_goes_up_and_down(me):
    one, two = [q for q in QUESTIONS if q.lesson == "05"][:2]
    for question, right, day in ((one, True, 0), (two, True, 1), (one, False, 2), (one, True, 3)):
        answer(me, question, right, day)
    assert [known for _, known in book.over_time(QUESTIONS, me.attempts())["05"]] == [1, 2, 1, 2]


@pytest.mark.parametrize("kind", ["words", "numbers"])
def test_a_mistake_is_explained_with_the_numbers_it_was_asked_with(me, kind):
    question = next(q for q in QUESTIONS if bool(q.draw) is (kind == "numbers"))
    choice = answer(me, question, False)
    (mistake,) = book.mistakes(QUESTIONS, me.attempts())
    stem, why_not, right = book.explained(mistake)
    assert why_not == choice.why and question.source in right
    assert stem == question.filled(question.stem, mistake.numbers)


def test_the_book_as_a_page_and_as_cards(me):
    choice = answer(me, QUESTIONS[0], False)
    found = book.mistakes(QUESTIONS, me.attempts())
    page, cards = book.as_markdown(found), book.as_cards(found)
    assert page.startswith("# Mistake book") and choice.text in page and f"## {QUESTIONS[0].id}" in page
    header, html, line, end = cards.split("\n")
    assert (header, html, end) == ("#separator:tab", "#html:true", "")
    assert len(line.split("\t")) == 2


def test_cards_keep_code_and_quotation_marks_and_are_the_same_when_made_again(me):
    quoted = next(q for q in QUESTIONS if q.stem.startswith('"'))
    coded = next(q for q in QUESTIONS if "```" in q.stem)
    for question in (quoted, coded):
        answer(me, question, False)
    cards = book.as_cards(book.mistakes(QUESTIONS, me.attempts()))
    assert cards == book.as_cards(book.mistakes(QUESTIONS, me.attempts()))
    fronts = [front for front, _ in csv.reader(cards.splitlines()[2:], delimiter="\t")]
    assert all(len(front.split("<br>- ")) == 5 for front in fronts)                          # the stem and its choices
    assert sum(front.startswith("&quot;") for front in fronts) == 1
    code = coded.stem.split("```")[1].strip("\n")
    assert any(f"<pre>{code.replace(chr(10), '<br>')}</pre>" in front for front in fronts) and "```" not in cards


def test_an_open_question_stays_in_the_book_until_it_is_answered_in_full(me):
    opens = interview.load()
    one, two = opens[:2]
    me.add(drill.KIND, one.id, False, {"points": 1, "most": 5, "left_out": list(one.rubric[1:])}, DAY)
    me.add(drill.KIND, two.id, False, {"points": 2, "most": 4}, DAY + timedelta(days=1))    # as older versions wrote it
    first, second = book.gaps(opens, me.attempts())
    assert (first.question, first.points, first.left_out) == (two, 2, ())
    assert (second.question, second.points, second.left_out) == (one, 1, one.rubric[1:])
    page, cards = book.as_markdown([], [second]), book.as_cards([], [second])
    assert f"- Left out: {one.rubric[1]}" in page and one.aloud in page and "No open mistakes" not in page
    assert cards.count("\n") == 3 and one.rubric[0] in cards
    me.add(drill.KIND, one.id, True, {"points": 5, "most": 5, "left_out": []}, DAY + timedelta(days=2))
    assert [gap.question for gap in book.gaps(opens, me.attempts())] == [two]
    assert "No open mistakes." in book.as_markdown([])
    assert f"interview questions answered in full: 1 of {len(opens)}" in moving.overview(me)


def test_attempts_travel_and_are_not_doubled(me, tmp_path):
    answer(me, QUESTIONS[0], False)
    answer(me, QUESTIONS[1], True)
    me.add("exercise", "ring_all_reduce", True, {"diagnosis": "correct"}, DAY)
    path = tmp_path / "there.jsonl"
    assert moving.export(me, str(path)) == 3
    other = Progress(tmp_path / "other.sqlite")
    answer(other, QUESTIONS[2], True)
    assert moving.take_in(other, str(path)) == (3, 0)
    assert moving.take_in(other, str(path)) == (0, 3)
    assert {a.name for a in other.attempts()} == {*(q.id for q in QUESTIONS[:3]), "ring_all_reduce"}
    assert [a for a in other.attempts() if a.name != QUESTIONS[2].id] == me.attempts()


def test_an_attempt_that_a_file_has_twice_is_taken_in_once(me, tmp_path):
    """As after `cat here.jsonl there.jsonl > both.jsonl`."""
    answer(me, QUESTIONS[0], False)
    answer(me, QUESTIONS[1], True)
    path, other = tmp_path / "both.jsonl", Progress(tmp_path / "other.sqlite")
    moving.export(me, str(path))
    path.write_text(path.read_text() * 2)
    assert moving.take_in(other, str(path)) == (2, 2)
    assert other.attempts() == me.attempts()


def test_reset_keeps_everything_in_the_file_and_begins_anew(me, tmp_path):
    answer(me, QUESTIONS[0], False)
    path = tmp_path / "old.jsonl"
    assert moving.reset(me, str(path)) == 1
    assert me.attempts() == []
    assert moving.take_in(me, str(path)) == (1, 0)


def test_a_second_reset_does_not_write_over_the_first_ones_file(me, tmp_path):
    answer(me, QUESTIONS[0], False)
    path = tmp_path / "old.jsonl"
    moving.reset(me, str(path))
    for write in (moving.reset, moving.export):
        with pytest.raises(ValueError, match=r"has 1 attempt that you do not have now: import it .*old-2\.jsonl"):
            write(me, str(path))
    answer(me, QUESTIONS[1], True)
    with pytest.raises(ValueError, match="has 1 attempt that you do not have now"):
        moving.reset(me, str(path))
    assert len(me.attempts()) == 1 and moving.take_in(me, str(path)) == (1, 0)
    assert moving.export(me, str(path)) == 2                                  # all that is in it is exported again
    path.write_text("something else")
    with pytest.raises(ValueError, match="is no attempt"):
        moving.export(me, str(path))
    assert path.read_text() == "something else"


def test_reset_does_not_forget_what_it_cannot_write(me, tmp_path):
    answer(me, QUESTIONS[0], False)
    with pytest.raises(ValueError, match="there is no folder"):
        moving.reset(me, str(tmp_path / "nowhere" / "x.jsonl"))
    assert len(me.attempts()) == 1


@pytest.mark.parametrize("line", ["{", "[1]", '{"kind": "quiz"}', json.dumps(
    {"kind": "quiz", "name": "x", "at": "2026-01-01T00:00:00", "passed": True, "detail": None})])
def test_a_file_of_something_else_adds_nothing(me, tmp_path, line):
    path = tmp_path / "odd.jsonl"
    good = {"kind": "quiz", "name": "x", "at": "2026-01-01T00:00:00+00:00", "passed": True, "detail": None}
    path.write_text(json.dumps(good) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"odd\.jsonl, line 2: is no attempt"):
        moving.take_in(me, str(path))
    assert me.attempts() == []


def test_the_overview_counts_exercises_and_questions(me):
    me.add("exercise", "ring_all_reduce", True)
    answer(me, QUESTIONS[0], True)
    text = moving.overview(me)
    assert "exercises solved: 1 of" in text and str(me.path) in text
