"""The pictures that lie beside the lessons are those that the code draws, and the lessons show them."""

import json
import re

import pytest

from refimpl.course.widgets import stills

LESSONS = stills.FOLDER.parent


@pytest.mark.parametrize("name", stills.STILLS)
def test_a_stored_picture_is_the_one_that_is_drawn(name):
    stored = (stills.FOLDER / name).read_text(encoding="utf-8")
    same = stored == stills.STILLS[name]().svg
    assert same, f"lessons/pictures/{name} has drifted: python -m refimpl.course.widgets.stills"


def test_they_are_written_where_one_says(tmp_path):
    paths = stills.write(tmp_path / "new")
    assert [path.name for path in paths] == list(stills.STILLS) and all(path.stat().st_size for path in paths)


def shown_in_lessons():
    """{(lesson, file)} of all the pictures in cells of text, with their text alternatives."""
    found = {}
    for path in LESSONS.glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                for words, file in re.findall(r"!\[([^\]]*)\]\((pictures/[^)]+)\)", "".join(cell["source"])):
                    found[path.name, file] = words
    return found


def test_the_lessons_show_them_with_words_and_show_no_others():
    shown = shown_in_lessons()
    assert {file for _, file in shown} == {f"pictures/{name}" for name in stills.STILLS}
    assert [place for place, words in shown.items() if len(words.split()) < 10] == []
    assert {path.name for path in stills.FOLDER.iterdir()} == set(stills.STILLS)
