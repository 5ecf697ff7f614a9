"""The quiz in a terminal, typed by a script."""

import random

import pytest

from refimpl.course.quiz.questions import load
from refimpl.course.quiz.terminal import PROMPT, ask, wrapped

QUESTIONS = {question.id: question for question in load()}
TWO = [QUESTIONS["ring-bits"], QUESTIONS["ring-elements"]]


def sit(me, lines, questions=TWO, seed=1):
    """(result, everything written) of a sitting in which these lines are typed; the input ends after them."""
    typed, written = iter(lines), []

    def read(prompt):
        assert prompt == PROMPT
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    result = ask(questions, me, read, written.append, random.Random(seed))
    assert next(typed, None) is None
    return result, "\n".join(written)


def numbers_of(questions, seed, right):
    """What to type to answer rightly, or wrongly, in a sitting with this seed."""
    rng = random.Random(seed)
    return [str(1 + [choice.right for choice in question.show(rng).choices].index(right)) for question in questions]


def test_a_right_answer_gets_its_explanation_and_source(me):
    result, page = sit(me, numbers_of(TWO, 1, right=True))
    assert result == (2, 2) and page.count("Right. ") == 2 and "2 of 2 right." in page and "Not '" not in page
    assert "Goldberg 1991" in page
    assert [(a.name, a.passed, a.detail["where"]) for a in me.attempts("quiz")] == [
        ("ring-bits", True, "terminal"), ("ring-elements", True, "terminal")]


def test_a_wrong_answer_gets_its_own_reason_and_the_right_one(me):
    result, page = sit(me, numbers_of(TWO, 1, right=False))
    assert result == (2, 0) and page.count("Not '") == 2 and page.count("Right is '") == 2
    chosen = [attempt.detail["choice"] for attempt in me.attempts("quiz")]
    why = dict(TWO[0].wrong)[chosen[0]]
    assert why in " ".join(page.split()) and not any(a.passed for a in me.attempts("quiz"))
    assert {"P", "n"} == set(me.attempts("quiz")[1].detail["numbers"])


def test_enter_skips_and_q_stops_and_neither_is_an_attempt(me):
    assert sit(me, ["", "q"])[0] == (0, 0)
    assert sit(me, ["Q"])[0] == (0, 0)
    assert "Nothing answered." in sit(me, [])[1]                      # the end of the input
    assert me.attempts() == []


def test_what_is_no_answer_is_asked_again(me):
    result, page = sit(me, ["5", "0", "12", "²", "yes", "2", "q"])
    assert result[0] == 1 and page.count("is no answer here") == 5


def test_answers_reached_before_the_input_ended_are_kept(me):
    assert sit(me, ["1"])[0][0] == 1 and len(me.attempts("quiz")) == 1


@pytest.mark.parametrize("columns", [60, 80, 300])
def test_a_page_fits_the_terminal_and_code_keeps_its_lines(me, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, page = sit(me, ["1"], [QUESTIONS["deadlock-all-send"]])
    assert max(map(len, page.splitlines())) <= min(columns, 100)
    assert "\n      comm.send(x, right)\n      y = comm.recv(left)\n" in page and "```" not in page


def test_words_are_not_cut_at_hyphens():
    assert "column-\n" not in wrapped("column-parallel " * 40)
