"""The mistake book: what went wrong, by topic and over time, and what should be looked at again.

    attempts (progress.py) + questions --> for each lesson: asked, known, missed, due      --> a table, a plot
                                       --> each question missed: the answer given, why not, what is right

Nothing is stored: the book is worked out from the attempts, so it cannot be wrong about them. A question counts as
known while its last answer was right, and as missed while it was wrong; a second try right after the reason is no sign
of either.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime

from refimpl.course.quiz.memory import counts, memories
from refimpl.course.quiz.questions import Question


@dataclass(frozen=True)
class Mistake:
    """A question whose last answer was wrong."""

    question: Question
    given: str                                           # the answer that was chosen, as it was shown
    numbers: dict                                        # drawn then
    when: datetime
    times: int                                           # how often it was missed in all


@dataclass(frozen=True)
class Topic:
    """How one lesson's questions stand."""

    lesson: str
    questions: int
    asked: int                                           # of them, at least once
    known: int
    missed: int
    due: int                                             # to be asked again by now


def topics(questions, attempts, now=None):
    """[`Topic`], one for each lesson that has questions, in order."""
    now, remembered = now or datetime.now(UTC), memories(attempts)
    found = []
    for lesson in sorted({q.lesson for q in questions}):
        mine = [q.id for q in questions if q.lesson == lesson]
        known = [remembered[id] for id in mine if id in remembered]
        found.append(Topic(lesson, len(mine), len(known), sum(m.passed for m in known),
                           sum(not m.passed for m in known), sum(m.due <= now for m in known)))
    return found


def mistakes(questions, attempts):
    """[`Mistake`], the latest first: questions whose last answer was wrong."""
    by_id, answers = {q.id: q for q in questions}, defaultdict(list)
    for attempt in sorted(filter(counts, attempts), key=lambda attempt: attempt.when):
        if attempt.name in by_id:
            answers[attempt.name].append(attempt)
    found = []
    for id, given in answers.items():
        last, detail = given[-1], given[-1].detail if isinstance(given[-1].detail, dict) else {}
        if not last.passed:
            found.append(Mistake(by_id[id], str(detail.get("choice", "")), detail.get("numbers") or {}, last.when,
                                 sum(not attempt.passed for attempt in given)))
    return sorted(found, key=lambda mistake: mistake.when, reverse=True)


def over_time(questions, attempts):
    """How many questions of each lesson were known after each answer: {lesson: [(when, known)]}, oldest first."""
    lesson_of, known, curves = {q.id: q.lesson for q in questions}, defaultdict(set), defaultdict(list)
    for attempt in sorted(filter(counts, attempts), key=lambda attempt: attempt.when):
        lesson = lesson_of.get(attempt.name)
        if lesson is not None:
            (known[lesson].add if attempt.passed else known[lesson].discard)(attempt.name)
            curves[lesson].append((attempt.when, len(known[lesson])))
    return dict(sorted(curves.items()))


def explained(mistake):
    """(the question, the answer given and why not, the right one and why): texts, with the numbers drawn then."""
    shown = mistake.question.show(numbers=mistake.numbers if mistake.numbers in mistake.question.cases() else None)
    given = next((choice for choice in shown.choices if choice.text == mistake.given), None)
    why_not = "" if given is None or given.right else given.why
    return shown.stem, why_not, f"{shown.right.text}. {shown.right.why} ({mistake.question.source})"


def as_markdown(found):
    """The mistakes as a page: question, what was answered and why not, what is right, and where it is taught."""
    lines = ["# Mistake book", ""]
    for mistake in found:
        stem, why_not, right = explained(mistake)
        lines += [f"## {mistake.question.id}", "", stem, "", f"- You answered: {mistake.given}. {why_not}".rstrip(),
                  f"- Right: {right}", f"- Lesson {mistake.question.lesson}, missed {mistake.times} "
                  f"time{'s' * (mistake.times > 1)}, last on {mistake.when:%Y-%m-%d}", ""]
    return "\n".join(lines)


def as_cards(found):
    """The mistakes as flash cards: lines of front, tab, back, as Anki imports them."""
    from refimpl.course.quiz.export import as_cell

    lines = ["#separator:tab", "#html:true"]
    for mistake in found:
        stem, why_not, right = explained(mistake)
        back = f"{right}\n\nNot {mistake.given}: {why_not}" if why_not else right
        lines.append(f"{as_cell(stem)}\t{as_cell(back)}")
    return "\n".join([*lines, ""])
