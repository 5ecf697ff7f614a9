"""Open questions, as an interviewer asks them: read from exercises/interview/*.toml, answered aloud, graded by oneself.

    [[question]]
    id = "bubble-ratio"           topic = "pipelines"       lesson = "08"       minutes = 4
    question = what is asked      answer = in full          intuition = why it is so, without a formula
    aloud = a version to say in a minute                    example = worked, with numbers
    rubric = ["names ...", ...]   the points of a good answer, one for each
    checks = ["expression", ...]  the example's numbers, computed again: each must be true (evidence.py)

A point of the rubric is met or not: so the grade is a count, and two people who grade alike get the same.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from refimpl.course.quiz.expressions import parse

FOLDER = Path(__file__).resolve().parents[2] / "exercises" / "interview"
TEXTS = ("id", "topic", "lesson", "question", "answer", "intuition", "aloud", "example")
WORDS_A_MINUTE = 150                                     # spoken


@dataclass(frozen=True)
class Open:
    """One open question; the fields are those of the file."""

    id: str
    topic: str
    lesson: str
    minutes: int
    question: str
    answer: str
    intuition: str
    aloud: str
    example: str
    rubric: tuple
    checks: tuple


@cache
def load(folder=FOLDER):
    """All open questions, in the order of the files. ValueError that names file and question if one is wrong."""
    found = []
    for path in sorted(Path(folder).glob("*.toml")):
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8")).get("question", [])
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise ValueError(f"{path}: cannot be read: {error}") from None
        for number, table in enumerate(tables, start=1):
            try:
                found.append(made(table))
            except ValueError as error:
                raise ValueError(f"{path}, question {table.get('id', number)!r}: {error}") from None
    ids = [question.id for question in found]
    for id in ids:
        if ids.count(id) > 1:
            raise ValueError(f"{folder}: two questions have the id {id!r}, by which attempts are remembered")
    return tuple(found)


def made(table):
    """The `Open` question in a table. ValueError for what is missing or does not fit."""
    for name in TEXTS:
        if not isinstance(table.get(name), str) or not table[name].strip():
            raise ValueError(f"{name}={table.get(name)!r}: expected text")
    rubric, checks, minutes = table.get("rubric"), table.get("checks"), table.get("minutes")
    if not isinstance(rubric, list) or len(rubric) < 3 or not all(isinstance(r, str) and r for r in rubric):
        raise ValueError("rubric: expected a list of three points or more, each a text")
    if not isinstance(checks, list) or not all(isinstance(c, str) and c for c in checks):
        raise ValueError("checks: expected a list of expressions, perhaps empty")
    if not isinstance(minutes, int) or not 1 <= minutes <= 30:
        raise ValueError(f"minutes={minutes!r}: expected a whole number from 1 to 30")
    if unknown := sorted(set(table) - {*TEXTS, "rubric", "checks", "minutes"}):
        raise ValueError(f"{unknown[0]!r} is no part of an open question")
    if len(table["aloud"].split()) > WORDS_A_MINUTE:
        raise ValueError(f"aloud has {len(table['aloud'].split())} words; a minute has room for {WORDS_A_MINUTE}")
    from refimpl.course.quiz.evidence import EVIDENCE

    for check in checks:
        parse(check, EVIDENCE)
    return Open(*(table[name] for name in ("id", "topic", "lesson")), minutes,
                *(table[name].strip() for name in TEXTS[3:]), tuple(rubric), tuple(checks))
