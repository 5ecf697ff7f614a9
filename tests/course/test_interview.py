"""The open questions: every example's numbers are computed again, and nothing is missing."""

import pytest

from refimpl.course import interview
from refimpl.course.interview import load, made
from refimpl.course.quiz.evidence import EVIDENCE
from refimpl.course.quiz.expressions import evaluate

QUESTIONS = load()
TABLE = {"id": "x", "topic": "zero", "lesson": "04", "minutes": 3, "question": "q", "answer": "a", "intuition": "i",
         "aloud": "s", "example": "e", "rubric": ["a", "b", "c"], "checks": ["1 + 1 == 2"]}


def test_there_are_enough_and_the_classic_ones_are_among_them():
    assert len(QUESTIONS) >= 20
    assert {"bubble-ratio", "megatron-all-reduces", "zero-memory", "tp-or-pp", "moe-409b"} <= {q.id for q in QUESTIONS}


@pytest.mark.parametrize("check", [pytest.param(c, id=f"{q.id}: {c}") for q in QUESTIONS for c in q.checks])
def test_the_numbers_of_an_example_are_computed_again(check):
    assert evaluate(check, EVIDENCE) is True


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.id)
def test_an_answer_has_numbers_and_a_version_to_say_in_a_minute(question):
    assert question.checks or question.lesson == "12"
    assert 40 <= len(question.aloud.split()) <= interview.WORDS_A_MINUTE
    assert len(question.answer.split()) > len(question.aloud.split()) * 0.9
    assert 3 <= len(question.rubric) <= 7
    for text in (question.question, question.answer, question.intuition, question.aloud, question.example):
        assert "!" not in text and "simply" not in text


@pytest.mark.parametrize(("change", "says"), [
    ({"answer": " "}, "answer=' ': expected text"),
    ({"question": None}, "question=None"),
    ({"rubric": ["a"]}, "three points or more"),
    ({"checks": ["import os"]}, "is not an expression"),
    ({"checks": ["nothing(3) == 1"]}, "there is no 'nothing'"),
    ({"minutes": 0}, "minutes=0: expected a whole number from 1 to 30"),
    ({"aloud": "word " * 151}, "aloud has 151 words; a minute has room for 150"),
    ({"hint": "x"}, "'hint' is no part"),
])
def test_a_wrong_question_is_refused_with_what_is_wrong(change, says):
    with pytest.raises(ValueError) as error:
        made(TABLE | change)
    assert says in str(error.value)


def test_files_name_the_question_that_is_wrong(tmp_path):
    (tmp_path / "a.toml").write_text('[[question]]\nid = "odd"\n')
    with pytest.raises(ValueError, match=r"a\.toml, question 'odd': topic=None: expected text"):
        load(tmp_path)
    (tmp_path / "a.toml").write_text("[[question]\n")
    with pytest.raises(ValueError, match="cannot be read"):
        load.__wrapped__(tmp_path)
