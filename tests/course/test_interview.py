"""The open questions: every example's numbers are computed again, and nothing is missing."""

import ast
import math
import re

import pytest

from refimpl.course import interview
from refimpl.course.interview import load, made
from refimpl.course.quiz.evidence import EVIDENCE
from refimpl.course.quiz.expressions import ARITHMETIC, evaluate

QUESTIONS = load()
TOLD = {"job-hangs": {1023, 5119, 5120, 517}}                          # names of ranks and of their collectives
TABLE = {"id": "x", "topic": "zero", "lesson": "04", "minutes": 3, "question": "q", "answer": "a", "intuition": "i",
         "aloud": "s", "example": "e", "rubric": ["a", "b", "c"], "checks": ["1 + 1 == 2"]}


def test_there_are_enough_and_the_classic_ones_are_among_them():
    assert len(QUESTIONS) >= 20
    assert {"bubble-ratio", "megatron-all-reduces", "zero-memory", "tp-or-pp", "moe-409b"} <= {q.id for q in QUESTIONS}


@pytest.mark.parametrize("check", [pytest.param(c, id=f"{q.id}: {c}") for q in QUESTIONS for c in q.checks])
def test_the_numbers_of_an_example_are_computed_again(check):
    assert evaluate(check, EVIDENCE) is True


def asks(check):
    """Whether a check calls the code of the course: another than arithmetic on numbers that are typed."""
    return any(isinstance(node, ast.Call) and getattr(node.func, "id", None) not in ARITHMETIC
               for node in ast.walk(ast.parse(check, mode="eval")))


def numbers_in(text):
    """Numbers of a text, without those of names: 1,024 and 7.5e9 and 6e-8, and neither GPT-3 nor 2^-11 nor H100."""
    return {float(found.replace(",", "")) for found in re.findall(
        r"(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?", text)}


def without_check(numbers, checks):
    """Those of the numbers that no check has: in percent, thousands or billions, too."""
    constants = {float(node.value) for check in checks for node in ast.walk(ast.parse(check, mode="eval"))
                 if isinstance(node, ast.Constant) and isinstance(node.value, (int, float))}
    units = (1, 100, 1e3, 1e-3, 1e6, 1e-6, 1e9, 1e-9, 1e-12)
    same = lambda x, y: any(math.isclose(x, y * unit, rel_tol=1e-9) for unit in units)
    return sorted(x for x in numbers if x and not any(same(x, y) for y in constants))


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q.checks], ids=lambda q: q.id)
def test_checks_have_the_numbers_of_the_example_and_ask_the_code_for_them(question):
    """In an answer at least those with a decimal point, which are results; in an example all but names of ranks."""
    assert without_check(numbers_in(question.example) - TOLD.get(question.id, set()), question.checks) == []
    results = {x for x in numbers_in(question.answer) if x % 1}
    assert without_check(results, question.checks) == []
    assert 2 * sum(map(asks, question.checks)) >= len(question.checks), question.checks


@pytest.mark.parametrize(("check", "code"), [
    ("2 * 2 * 2 * 2 == 16", False), ("round(7 / 96, 2) == 0.07", False), ("zero_sends(3, 4) == 3", True),
    ("simulate(build('1f1b', 8, 64)).bubble_of_ideal == 7 / 64", True), ("Layout(dp=2).world == 2", True)])
def test_arithmetic_is_not_taken_for_a_check_of_the_code(check, code):
    assert asks(check) == code


def test_a_number_without_a_check_is_found_out():
    assert numbers_in("GPT-3: 1,024 x 7.5e9 bytes on H100, 11%; 2^-24 is 6e-8.") == {1024, 7.5e9, 11, 2, 6e-8}
    assert without_check({11, 7.5e9, 3}, ["round(7 / 64, 2) == 0.11", "f(7.5) == 1"]) == [3]


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
