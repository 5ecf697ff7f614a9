"""Lessons 02 and 04 say nothing about themselves that is not so: minutes, exercises, the numbers in their pictures."""

import json
import re

import pytest

from refimpl.course.exercises import stubs
from refimpl.course.exercises.catalogue import ALL
from refimpl.course.quiz.questions import load
from refimpl.course.widgets import stills
from refimpl.course.widgets.partition_map import draw_partition
from refimpl.course.widgets.partition_run import run_step

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
lessons = pytest.mark.parametrize("number, name, widget", [
    ("02", "02_data_parallel", "BucketExplorer"), ("04", "04_zero", "PartitionMap")])


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
def test_the_minutes_are_those_of_a_learner_who_does_everything(number, name, widget):
    """200 words of prose and 100 of code a minute, one for a prediction, five for a widget, 75 seconds a question."""
    prose, code = cells_of(name)
    total, reading, exercises, quiz = map(int, re.search(
        rf"About (\d+) minutes:\* (\d+) to read and try, (\d+) for {WORDS[len(mine(number))]} exercises?, "
        r"(\d+) for the quiz", prose).groups())
    assert total == reading + exercises + quiz
    assert exercises == sum(exercise.minutes for exercise in mine(number))
    assert abs(quiz - 1.25 * sum(question.lesson == number for question in load())) <= 2
    predictions = prose.count("**Predict.**")
    assert re.findall(r"^[A-Z]\w+\(\)$", code, re.MULTILINE) == [f"{widget}()"] and predictions >= 8
    assert abs(reading - (count(prose) / 200 + count(code) / 100 + predictions + 5)) <= 5


@lessons
def test_every_exercise_of_the_lesson_is_in_it_with_its_title_minutes_and_arguments(number, name, widget):
    prose, code = cells_of(name)
    assert mine(number)
    for exercise in mine(number):
        title = exercise.title[0].upper() + exercise.title[1:]
        assert f"### {exercise.number:02} {title} (about {exercise.minutes} minutes)" in prose
        assert f'check("{exercise.name}", {exercise.name})' in code
        source = stubs.read(stubs.folder("exercises") / exercise.filename)
        assert re.search(rf"^def {exercise.name}\(.*\):$", source, re.MULTILINE)[0] in code
    assert f'quiz("{number}")' in code


def test_what_lesson_04_says_of_its_map_is_so():
    """The first picture; and where a rank holds most, which the text asks for."""
    prose, _ = cells_of("04_zero")
    assert "a model of three layers" in prose and "in the forward of layer 1" in prose
    assert stills.STILLS["04_partition.svg"]().svg == draw_partition(3, 4, 2).svg
    weights = {moment.words: sum(moment.ranks[0].nbytes.values()) for moment in run_step(3, 4).moments}
    assert max(weights, key=weights.get).startswith("backward")
    sent = [sum(run_step(stage, 4).sent.values()) for stage in range(4)]
    assert sent[3] == max(sent) > sent[2] == sent[1] == sent[0]
    for stage, more in ((0, False), (1, False), (2, True), (3, True)):               # with 3 micro-batches
        assert (sum(run_step(stage, 4, 3).sent.values()) > sent[stage]) == more
