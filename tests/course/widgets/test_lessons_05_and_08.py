"""Lessons 05 and 08 say nothing about themselves that is not so: minutes, exercises, numbers in their text."""

import json
import re

import pytest

from refimpl.course.exercises import stubs
from refimpl.course.exercises.catalogue import ALL
from refimpl.course.quiz.questions import load
from refimpl.course.widgets import stills
from refimpl.pipeline import build, simulate

WORDS = {5: "five", 7: "seven"}
TITLES = {                                                  # as the lesson puts it, where it is not the catalogue's
    "row_parallel_forward": "A row-parallel linear layer, forward",
    "row_parallel_backward": "A row-parallel linear layer, backward", "row_parallel_bias": "Find the bug",
}
lessons = pytest.mark.parametrize("number, name, widgets", [
    ("05", "05_tensor_parallel", 1), ("08", "08_pipelines", 3)])


def cells_of(name):
    """(text of all cells of prose, of all cells of code)"""
    cells = json.loads((stills.FOLDER.parent / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == kind)
            for kind in ("markdown", "code")]


def mine(number):
    return [exercise for exercise in ALL if exercise.lesson == number]


def count(text):
    return len(re.findall(r"\w+", text))


@lessons
def test_the_minutes_are_those_of_a_learner_who_does_everything(number, name, widgets):
    """200 words of prose and 100 of code a minute, one for a prediction, five for a widget, 75 seconds a question."""
    prose, code = cells_of(name)
    total, reading, exercises, quiz = map(int, re.search(
        rf"About (\d+) minutes:\* (\d+) to read and try, (\d+) for {WORDS[len(mine(number))]} exercises, (\d+) for the "
        "quiz", prose).groups())
    assert total == reading + exercises + quiz
    assert exercises == sum(exercise.minutes for exercise in mine(number))
    assert abs(quiz - 1.25 * sum(question.lesson == number for question in load())) <= 2
    predictions = prose.count("**Predict.**")
    assert len(re.findall(r"^[A-Z]\w+(?:er|ground)\(\)$", code, re.MULTILINE)) == widgets and predictions >= 8
    assert abs(reading - (count(prose) / 200 + count(code) / 100 + predictions + 5 * widgets)) <= 5


@lessons
def test_every_exercise_of_the_lesson_is_in_it_with_its_minutes_and_arguments(number, name, widgets):
    prose, code = cells_of(name)
    for exercise in mine(number):
        title = TITLES.get(exercise.name, exercise.title[0].upper() + exercise.title[1:])
        assert f"### {exercise.number:02} {title} (about {exercise.minutes} minutes)" in prose
        assert f'check("{exercise.name}", {exercise.name})' in code
        source = stubs.read(stubs.folder("exercises") / exercise.filename)
        assert re.search(rf"^def {exercise.name}\(.*\):$", source, re.MULTILINE)[0] in code
    assert f'quiz("{number}")' in code


def test_the_numbers_below_the_first_picture_of_lesson_08_are_those_of_the_timeline():
    prose, _ = cells_of("08_pipelines")
    t, gpipe = simulate(build("1f1b", 4, 8)), simulate(build("gpipe", 4, 8))
    assert (t.makespan, gpipe.makespan, set(t.idle_seconds + gpipe.idle_seconds)) == (33, 33, {9})
    assert (max(t.peak_activations), max(gpipe.peak_activations)) == (4, 8)
    assert "Both take 33 and idle 9 on every rank" in prose and "keeps 8 activations, 1F1B keeps 4 at most" in prose
