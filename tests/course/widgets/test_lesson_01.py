"""Lesson 01 says nothing about itself that is not so: minutes, exercises, the numbers in its first picture."""

import json
import re

from refimpl.course.exercises.catalogue import ALL
from refimpl.course.quiz.questions import load
from refimpl.course.widgets import stills
from refimpl.course.widgets.all_reduce_stepper import draw_all_reduce

CELLS = json.loads((stills.FOLDER.parent / "01_ring_all_reduce.ipynb").read_text(encoding="utf-8"))["cells"]
PROSE = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
CODE = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code")
MINE = [exercise for exercise in ALL if exercise.lesson == "01"]


def words(text):
    return len(re.findall(r"\w+", text))


def test_the_minutes_are_those_of_a_learner_who_does_everything():
    """200 words of prose and 100 of code a minute, one for a prediction, five for a widget, 75 seconds a question."""
    total, reading, exercises, quiz = map(int, re.search(
        r"About (\d+) minutes:\* (\d+) to read and try, (\d+) for three exercises, (\d+) for the quiz", PROSE).groups())
    assert total == reading + exercises + quiz
    assert exercises == sum(exercise.minutes for exercise in MINE)
    assert abs(quiz - 1.25 * sum(question.lesson == "01" for question in load())) <= 2
    predictions, widgets = PROSE.count("**Predict.**"), len(re.findall(r"^\w+(?:er|ground)\(\)$", CODE, re.MULTILINE))
    assert widgets == 3 and predictions >= 8
    assert abs(reading - (words(PROSE) / 200 + words(CODE) / 100 + predictions + 5 * widgets)) <= 5


def test_every_exercise_of_the_lesson_is_in_it_with_its_minutes():
    assert len(MINE) == 3
    for exercise in MINE:
        name = exercise.name.replace("_", " ").replace("ring all ", "ring all-").replace("ring reduce ", "ring reduce-")
        assert f"### {exercise.number:02} The {name} (about {exercise.minutes} minutes)" in PROSE
        assert f'check("{exercise.name}", {exercise.name})' in CODE


def test_the_sum_that_the_text_takes_apart_is_in_the_picture():
    assert "13 = 1 + 4 + 8 is from ranks 0, 2 and 3" in PROSE and "pictures/01_ring_step.svg" in PROSE
    assert "1+12=13" in draw_all_reduce(4, 2).svg and 13 == 2**0 + 2**2 + 2**3
