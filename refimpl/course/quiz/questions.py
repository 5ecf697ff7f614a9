"""The questions: read from exercises/quiz/*.toml, checked before anybody meets one, and shown with numbers drawn.

    [[question]]
    id = "ring-elements"          lesson = "01"                     level = "recall" | "apply" | "trap"
    stem = "{P} ranks ..."        answer = "2 * (P-1) * n / P"      wrong = three of { value = ..., why = ... }
    why = what makes the answer right                               source = where one can read it

A question has one right answer and three wrong ones, each with its reason. Where `format` is given they are numbers:
expressions (expressions.py), shown in that format, and `check` computes the right one again, from an experiment
(evidence.py); a test compares. Elsewhere they are words, and a `check`, where there is one, must be true. `draw` makes
a question of numbers a template: {name: list of values}, and names in braces in its texts are replaced.
"""

import itertools
import math
import random
import re
import string
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from refimpl.course.quiz.expressions import evaluate, parse

FOLDER = Path(__file__).resolve().parents[3] / "exercises" / "quiz"
LEVELS = ("recall", "apply", "trap")
NEEDED = ("id", "lesson", "level", "stem", "answer", "why", "source", "wrong")
FIELDS = (*NEEDED, "draw", "format", "check")


@dataclass(frozen=True)
class Choice:
    """One of the answers as shown: its text, whether it is the right one, and why or why not."""

    text: str
    right: bool
    why: str


@dataclass(frozen=True)
class Shown:
    """A question as shown: its numbers drawn, its choices in the order of the screen."""

    question: "Question"
    numbers: dict
    stem: str
    choices: tuple

    @property
    def right(self):
        """The right choice."""
        return next(choice for choice in self.choices if choice.right)


@dataclass(frozen=True)
class Question:
    """A question as stored; the fields are those of the file. wrong: ((value, why), ...)."""

    id: str
    lesson: str
    level: str
    stem: str
    answer: str
    why: str
    source: str
    wrong: tuple
    draw: dict
    format: str | None
    check: str | None

    def cases(self):
        """All numbers that may be drawn, but for those that make two choices look alike: a list of dicts, or [{}]."""
        return _cases(self.id, self.answer, self.format, tuple(value for value, _ in self.wrong),
                      tuple((name, tuple(values)) for name, values in self.draw.items()))

    def show(self, rng=random, numbers=None):
        """The question with numbers drawn by `rng` (or given), and its choices shuffled."""
        numbers = rng.choice(self.cases()) if numbers is None else numbers
        texts = shown_values((self.answer, *(value for value, _ in self.wrong)), self.format, numbers)
        reasons = (self.why, *(why for _, why in self.wrong))
        choices = [Choice(text, k == 0, self.filled(reasons[k], numbers)) for k, text in enumerate(texts)]
        rng.shuffle(choices)
        return Shown(self, numbers, self.filled(self.stem, numbers), tuple(choices))

    def filled(self, text, numbers):
        """A text of the question with its numbers put in."""
        return text.format(**numbers) if self.draw else text


def shown_values(values, format, numbers):
    """How the values look on the screen: words as they are, numbers evaluated and formatted."""
    return [value if format is None else format.format(evaluate(value, numbers)) for value in values]


@cache
def _cases(id, answer, format, wrong, draw):
    names, lists = [name for name, _ in draw], [values for _, values in draw]
    drawn = [dict(zip(names, values)) for values in itertools.product(*lists)]
    return [numbers for numbers in drawn if len(set(shown_values((answer, *wrong), format, numbers))) == len(wrong) + 1]


# -- reading ----------------------------------------------------------------------------------------------------------

def load(folder=FOLDER):
    """All questions of the folder's files, in their order; ValueError that names file and question if one is wrong."""
    files = sorted(Path(folder).glob("*.toml"))
    if not files:
        raise ValueError(f"there are no questions in {folder}: expected files such as 01.toml, as the course has")
    questions = [question for path in files for question in read(path)]
    ids = [question.id for question in questions]
    for id in ids:
        if ids.count(id) > 1:
            raise ValueError(f"{folder}: two questions have the id {id!r}, by which attempts are remembered")
    return questions


def read(path):
    """The questions of one file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    tables = data.pop("question", [])
    if data or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ValueError(f"{path}: expected [[question]] tables and nothing else{listed(data)}")
    questions = []
    for number, table in enumerate(tables, start=1):
        try:
            questions.append(made(table, path.stem))
        except ValueError as error:
            raise ValueError(f"{path}, question {table.get('id', number)!r}: {error}") from None
    return questions


def made(table, lesson):
    """The `Question` in a table of lesson `lesson`'s file; ValueError that says what is wrong with it."""
    for name in table:
        if name not in FIELDS:
            near = get_close_matches(name, FIELDS, n=1)
            hint = f"; perhaps {near[0]!r}" if near else listed(FIELDS)
            raise ValueError(f"{name!r} is no part of a question{hint}")
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise ValueError(f"there is no {' and no '.join(missing)}")
    for name in FIELDS:
        kind = {"draw": dict, "wrong": list}.get(name, str)
        if name in table and not (isinstance(table[name], kind) and table[name]):
            expected = {str: "text", dict: "a table", list: "a list"}[kind]
            raise ValueError(f"{name}={table[name]!r}: expected {expected}, not empty")
    wrong = [(w.get("value"), w.get("why")) if isinstance(w, dict) and set(w) == {"value", "why"} else (None, None)
             for w in table["wrong"]]
    if len(wrong) != 3 or not all(isinstance(text, str) and text for w in wrong for text in w):
        raise ValueError("wrong: expected three of { value = \"...\", why = \"...\" }, all with text")
    parts = {name: table.get(name) for name in FIELDS}
    question = Question(**parts | {"wrong": tuple(wrong), "draw": table.get("draw", {})})
    check_question(question, lesson)
    return question


def check_question(q, lesson):
    """ValueError that says what is wrong with the content of a question."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", q.id):
        raise ValueError("its id must be small letters, digits and hyphens, such as 'ring-elements'")
    if q.lesson != lesson:
        raise ValueError(f"lesson={q.lesson!r}, but its file is {lesson}.toml")
    if q.level not in LEVELS:
        raise ValueError(f"level={q.level!r}: expected {', '.join(LEVELS)}")
    if q.format is not None and q.check is None:
        raise ValueError("its answer is a number, so it needs a check that computes it again")
    if q.draw and q.format is None:
        raise ValueError("it draws numbers, so it needs a format to show its choices in")
    for name, values in q.draw.items():
        if not name.isidentifier() or not isinstance(values, list) or not values:
            raise ValueError(f"draw: {name}={values!r}: expected a name and a list of numbers")
        if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
            raise ValueError(f"draw: {name}={values!r}: expected numbers")
    if q.check is not None:
        from refimpl.course.quiz.evidence import EVIDENCE

        parse(q.check, EVIDENCE | q.draw)
    if q.draw:
        check_texts(q)
    check_choices(q)


def check_texts(q):
    """A template's texts name only numbers that are drawn, and all of those are in the stem."""
    for text in (q.stem, q.why, *(why for _, why in q.wrong)):
        try:
            named = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
        if not named <= set(q.draw):
            unknown = min(named - set(q.draw))
            raise ValueError(f"{text!r}: {{{unknown}}} is not drawn; braces themselves are {{{{ and }}}}")
        if text == q.stem and named != set(q.draw):
            raise ValueError(f"{', '.join(sorted(set(q.draw) - named))} is drawn, but the stem does not say it")


def check_choices(q):
    """The four choices can be shown, and told apart, with at least two sets of numbers for a template."""
    if q.format is not None:
        drawn = [dict(zip(q.draw, values)) for values in itertools.product(*q.draw.values())]
        for value in (q.answer, *(value for value, _ in q.wrong)):
            parse(value, q.draw)
            for numbers in drawn:
                try:
                    result = evaluate(value, numbers)
                except (ArithmeticError, TypeError, ValueError) as error:
                    raise ValueError(f"{value!r} cannot be evaluated with {numbers}: {error}") from None
                if isinstance(result, bool) or not isinstance(result, int | float) or not math.isfinite(result):
                    raise ValueError(f"{value!r} is {result!r} with {numbers}: expected a number")
        try:
            shown_values([q.answer], q.format, drawn[0])
        except (ValueError, LookupError) as error:
            raise ValueError(f"format={q.format!r} does not show a number: {error}") from None
    enough = 2 if q.draw else 1
    if len(q.cases()) < enough:
        alike = "with nearly all numbers drawn" if q.draw else "on the screen"
        raise ValueError(f"two of its choices look the same {alike}: change a value, or the format")


def listed(names):
    """'; here are: a, b', or nothing."""
    return f"; here are: {', '.join(names)}" if names else ""
