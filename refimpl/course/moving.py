"""A learner's attempts on the move: to a file, from a file, and away.

    export     every attempt as one JSON object a line: kind, name, at, passed, detail
    take in    those that are not known yet are appended; so files of two machines may be taken in in any order
    reset      export, and only when that is complete, begin anew

A file is written over only where everything in it is exported again: one that was made before a reset is all there is.
"""

import json
import sqlite3
from datetime import datetime
from pathlib import Path

from refimpl.course import drill
from refimpl.course.mistakes import topics
from refimpl.course.plots.files import check_plot_file, write_text
from refimpl.course.quiz.memory import KIND
from refimpl.course.quiz.questions import load

SUFFIXES = (".jsonl", ".json")


def export(me, path):
    """Write all attempts of the progress `me` to `path`. -> how many

    ValueError where it cannot be written, or where the file there has anything that `me` does not know.
    """
    return len(written(me, path))


def written(me, path):
    """The same. -> the attempts that are in the file"""
    check_plot_file(path, suffixes=SUFFIXES, option="FILE")
    attempts = me.attempts()
    lines = [as_line(attempt) for attempt in attempts]
    if Path(path).exists():
        lost = {json.dumps(one, sort_keys=True) for one in attempts_in(path)} - set(lines)
        if lost:
            raise ValueError(f"{path} has {counted(len(lost))} that you do not have now: import it first, or give "
                             f"another name, such as {unused(path)}")
    write_text(path, "".join(line + "\n" for line in lines))
    return attempts


def unused(path):
    """A name like this one that no file has."""
    path, number = Path(path), 2
    while (free := path.with_stem(f"{path.stem}-{number}")).exists():
        number += 1
    return free


def counted(number):
    """"1 attempt", "2 attempts"."""
    return f"{number} attempt{'s' * (number != 1)}"


def take_in(me, path):
    """Append the attempts in a file that `me` does not know, each once: `cat a b > c` may be one. -> (new, the others)

    ValueError, before anything is added, for a file that export has not written.
    """
    found = attempts_in(path)
    known = {as_line(attempt) for attempt in me.attempts()}
    new = [one for line, one in {json.dumps(one, sort_keys=True): one for one in found}.items() if line not in known]
    for one in new:
        me.add(one["kind"], one["name"], one["passed"], one["detail"], datetime.fromisoformat(one["at"]))
    return len(new), len(found) - len(new)


def reset(me, path):
    """Move all attempts to a file and begin anew; what others add meanwhile stays. -> how many"""
    attempts = written(me, path)
    try:
        me.forget(attempts)
    except (OSError, sqlite3.Error) as error:
        raise ValueError(f"{me.path} cannot be written ({error}): nothing was forgotten") from None
    return len(attempts)


def as_line(attempt):
    """An attempt as one line of JSON."""
    return json.dumps({"kind": attempt.kind, "name": attempt.name, "at": attempt.when.isoformat(),
                       "passed": attempt.passed, "detail": attempt.detail}, sort_keys=True)


def attempts_in(path):
    """The attempts in a file, as dicts. ValueError for one that export has not written."""
    try:
        with open(path, encoding="utf-8") as lines:
            return [as_attempt(line, number, path) for number, line in enumerate(lines, start=1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def as_attempt(line, number, path):
    """The attempt in a line, as a dict. ValueError for anything else."""
    try:
        one = json.loads(line)
        if set(one) != {"kind", "name", "at", "passed", "detail"} or datetime.fromisoformat(one["at"]).tzinfo is None:
            raise ValueError
    except (ValueError, TypeError):
        raise ValueError(f"{path}, line {number}: is no attempt; expected a file that `progress export` has "
                         "written") from None
    return one


def overview(me):
    """How far the learner is, as text: exercises solved, interview questions, and the questions of each lesson."""
    from refimpl.course import interview
    from refimpl.course.exercises.catalogue import ALL

    attempts = me.attempts()
    solved = {attempt.name for attempt in attempts if attempt.kind == "exercise" and attempt.passed}
    opens = {question.id for question in interview.load()}
    full = {attempt.name for attempt in attempts if attempt.kind == drill.KIND and attempt.passed}
    lines = [f"exercises solved: {len(solved & {exercise.name for exercise in ALL})} of {len(ALL)}",
             f"interview questions answered in full: {len(full & opens)} of {len(opens)}", "",
             f"{'lesson':8} {'questions':>9} {'known':>6} {'missed':>6} {'due':>5}"]
    for topic in topics(load(), [a for a in attempts if a.kind == KIND]):
        lines.append(f"{topic.lesson:8} {topic.questions:>9} {topic.known:>6} {topic.missed:>6} {topic.due:>5}")
    return "\n".join([*lines, "", f"kept in {me.path}"])
