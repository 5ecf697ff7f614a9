"""Lessons 07 and 09 say nothing about themselves that is not so: minutes, exercises, numbers in their prose."""

import json
import re

import pytest

from refimpl.cost import context
from refimpl.cost import moe as cost
from refimpl.course.exercises.catalogue import ALL
from refimpl.course.quiz.questions import load
from refimpl.course.widgets import stills
from refimpl.course.widgets.attention_grid import draw_grid
from refimpl.course.widgets.router_heat_map import routed
from refimpl.layout import Layout

LESSONS = {"07": "07_context_parallel", "09": "09_experts"}
WIDGETS = {"07": ["AttentionGrid()", "ContextMemory()"], "09": ["RouterHeatMap()", "TokenExchange()", "ExpertLayout()"]}
each = pytest.mark.parametrize("number", LESSONS)


def texts(number):
    """(prose, code) of a lesson."""
    cells = json.loads((stills.FOLDER.parent / f"{LESSONS[number]}.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == kind)
            for kind in ("markdown", "code")]


def words(text):
    return len(re.findall(r"\w+", text))


@each
def test_the_minutes_are_those_of_a_learner_who_does_everything(number):
    """200 words of prose and 100 of code a minute, one for a prediction, five for a widget, 75 seconds a question."""
    prose, code = texts(number)
    total, reading, exercises, quiz = map(int, re.search(
        r"About (\d+) minutes:\* (\d+) to read and try, (\d+) for four exercises, (\d+) for the quiz", prose).groups())
    assert total == reading + exercises + quiz
    assert exercises == sum(exercise.minutes for exercise in ALL if exercise.lesson == number)
    assert abs(quiz - 1.25 * sum(question.lesson == number for question in load())) <= 2
    assert all(code.count(f"\n{widget}") == 1 for widget in WIDGETS[number])
    predictions = prose.count("**Predict.**")
    assert predictions >= 7
    assert abs(reading - (words(prose) / 200 + words(code) / 100 + predictions + 5 * len(WIDGETS[number]))) <= 5


@each
def test_every_exercise_of_the_lesson_is_in_it_with_its_minutes(number):
    prose, code = texts(number)
    mine = [exercise for exercise in ALL if exercise.lesson == number]
    assert len(mine) == 4
    for exercise in mine:
        title = exercise.title[0].upper() + exercise.title[1:]
        assert (f"### {exercise.number:02} {title} (about {exercise.minutes} minutes)").lower() in prose.lower()
        assert f'check("{exercise.name}", {exercise.name})' in code
    assert f'quiz("{number}")' in code


@each
def test_every_picture_of_the_lesson_is_in_it(number):
    prose, _ = texts(number)
    assert {name for name in stills.STILLS if name.startswith(number)} == set(re.findall(r"pictures/(\w+\.svg)", prose))


def test_what_the_text_of_lesson_09_says_of_its_picture_is_in_the_picture():
    prose, _ = texts("09")
    ran = routed()
    assert "a line at the capacity of 8" in prose and ran.room == 8
    assert "Two experts are chosen more often than they have room for" in prose and (ran.load > 8).sum() == 2
    assert len(ran.choice) == 24 and len(ran.load) == 8


def test_the_numbers_of_lesson_09():
    prose, _ = texts("09")
    assert "With even loads a rank sends 24 rows: 8 of its 32" in prose and cost.balanced_all_to_all(16, 2, 1, 4) == 24
    assert "46.7 and 12.9" in prose                                       # computed in a cell, and asserted there
    layout = Layout(dp=16, tp=8, pp=8, ep=8)
    assert "1024 or 8192" in prose and layout.world == 1024
    assert "reaches over 8 nodes" in prose and len({layout.node(rank) for rank in layout.group("ep", 0)}) == 8
    assert "room for 18 tokens" in prose and cost.capacity(2, 24, 8, 3.0) == 18


def test_the_numbers_of_lesson_07():
    prose, _ = texts("07")
    assert "53% on 8 ranks" in prose and round(context.efficiency(2**20, 8, "contiguous"), 2) == 0.53
    assert "52% forward for contiguous pieces" in prose                   # measured elsewhere: facts of the source
    assert "Rank 0 has nothing to do and waits, the others have 16 pairs each" in prose
    assert "rank 0 0 with the keys of rank 3, rank 1 16" in draw_grid(step=1).words
    half_a_block_and_whole_ones = [context.step_pairs(64, 8, 7, step, "contiguous") for step in range(8)]
    assert half_a_block_and_whole_ones == [36] + 7 * [64]                 # P - 1/2 blocks, about
