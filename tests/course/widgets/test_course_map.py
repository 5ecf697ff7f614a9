"""The map: every box is a lesson that exists, clicks choose what the menu would, numbers are those of paradigms.py."""

import json
import re
import time
from html import unescape
from pathlib import Path

import pytest

from refimpl.course.tracks import lessons
from refimpl.course.widgets import CourseMap
from refimpl.course.widgets import course_map as drawn

LESSONS = Path(__file__).parents[3] / "lessons"


@pytest.mark.parametrize("chosen", drawn.PLACES)
def test_every_box_is_drawn_and_the_chosen_one_is_marked_and_explained(chosen):
    shown = drawn.draw_map(chosen)
    assert len(drawn.CHOICES) == len(drawn.PLACES) == 13 and set(drawn.CHOICES.values()) == set(drawn.PLACES)
    for name in drawn.CHOICES:
        assert re.search(rf">\d\d  {re.escape(name)}<", shown.svg)
    assert shown.svg.count('class="purple"') == 1
    assert shown.title.split(", ", 1)[1] in {name for name, key in drawn.CHOICES.items() if key == chosen}
    if chosen not in drawn.OTHERS:
        paradigm = next(p for p in drawn.PARADIGMS if p.key == chosen)
        assert all(words in shown.words for words in (paradigm.idea, paradigm.cut, paradigm.sent, paradigm.often))
        row = drawn.numbers(chosen)
        assert f"sends {drawn.bytes_words(row.sent)} in {row.messages:,} messages a step" in shown.words


def test_every_lesson_is_a_box_and_every_box_a_lesson():
    named = {lesson for _, lesson, _ in drawn.OTHERS.values()} | {p.lesson for p in drawn.PARADIGMS}
    assert named | {"00"} == set(lessons()) and len(named) == 13


def test_a_click_moves_the_menu_to_the_box():
    """The widget's menu has the same order as the numbers in the clicks; a still has none."""
    menu = CourseMap().controls["chosen"]
    clicks = re.findall(r'onclick="([^"]+)">.*?>\d\d  ([^<]+)<', drawn.draw_map("dp", clickable=True).svg)
    assert len(clicks) == len(drawn.PLACES)
    for script, name in clicks:
        index = int(re.search(r"selectedIndex=(\d+)", unescape(script))[1])
        assert menu.options[index][0] == unescape(name)
    assert "onclick" not in drawn.draw_map("dp").svg


@pytest.mark.parametrize("chosen", drawn.PLACES)
def test_beside_the_menu_a_link_leads_into_the_lesson_of_the_box(chosen):
    """Tab goes from the menu to it: it comes next."""
    explorer = CourseMap("ep" if chosen != "ep" else "dp")
    explorer.set(chosen=chosen)
    menu, way = explorer.children[0].children
    assert menu is explorer.controls["chosen"] and CourseMap(chosen).children[0].children[1].outputs == way.outputs
    link = way.outputs[0]["data"]["text/html"]
    file, number = re.search(r'href="([^"]+)"', link)[1], drawn.NAMED[chosen][1]
    assert (LESSONS / file).is_file() and file.startswith(f"{number}_") and f">Open lesson {number}: " in link


def test_where_no_kernel_runs_there_is_a_link_to_every_lesson():
    cells = json.loads((LESSONS / "00_the_map.ipynb").read_text(encoding="utf-8"))["cells"]
    text = next("".join(cell["source"]) for cell in cells if cell["id"] == "map")
    links = re.findall(r"\[(\d\d) ([^]]+)\]\(([^)]+)\)", text)
    assert links == [(n, found[0][0], found[0][2]) for n, found in lessons().items() if n != "00"]


def test_what_cannot_be_is_refused_and_the_widget_is_quick():
    with pytest.raises(ValueError, match="there is no box 'fsdp'; there are ring, memory, dp"):
        drawn.draw_map("fsdp")
    explorer = CourseMap()
    for key in drawn.PLACES:
        explorer.set(chosen=key)
        assert explorer.shown == drawn.draw_map(key, clickable=True)
    began = time.perf_counter()
    drawn.draw_map("ep")
    assert time.perf_counter() - began < 50e-3
