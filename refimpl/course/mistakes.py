"""The mistake book: what went wrong, by topic and over time, and what should be looked at again.

    attempts (progress.py) + questions --> for each lesson: asked, known, missed, due      --> a table, a plot
                                       --> each question missed: the answer given, why not, what is right
                                     --> each open question of a drill: the points that were left out

Nothing is stored: the book is worked out from the attempts, so it cannot be wrong about them. A question counts as
known while its last answer was right, and as missed while it was wrong; a second try right after the reason is no sign
of either.
"""

import random
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime

from refimpl.course import drill
from refimpl.course.interview import Open
from refimpl.course.quiz.markup import as_field
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
class Gap:
    """An open question whose last answer was not complete."""

    question: Open
    points: int
    left_out: tuple                                      # points of its rubric
    when: datetime


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


def gaps(opens, attempts):
    """[`Gap`], the latest first: open questions of which the last answer left points out."""
    by_id, last = {q.id: q for q in opens}, {}
    for attempt in sorted((a for a in attempts if a.kind == drill.KIND), key=lambda attempt: attempt.when):
        last[attempt.name] = attempt
    found = []
    for id, attempt in last.items():
        if id in by_id and not attempt.passed:
            detail = attempt.detail if isinstance(attempt.detail, dict) else {}
            found.append(Gap(by_id[id], detail.get("points", 0), tuple(detail.get("left_out", ())), attempt.when))
    return sorted(found, key=lambda gap: gap.when, reverse=True)


def over_time(questions, attempts):
    """How many questions of each lesson were known after each answer: {lesson: [(when, known)]}, oldest first."""
    lesson_of, known, curves = {q.id: q.lesson for q in questions}, defaultdict(set), defaultdict(list)
    for attempt in sorted(filter(counts, attempts), key=lambda attempt: attempt.when):
        lesson = lesson_of.get(attempt.name)
        if lesson is not None:
            (known[lesson].add if attempt.passed else known[lesson].discard)(attempt.name)
            curves[lesson].append((attempt.when, len(known[lesson])))
    return dict(sorted(curves.items()))


def shown_then(mistake):
    """The question as it is shown, with the numbers drawn then, if it still has them; its choices in a fixed order."""
    numbers = mistake.numbers if mistake.numbers in mistake.question.cases() else None
    return mistake.question.show(random.Random(mistake.question.id), numbers)


def explained(mistake):
    """(the question, the answer given and why not, the right one and why): texts, with the numbers drawn then."""
    shown = shown_then(mistake)
    given = next((choice for choice in shown.choices if choice.text == mistake.given), None)
    why_not = "" if given is None or given.right else given.why
    return shown.stem, why_not, f"{shown.right.text}. {shown.right.why} ({mistake.question.source})"


def as_markdown(found, gaps=()):
    """The mistakes as a page: question, what was answered and why not, what is right, and where it is taught."""
    lines = ["# Mistake book", ""] + ["No open mistakes.", ""] * (not found and not gaps)
    for mistake in found:
        stem, why_not, right = explained(mistake)
        lines += [f"## {mistake.question.id}", "", stem, "", f"- You answered: {mistake.given}. {why_not}".rstrip(),
                  f"- Right: {right}", f"- Lesson {mistake.question.lesson}, missed {mistake.times} "
                  f"time{'s' * (mistake.times > 1)}, last on {mistake.when:%Y-%m-%d}", ""]
    for gap in gaps:
        lines += [f"## {gap.question.id}", "", gap.question.question, "",
                  *(f"- Left out: {point}" for point in gap.left_out), f"- In a minute: {gap.question.aloud}",
                  f"- Lesson {gap.question.lesson}, {gap.points} of {len(gap.question.rubric)} points on "
                  f"{gap.when:%Y-%m-%d}", ""]
    return "\n".join(lines)


def as_cards(found, gaps=()):
    """The mistakes as flash cards: lines of front, tab, back, as Anki imports them."""
    lines = ["#separator:tab", "#html:true"]
    for mistake in found:
        stem, why_not, right = explained(mistake)
        choices = "\n".join(f"- {choice.text}" for choice in shown_then(mistake).choices)
        back = f"{right}\n\nNot {mistake.given!r}. {why_not}" if why_not else right
        lines.append("\t".join(map(as_field, (f"{stem}\n\n{choices}", back))))
    for gap in gaps:
        points = "\n".join(f"- {point}" for point in gap.question.rubric)
        lines.append("\t".join(map(as_field, (gap.question.question, f"{gap.question.aloud}\n\n{points}"))))
    return "\n".join([*lines, ""])
