"""Lessons 06, 10 and 12 say nothing about themselves that is not so: the numbers in their prose."""

import json

from refimpl.course.widgets import stills
from refimpl.course.widgets.sequence_map import draw_sequence

LESSONS = {"06": "06_sequence_parallel", "10": "10_composing", "12": "12_beyond_the_notebook"}


def texts(number):
    """(prose, code) of a lesson."""
    name = f"{LESSONS[number]}.ipynb"
    cells = json.loads((stills.FOLDER.parent / name).read_text(encoding="utf-8"))["cells"]
    return ["\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == kind)
            for kind in ("markdown", "code")]


def test_the_numbers_below_the_first_picture_of_lesson_06_are_in_it():
    prose, shown = texts("06")[0], draw_sequence().words
    assert "204 MiB kept instead of 384, and 4 + 6 units sent instead of 4 + 4" in prose
    assert "Without sequence parallelism 384 MiB kept" in shown and "with it 204 MiB kept" in shown
    assert 10 / 8 == 1.25 and "it sends a quarter more" in prose
    assert 3 < (10 + 24 / 8) / (34 / 8) < 3.1 and "Three times, with 8 ranks" in prose


def test_the_numbers_in_the_prose_of_lessons_10_and_12():
    from refimpl.course.widgets.restart_explorer import day
    from refimpl.pipeline import build, simulate

    ten, twelve = texts("10")[0], texts("12")[0]
    idle = simulate(build("1f1b", 16, 32)).bubble_of_total
    assert 0.31 < idle < 0.33 and "idle for a third of the step, 15 slots of 47" in ten
    assert "a day with ten failures" in twelve
    assert sum(what == "lost" for what, _, _ in day(30, 2, 10, 160.5)) == 10
    assert round(12 * 405e9 / 1e12, 1) == 4.9 and "nearly 5 TB" in twelve
