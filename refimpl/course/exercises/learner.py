"""What a learner calls, from a notebook or through the commands: checks and hints that remember.

    check("ring_all_reduce", my_function)           in a notebook: the verdict on one's own function
    hint("ring_all_reduce")                         the next hint; after the last one, where the solution is

Both are written to the progress file (refimpl/course/progress.py), which the shell and all notebooks share.
"""

from dataclasses import replace

from refimpl.course.exercises.catalogue import ALL, find
from refimpl.course.exercises.checks import examine
from refimpl.course.exercises.finding import NOT_IMPLEMENTED
from refimpl.course.progress import progress

LINE = 160                                            # characters in a line of a verdict before the hint gets its own
IN_A_NOTEBOOK, IN_A_SHELL = 'hint("{}")', "python -m refimpl hint {}"


def check(name, function):
    """The `Verdict` on your function for the exercise of this name: it says what is wrong, and is remembered."""
    verdict = remembered(examine(function, name), IN_A_NOTEBOOK)
    return replace(verdict, details=(*verdict.details, *progress().messages()))


def hint(name):
    """The next hint for the exercise of this name, as a text that shows itself at the end of a cell."""
    exercise = find(name)
    seen, number = hints_seen(exercise), len(exercise.hints)
    progress().add("hint", exercise.name, detail={"hint": min(seen + 1, number)})
    text = f"{exercise.name}, hint {min(seen + 1, number)} of {number}\n  {exercise.hints[min(seen, number - 1)]}"
    if seen >= number:
        text += f"\n  This is the last one; the solution is in solutions/{exercise.filename}."
    return Text("\n  ".join([text, *progress().messages()]))


class Text(str):
    """A text that a notebook shows as it is, without quotes."""

    __repr__ = str.__str__


def remembered(verdict, asking=IN_A_SHELL):
    """Write the verdict down, unless nothing was tried; the verdict with a line that says how to ask for a hint."""
    if verdict.diagnosis != NOT_IMPLEMENTED:
        progress().add("exercise", verdict.name, verdict.passed, {"diagnosis": verdict.diagnosis})
    return with_hint(verdict, asking)


def with_hint(verdict, asking):
    """The verdict with a line that says how to get the next hint, or where the solution is when all are seen."""
    if verdict.passed:
        return verdict
    exercise = find(verdict.name)
    seen, number = hints_seen(exercise), len(exercise.hints)
    line = (f"(hint {seen + 1} of {number}: {asking.format(exercise.name)})" if seen < number
            else f"(all hints are seen; the solution is in solutions/{exercise.filename})")
    *details, last = verdict.details or ("",)
    both = f"{last} {line}".strip()
    fits = len(both) <= LINE and "\n" not in last
    return replace(verdict, details=(*details, both) if fits else (*details, last, line))


def hints_seen(exercise):
    """How many of an exercise's hints the learner has asked for."""
    return min(len(progress().attempts("hint", exercise.name)), len(exercise.hints))


def status():
    """What is solved and what was tried: per exercise a dict of plain values, lesson by lesson."""
    rows = []
    for exercise in sorted(ALL, key=lambda exercise: exercise.lesson):
        tried = progress().attempts("exercise", exercise.name)
        solved = [attempt.when for attempt in tried if attempt.passed]
        rows.append({
            "name": exercise.name, "title": exercise.title, "lesson": exercise.lesson, "minutes": exercise.minutes,
            "difficulty": exercise.difficulty, "kind": exercise.kind, "passed": bool(solved), "attempts": len(tried),
            "score": exercise.points if solved else 0, "points": exercise.points, "hints": hints_seen(exercise),
            "solved": solved[0].isoformat(timespec="seconds") if solved else None,
            "diagnosis": tried[-1].detail["diagnosis"] if tried and isinstance(tried[-1].detail, dict) else None,
        })
    return rows
