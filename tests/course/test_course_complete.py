"""The course is complete: fourteen lessons with all that a lesson has, exercises of four kinds, questions enough.

A failure lists everything that is missing, so that one reading says what is left to do.
"""

import importlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from refimpl.course import tracks, widgets
from refimpl.course.exercises.catalogue import ALL
from refimpl.course.exercises.exercise import KINDS
from refimpl.course.quiz.questions import load

LESSONS = Path(__file__).resolve().parents[2] / "lessons"
NUMBERS = [f"{number:02}" for number in range(14)]
MAP = "00"
QUESTIONS = Counter(question.lesson for question in load())


class Lesson:
    """A notebook, read for what it has: cells of text and of code."""

    def __init__(self, path):
        self.name, self.number = path.stem, path.stem[:2]
        self.cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        self.prose, self.code = (
            "\n\n".join("".join(cell["source"]) for cell in self.cells if cell["cell_type"] == kind)
            for kind in ("markdown", "code"))

    @property
    def minutes(self):
        """To read and try it, and for exercises and quiz; None where nothing is said. test_lesson_minutes.py counts."""
        found = tracks.STATED.search("".join(self.cells[0]["source"]))
        return found and (int(found[1]), int(found[2] or 0))

    def exercises(self):
        """Names in check("...", ...)."""
        return re.findall(r'\bcheck\("(\w+)"', self.code)

    def widgets(self):
        """Widgets of the course that a cell makes."""
        return {name for name in re.findall(r"^(?:\w+ = )?([A-Z]\w+)\(", self.code, re.MULTILINE)
                if hasattr(widgets, name)}


def lessons():
    """{number: Lesson} of all that are there; 00 is the map, and not the first run that stands beside it."""
    return {path.stem[:2]: Lesson(path) for path in sorted(LESSONS.glob("[0-9][0-9]_*.ipynb"))}


def missing(lesson, exercises=ALL, questions=QUESTIONS):
    """What a lesson lacks, in words."""
    known = {exercise.name for exercise in exercises}
    mine = [exercise for exercise in exercises if exercise.lesson == lesson.number]
    asked, found = lesson.exercises(), []
    found += [f"checks {name}, and there is no such exercise" for name in asked if name not in known]
    found += [f"exercise {exercise.number:02}, {exercise.name}, is not in it" for exercise in mine
              if exercise.name not in asked]
    found += ["does not say what one will be able to do"] * ("*What you will be able to do:*" not in lesson.prose)
    found += ["has no widget"] * (not lesson.widgets())
    found += ["has nothing to predict"] * ("**Predict.**" not in lesson.prose and lesson.number != MAP)
    found += ["names no sources"] * (not re.search(r"\*Sources?[.:]\*|^#+ Sources?", lesson.prose, re.MULTILINE))
    found += ["has no quiz"] * (f'quiz("{lesson.number}")' not in lesson.code)
    found += [f"has {questions[lesson.number]} questions, of 12"] * (questions[lesson.number] < 12)
    return found + ["does not say how many minutes it takes"] * (lesson.minutes is None)


# -- the course -------------------------------------------------------------------------------------------------------

def test_there_are_fourteen_lessons():
    there = lessons()
    assert list(there) == NUMBERS, f"missing: {', '.join(sorted(set(NUMBERS) - set(there)))}"


def test_every_lesson_has_all_that_a_lesson_has():
    found = [f"{lesson.name} {lack}" for lesson in lessons().values() for lack in missing(lesson)]
    assert not found, "\n".join(found)


def test_there_are_forty_exercises_of_four_kinds_each_in_a_lesson():
    assert len(ALL) >= 40 and {exercise.kind for exercise in ALL} == set(KINDS)
    assert [exercise.number for exercise in ALL] == list(range(1, len(ALL) + 1))
    lost = [exercise.name for exercise in ALL if exercise.lesson not in lessons()]
    assert not lost, f"of lessons that there are not: {', '.join(lost)}"
    for exercise in ALL:
        assert len(exercise.hints) == 3 and exercise.difficulty in (1, 2, 3) and exercise.minutes > 0, exercise.name


def wrong_versions():
    """{exercise: diagnoses of its wrong versions}, of all rows that tests/course/exercises/ runs one by one."""
    found = {exercise.name: [] for exercise in ALL}
    for path in sorted((Path(__file__).parent / "exercises").glob("test_*_diagnoses.py")):
        module = importlib.import_module(path.stem)
        names = {function: name for name, function in vars(module).items() if callable(function)}
        run, = module.test_each_version_gets_its_diagnosis.pytestmark
        for function, diagnosis, _ in run.args[1]:
            if diagnosis != "passed":
                found[module.EXERCISE[names[function].partition("_")[0]]].append(diagnosis)
    return found


def too_few(versions):
    """What is missing to three wrong versions of each exercise, and two diagnoses, in words."""
    return ([f"{name} has {len(those)} wrong versions, of 3" for name, those in versions.items() if len(those) < 3]
            + [f"{name} has one diagnosis for all wrong versions" for name, those in versions.items()
               if len(those) >= 3 and len(set(those)) == 1])


def test_every_exercise_has_three_wrong_versions_and_two_diagnoses(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent / "exercises")
    found = too_few(wrong_versions())
    assert not found, "\n".join(found)


def test_there_are_two_hundred_questions_and_forty_templates():
    questions = load()
    assert len(questions) >= 200 and sum(bool(question.draw) for question in questions) >= 40
    stems = [" ".join(re.findall(r"\w+", question.stem.lower())) for question in questions]
    assert [stem for stem, times in Counter(stems).items() if times > 1] == []


def test_the_tracks_minutes_add_up_and_the_map_shows_them():
    """All minutes of a track's lessons: 00 has two notebooks, the map and a first run."""
    stated = Counter()
    for path in LESSONS.glob("[0-9][0-9]_*.ipynb"):
        stated[path.stem[:2]] += sum(Lesson(path).minutes)
    assert tracks.TRACKS["a weekend before an interview"] == ("01", "05", "08", "04", "13")
    assert list(tracks.TRACKS["everything"]) == NUMBERS
    for name, numbers in tracks.TRACKS.items():
        assert tracks.total(name) == sum(stated[number] for number in numbers) > 0, name
    assert "total(name)" in lessons()[MAP].code and "TRACKS" in lessons()[MAP].code


def test_every_lesson_that_prose_names_is_there():
    there, found = lessons(), []
    for lesson in there.values():
        for number in re.findall(r"\b[Ll]essons? (\d\d)\b", lesson.prose):
            if number not in there:
                found.append(f"{lesson.name} names lesson {number}")
    assert not found, "\n".join(found)


# -- the checks themselves --------------------------------------------------------------------------------------------

TITLE = ("# T\n\n*What you will be able to do:* it.\n\n"
         "*About 30 minutes, and 40 more for one exercise and the quiz.*")
WHOLE = {"title": TITLE, "predict": "> **Predict.** What?", "widget": "SplitExplorer()",
         "exercise": 'check("ring_reduce_scatter", f)', "quiz": 'quiz("01")', "end": "*Sources.* A book."}


def lesson_of(tmp_path, **changes):
    """A lesson in a file, whole but for the changes."""
    cells = [{"cell_type": "code" if "(" in text and "*" not in text else "markdown", "id": name, "source": [text]}
             for name, text in (WHOLE | changes).items()]
    path = tmp_path / "01_some.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return Lesson(path)


@pytest.mark.parametrize(("changes", "lacks"), [
    ({}, []), ({"predict": "What?"}, ["has nothing to predict"]), ({"widget": "SpliExplorer()"}, ["has no widget"]),
    ({"exercise": 'check("ring_reduce", f)'}, ["checks ring_reduce, and there is no such exercise",
                                               "exercise 01, ring_reduce_scatter, is not in it"]),
    ({"quiz": 'quiz("02")'}, ["has no quiz"]), ({"end": "That is all."}, ["names no sources"]),
    ({"title": TITLE.replace("30 minutes", "an hour")}, ["does not say how many minutes it takes"]),
    ({"title": "# T"}, ["does not say what one will be able to do", "does not say how many minutes it takes"]),
])
def test_what_a_lesson_lacks_is_found_out(tmp_path, changes, lacks):
    found = missing(lesson_of(tmp_path, **changes), ALL[:1], {"01": 12})
    assert len(found) == len(lacks) and all(part in whole for part, whole in zip(lacks, found)), found


@pytest.mark.parametrize(("diagnoses", "lacks"), [
    ([], ["x has 0 wrong versions, of 3"]), (["deadlock", "wrong shape"], ["x has 2 wrong versions, of 3"]),
    (3 * ["deadlock"], ["x has one diagnosis for all wrong versions"]), (["deadlock", "deadlock", "wrong shape"], [])])
def test_an_exercise_with_too_few_wrong_versions_is_found_out(diagnoses, lacks):
    assert too_few({"x": diagnoses}) == lacks


def test_too_few_questions_are_found_out(tmp_path):
    assert missing(lesson_of(tmp_path), ALL[:1], {"01": 11}) == ["has 11 questions, of 12"]
