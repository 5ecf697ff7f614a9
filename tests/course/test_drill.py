"""The mock interview: what is asked fits the time, the clock ends it, and points are counted by topic."""

import random

import pytest

from refimpl.course import drill, interview
from refimpl.course.progress import Progress
from refimpl.course.quiz.questions import load

OPENS, QUESTIONS = list(interview.load()), load()


@pytest.fixture
def me(tmp_path):
    return Progress(tmp_path / "progress.sqlite")


def held(me, chosen, answers, minutes=60, clock=lambda: 0.0):
    """(scores, everything written) of an interview in which the learner types these answers."""
    said, typed = [], iter(answers)

    def read(prompt):
        said.append(prompt)
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    scores = drill.hold(chosen, me, minutes, read, said.append, random.Random(0), clock)
    return scores, "\n".join(said)


@pytest.mark.parametrize("minutes", [1.25, 5, 17, 60, 500])
def test_what_is_asked_fits_the_minutes_and_no_more_would(minutes):
    chosen = drill.plan(QUESTIONS, OPENS, ["01", "05"], minutes, random.Random(1))
    used = sum(map(drill.minutes_of, chosen))
    assert used <= minutes
    pool = [q for q in (*OPENS, *QUESTIONS) if q.lesson in ("01", "05")]
    assert len(chosen) == len(pool) or minutes - used < drill.CHOICE_MINUTES
    assert len({q.id for q in chosen}) == len(chosen)


@pytest.mark.parametrize("seed", range(5))
def test_each_topic_gets_a_question_before_any_gets_a_second(seed):
    lessons = sorted(drill.TOPICS)
    enough = len(lessons) * drill.CHOICE_MINUTES
    for minutes in (enough, enough + 4, 30, 60):
        chosen = drill.plan(QUESTIONS, OPENS, lessons, minutes, random.Random(seed))
        assert {q.lesson for q in chosen} == set(lessons)
        assert drill.without_time(chosen, QUESTIONS, OPENS, lessons) == ([], enough)
    assert any(isinstance(q, interview.Open) for q in chosen)


def test_topics_without_time_are_named_and_another_interview_has_others():
    lessons = sorted(drill.TOPICS)
    plans = [drill.plan(QUESTIONS, OPENS, lessons, 5, random.Random(seed)) for seed in range(4)]
    assert len({tuple(q.lesson for q in chosen) for chosen in plans}) > 1
    for chosen in plans:
        missing, enough = drill.without_time(chosen, QUESTIONS, OPENS, lessons)
        assert sorted(missing) == sorted(drill.TOPICS[n] for n in lessons if n not in {q.lesson for q in chosen})
        assert (len(missing), enough) == (len(lessons) - 4, len(lessons) * drill.CHOICE_MINUTES)


def test_topics_take_turns():
    chosen = drill.plan(QUESTIONS, OPENS, ["05", "01"], 12, random.Random(1))
    assert {q.lesson for q in chosen} == {"01", "05"}
    assert [q.lesson for q in chosen] == sorted((q.lesson for q in chosen), reverse=True)  # as asked


@pytest.mark.parametrize(("topics", "lessons"), [
    (["8", "pipelines", "08"], ["08", "08", "08"]), (["ZeRO", " zero "], ["04", "04"])])
def test_topics_go_by_number_and_by_name(topics, lessons):
    assert drill.lessons_of(topics) == lessons


def test_an_unknown_topic_and_too_short_a_time_are_refused():
    with pytest.raises(ValueError, match="nearest 'pipelines'"):
        drill.lessons_of(["pipeline"])
    with pytest.raises(ValueError, match=r"minutes=1: expected time for a question at least; nearest 1\.25"):
        drill.plan(QUESTIONS, OPENS, ["01"], 1)
    with pytest.raises(ValueError, match="there are no questions about 99"):
        drill.plan(QUESTIONS, OPENS, ["99"], 30)


def test_an_open_question_shows_the_answer_after_yours_and_counts_the_points(me):
    question = next(q for q in OPENS if q.id == "bubble-ratio")
    answers = ["", "y", "n", "yes", "", "perhaps", "y"]
    scores, said = held(me, [question], answers)
    assert (scores["08"].points, scores["08"].most) == (3, len(question.rubric))
    assert scores["08"].missed == (question,)
    assert said.index("Say your answer aloud") < said.index("In a minute") < said.index(question.rubric[0])
    (attempt,) = me.attempts(drill.KIND)
    assert (attempt.name, attempt.passed, attempt.detail) == (
        "bubble-ratio", False, {"points": 3, "most": 5, "left_out": [question.rubric[1], question.rubric[3]]})
    assert "'perhaps' is no answer here." in said and "3 of 5 points." in said


def test_a_choice_is_one_point_and_is_remembered_as_the_quiz_does(me):
    question = next(q for q in QUESTIONS if not q.draw)
    shown = question.show(random.Random(0))
    right = next(str(k) for k, choice in enumerate(shown.choices, start=1) if choice.right)
    scores, _ = held(me, [question], [right])
    assert (scores[question.lesson].points, scores[question.lesson].most) == (1, 1)
    wrong = next(str(k) for k, choice in enumerate(shown.choices, start=1) if not choice.right)
    scores, said = held(me, [question], [wrong])
    assert (scores[question.lesson].points, scores[question.lesson].most) == (0, 1)
    assert "Not '" in said
    assert [a.passed for a in me.attempts("quiz", question.id)] == [True, False]


def test_a_skipped_choice_counts_as_missed_but_is_no_attempt(me):
    question = QUESTIONS[0]
    scores, _ = held(me, [question], [""])
    assert (scores[question.lesson].points, scores[question.lesson].most) == (0, 1)
    assert me.attempts() == []


def test_time_ends_it_and_so_does_q(me):
    times = iter([0.0, 10.0, 61.0, 62.0])
    scores, said = held(me, QUESTIONS[:3], [""] * 3, minutes=1, clock=lambda: next(times))
    assert sum(score.most for score in scores.values()) == 1 and "Time is over." in said
    scores, _ = held(me, QUESTIONS[:3], ["q"])
    assert scores == {}
    scores, _ = held(me, [OPENS[0], QUESTIONS[0]], ["q"])
    assert scores == {}


@pytest.mark.parametrize("end", [["q", "y", "y", "y"], []])
def test_an_answer_that_is_half_graded_is_no_attempt(me, end):
    scores, _ = held(me, [OPENS[0], QUESTIONS[0]], ["", "y", *end])
    assert scores == {} and me.attempts() == []


def test_the_report_is_by_topic_and_says_what_to_read_again():
    question = next(q for q in OPENS if q.lesson == "04")
    text = drill.report({"04": drill.Score(2, 6, (question,)), "01": drill.Score(3, 3)})
    assert "zero                     2 of 6  04" in text
    assert "together                 5 of 9  56%" in text
    assert f"{question.id}: lesson 04, zero" in text
    assert drill.report({}) == "Nothing answered."
    assert drill.report({}, [question]) == "Nothing answered.\nNot answered: zero."
    assert "Not answered" not in drill.report({"04": drill.Score(2, 6)}, [question])


def test_every_lesson_with_questions_is_a_topic():
    assert {q.lesson for q in (*OPENS, *QUESTIONS)} <= drill.TOPICS.keys()
