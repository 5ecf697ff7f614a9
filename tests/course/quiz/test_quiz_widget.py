"""The quiz in a notebook, without a browser: choose, click, read."""

import random
import re
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from refimpl.course.quiz import quiz
from refimpl.course.quiz.questions import load
from refimpl.course.quiz.widget import Quiz, as_html, escaped

QUESTIONS = {question.id: question for question in load()}


def choose(box, right, skip=0):
    """Choose the right answer, or a wrong one, as a mouse would."""
    places = [k for k, choice in enumerate(box.shown.choices) if choice.right is right]
    box.radio.value = places[skip]
    return box.shown.choices[places[skip]]


def answer(box, right):
    """Choose and check; the choice."""
    choice = choose(box, right)
    box.check.click()
    return choice


@pytest.fixture
def widget():
    return quiz("05", seed=3)


def test_a_lesson_has_its_questions_each_in_a_box_with_its_name(widget):
    assert [box.question.lesson for box in widget.boxes] == ["05"] * 14
    for box in widget.boxes:
        assert f"quiz-{box.question.id}" in box._dom_classes
        assert len(box.radio.options) == 4 and box.radio.value is None
        assert not box.check.disabled and box.again.disabled and not box.radio.disabled


def test_choosing_grades_nothing(widget, me):
    box = widget.boxes[0]
    for k in (0, 1, 2, 3):
        box.radio.value = k
    assert "Right" not in box.feedback.value and me.attempts() == [] and not box.check.disabled


def test_a_wrong_answer_gets_its_reason_and_is_remembered(widget, me):
    box = widget.boxes[0]
    choice = answer(box, right=False)
    assert f"<b>Not this one:</b> {escaped(choice.text)}<" in box.feedback.value          # named: it is grey by now
    assert choice.why in box.feedback.value
    assert box.question.why not in box.feedback.value                 # not told before the next try
    assert box.radio.disabled and box.check.disabled and not box.again.disabled
    attempt, = me.attempts("quiz")
    assert (attempt.name, attempt.passed) == (box.question.id, False)
    assert attempt.detail == {"choice": choice.text, "numbers": {}, "retry": False, "where": "notebook"}


def test_a_right_answer_gets_its_explanation_and_source_and_ends_the_question(widget, me):
    box = widget.boxes[0]
    answer(box, right=True)
    assert "Right:" in box.feedback.value and box.question.why in box.feedback.value
    assert box.question.source in box.feedback.value and box.again.disabled and box.check.disabled
    assert [a.passed for a in me.attempts("quiz")] == [True]


def test_feedback_is_a_live_region_from_the_start(widget):
    for box in widget.boxes:
        region, = re.findall(r"<[^>]*>", box.feedback.value.removesuffix("</div>"))       # empty, but there
        assert 'role="status" aria-live="polite"' in region
    answer(widget.boxes[0], right=True)
    assert widget.boxes[0].feedback.value.startswith(f"{region}<div")


def test_nothing_chosen_is_said_and_not_an_attempt(widget, me):
    widget.boxes[0].check.click()
    assert "Choose an answer first." in widget.boxes[0].feedback.value and me.attempts() == []


def test_a_second_click_on_the_same_answer_counts_once(widget, me):
    box = widget.boxes[0]
    answer(box, right=False)
    choose(box, right=True)                                           # set although it is off
    box.check.click()
    assert len(me.attempts("quiz")) == 1 and "Not this one:" in box.feedback.value and box.check.disabled


def test_the_choice_that_the_page_showed_at_the_click_counts_not_an_earlier_one(widget, me):
    box = widget.boxes[0]
    choose(box, right=True)
    places = [k for k, choice in enumerate(box.shown.choices) if not choice.right]
    box.at_click.value = places[0]                                    # the page's word, ahead of the radio's own
    box.check.click()
    assert f"Not this one:</b> {escaped(box.shown.choices[places[0]].text)}<" in box.feedback.value
    box.again.click()
    assert box.at_click.value == -1
    answer(box, right=True)
    assert [a.passed for a in me.attempts("quiz")] == [False, True]


def test_try_again_starts_anew_and_the_mistake_stays_one(widget, me):
    box = widget.boxes[0]
    answer(box, right=False)
    box.again.click()
    assert box.radio.value is None and not box.radio.disabled and not box.check.disabled and box.again.disabled
    assert "Not this one" not in box.feedback.value
    answer(box, right=True)
    assert [(a.passed, a.detail["retry"]) for a in me.attempts("quiz")] == [(False, False), (True, True)]
    assert [b.question.id for b in quiz(mistakes=True).boxes] == [box.question.id]


def test_a_second_try_at_a_template_has_new_numbers_and_grades_by_them(me):
    widget = Quiz([QUESTIONS["ring-seconds"]], {}, me, rng=random.Random(0))
    box, stems = widget.boxes[0], set()
    for _ in range(5):
        stems.add(box.stem.value)
        choice = answer(box, right=False)
        assert choice.why in box.feedback.value
        box.again.click()
    assert len(stems) > 2
    answer(box, right=True)
    assert "Right:" in box.feedback.value


def test_the_first_line_counts_what_was_right_at_the_first_try(widget):
    answer(widget.boxes[0], right=True)
    answer(widget.boxes[1], right=False)
    widget.boxes[1].again.click()
    answer(widget.boxes[1], right=True)
    assert "14 questions, 2 answered, 1 right at the first try." in widget.summary.value


def test_mistakes_come_back_in_a_new_kernel_until_they_are_answered_right(widget):
    answer(widget.boxes[4], right=False)
    missed = widget.boxes[4].question.id
    later = quiz("05")                                                # reads the progress file, as a new kernel would
    box, = [box for box in later.boxes if box.missed_before]
    assert box.question.id == missed and "you missed this one last time" in box.stem.value
    assert "1 of them you missed last time" in later.summary.value
    drill = quiz(mistakes=True)
    answer(drill.boxes[0], right=True)
    assert quiz(mistakes=True).boxes == [] and "No mistakes to come back to." in quiz(mistakes=True).summary.value


def test_two_notebooks_know_of_each_other_s_answers(me):
    one, two = quiz("05"), quiz("05")
    answer(one.boxes[0], right=False)
    answer(two.boxes[1], right=False)
    assert {b.question.id for b in quiz(mistakes=True).boxes} == {one.boxes[0].question.id, two.boxes[1].question.id}


def test_an_answer_that_cannot_be_saved_is_graded_all_the_same_and_said_once(widget, me, tmp_path):
    answer(widget.boxes[0], right=True)
    me.path.chmod(0o444)
    answer(widget.boxes[1], right=False)
    answer(widget.boxes[2], right=True)
    assert "cannot be written" in widget.boxes[1].feedback.value and "Not this one:" in widget.boxes[1].feedback.value
    assert "Right:" in widget.boxes[2].feedback.value and "cannot be written" not in widget.boxes[2].feedback.value


def test_a_damaged_file_is_met_with_a_message_in_the_first_line(me):
    me.path.write_bytes(b"this is no database, and never was one " * 100)
    widget = quiz("05")
    assert str(me.path) in widget.summary.value and len(widget.boxes) == 14


def test_a_file_damaged_while_the_notebook_is_open_keeps_what_can_be_read(widget, me):
    for k in range(300):
        me.add("exercise", f"e{k}", passed=True, detail="a longer text, so that there are pages")
    with closing(sqlite3.connect(me.path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw = me.path.read_bytes()
    me.path.write_bytes(raw[:-4096] + bytes(4096))
    choice = answer(widget.boxes[0], right=False)
    assert choice.why in widget.boxes[0].feedback.value and "attempts could be read" in widget.boxes[0].feedback.value
    kept = [a.name for a in me.attempts()]
    assert kept[:200] == [f"e{k}" for k in range(200)] and kept[-1] == widget.boxes[0].question.id
    answer(widget.boxes[1], right=False)
    assert "damaged" not in widget.boxes[1].feedback.value and len(quiz(mistakes=True).boxes) == 2


def test_a_read_only_file_from_the_start_gives_its_mistakes_and_a_sentence(me):
    me.add("quiz", "tp-f-and-g", passed=False)
    me.path.chmod(0o444)
    box, = quiz(mistakes=True).boxes
    answer(box, right=True)
    assert "Right:" in box.feedback.value and "it is read-only" in box.feedback.value
    assert quiz(mistakes=True).boxes == []                            # this process remembers all the same


def test_a_lesson_that_there_is_not_is_a_value_error():
    with pytest.raises(ValueError, match="lesson='99': there are questions for 00, 01, 0"):
        quiz("99")


def test_stems_are_html_in_which_code_is_code_and_nothing_else_is_markup():
    text = "Is `a < b` & so on?\n\n```\nx[0] = 1 < 2\n    y\n```\n\nYes?"
    assert as_html(text) == ("<p>Is <code>a &lt; b</code> &amp; so on?</p><pre>x[0] = 1 &lt; 2\n    y</pre><p>Yes?</p>")
    for question in QUESTIONS.values():
        assert not re.search(r"`|<(?!/?(p|code|pre)>)", as_html(question.show().stem))


def test_the_package_does_not_need_ipywidgets():
    code = "import sys, refimpl.course.quiz, refimpl.commands.quiz; print({'ipywidgets', 'fsrs'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr


def test_the_check_of_swallowed_errors_works(widget, monkeypatch, caplog):
    """The fixture itself: an error in a button's callback is in the log that it reads."""
    monkeypatch.setattr(widget.me, "add", None)
    answer(widget.boxes[0], right=True)
    assert [r for r in caplog.records if r.name == "traitlets" and "Exception in" in r.getMessage()]
    caplog.clear()
