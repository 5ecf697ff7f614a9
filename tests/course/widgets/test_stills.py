"""The pictures that lie beside the lessons are those that the code draws, and the lessons show them."""

import json
import re

import pytest

from refimpl.course.widgets import statements, stills

LESSONS = stills.FOLDER.parent


@pytest.mark.parametrize("name", stills.STILLS)
def test_a_stored_picture_is_the_one_that_is_drawn(name):
    stored = (stills.FOLDER / name).read_text(encoding="utf-8")
    same = stored == stills.STILLS[name]().svg
    assert same, f"lessons/pictures/{name} has drifted: python -m refimpl.course.widgets.stills"


def test_the_readmes_picture_is_the_one_that_is_drawn_and_the_readme_shows_it():
    same = stills.README.read_text(encoding="utf-8") == statements.draw_statements().svg
    assert same, "docs/three_statements.svg has drifted: python -m refimpl.course.widgets.stills"
    assert f"]({stills.README.relative_to(LESSONS.parent).as_posix()})" in \
        (LESSONS.parent / "README.md").read_text(encoding="utf-8")


def test_what_the_readmes_picture_promises_was_seen():
    """The run behind it: everything equal, and counted what the formula says."""
    shown, drawn = statements.proof(), statements.draw_statements()
    assert shown.equal == ("y", "dx", "dw1", "db1", "dw2", "db2")
    assert shown.counted[0] == shown.formula[0] and shown.counted[1] == pytest.approx(shown.formula[1], rel=1e-12)
    words = f"{shown.counted[0]:,} bytes, {shown.formula[1] * 1e6:.2f} µs"
    assert f"{words} == {words}" in drawn.svg and f"{words} == {words}" in drawn.words


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
