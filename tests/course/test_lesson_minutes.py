"""Every lesson says in two numbers how long it takes: to read and try it, and for its exercises and its quiz.

    *About 40 minutes, and 80 more for three exercises and the quiz.*

200 words of prose and 100 of code a minute, one minute for a prediction, five for a widget, half a one for each of the
28 claims of lesson 13; for an exercise what the catalogue says, for a question 75 seconds.
"""

import json
import re

import pytest

from refimpl.course import tracks, widgets
from refimpl.course.exercises import stubs
from refimpl.course.exercises.catalogue import ALL
from refimpl.course.quiz.questions import load

NAMES = sorted(path.stem for path in tracks.FOLDER.glob("[0-9][0-9]_*.ipynb"))
SHORT = ("00_first_run", "00_the_map")                             # before the lessons: not 25 to 50 minutes long
WIDGET, OTHER_WIDGETS = 5, {"FactCheck": 14}                       # minutes
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
each = pytest.mark.parametrize("name", NAMES)


def cells_of(name):
    """(text of all cells of prose, of all cells of code)"""
    cells = json.loads((tracks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == kind)
            for kind in ("markdown", "code")]


def exercises_of(name):
    return [exercise for exercise in ALL if exercise.lesson == name[:2] and name not in SHORT]


def questions_of(name):
    asks = f'quiz("{name[:2]}")' in cells_of(name)[1]
    return [question for question in load() if question.lesson == name[:2] and asks]


def to_read_and_try(prose, code):
    count = lambda text: len(re.findall(r"\w+", text))
    return (count(prose) / 200 + count(code) / 100 + prose.count("**Predict.**")
            + sum(OTHER_WIDGETS.get(widget, WIDGET) for widget in shown(code)))


def shown(code):
    """Names of the widgets that cells end in, with settings or as they begin."""
    known = {widget.__name__ for widget in widgets.WIDGETS}
    return [name for name in re.findall(r"^([A-Z]\w+)\([^()\n]*\)$", code, re.MULTILINE) if name in known]


@each
def test_the_minutes_are_those_of_a_learner_who_does_everything(name):
    prose, code = cells_of(name)
    reading, more, of = tracks.STATED.search(prose).groups()
    exercises, questions = exercises_of(name), questions_of(name)
    assert int(reading) == pytest.approx(to_read_and_try(prose, code), abs=5)
    assert int(more or 0) == pytest.approx(sum(one.minutes for one in exercises) + 1.25 * len(questions), abs=2.5)
    parts = [f"{WORDS[len(exercises)]} exercise{'s' * (len(exercises) > 1)}"] * bool(exercises)
    assert (of or "") == " and ".join(parts + ["the quiz"] * bool(questions))


@each
def test_a_lesson_takes_25_to_50_minutes_and_asks_for_predictions(name):
    prose, _ = cells_of(name)
    assert 25 <= int(tracks.STATED.search(prose)[1]) <= 50 or name in SHORT
    assert prose.count("**Predict.**") >= (3 if name in SHORT else 7)


@each
def test_every_exercise_is_in_its_lesson_with_its_title_minutes_and_arguments(name):
    prose, code = cells_of(name)
    for exercise in exercises_of(name):
        title = exercise.title[0].upper() + exercise.title[1:]
        assert f"### {exercise.number:02} {title} (about {exercise.minutes} minutes)" in prose
        assert f'check("{exercise.name}", {exercise.name})' in code
        source = stubs.read(stubs.folder("exercises") / exercise.filename)
        assert re.search(rf"^def {exercise.name}\(.*\):$", source, re.MULTILINE)[0] in code


def test_all_exercises_questions_and_widgets_are_in_some_lesson():
    made = {widget for name in NAMES for widget in shown(cells_of(name)[1])}
    assert made == {widget.__name__ for widget in widgets.WIDGETS}
    assert sum((exercises_of(name) for name in NAMES), []) == sorted(ALL, key=lambda exercise: exercise.lesson)
    assert sum(len(questions_of(name)) for name in NAMES) == len(load())
