"""Pages of lessons: made from what the lessons are now, complete, and readable where there is no kernel."""

import base64
import json
import re

import nbformat
import pytest
from test_notebooks import stored

from refimpl.course import render
from refimpl.course.pages import page, relinked

new_text, new_code, new_output = (getattr(nbformat.v4, f"new_{what}") for what in
                                  ("markdown_cell", "code_cell", "output"))
NAMES = [path.stem for path in render.lessons()]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


# -- what is stored ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("lesson", render.lessons(), ids=lambda path: path.stem)
def test_the_page_is_made_from_the_lesson_as_it_is_now(lesson):
    """Of the notebook in the folder, or of the one that git knows: a learner may have written in theirs."""
    now = {render.fingerprint(text, NAMES) for text in (lesson.read_text(encoding="utf-8"), stored(lesson))}
    assert render.hash_of(render.PAGES / f"{lesson.stem}.md") in now, f"out of date: {render.COMMAND}"


def test_the_page_above_the_pages_is_up_to_date():
    assert (render.PAGES / "README.md").read_text(encoding="utf-8") == render.index(), f"out of date: {render.COMMAND}"


def test_no_page_and_no_picture_is_left_over():
    assert render.left_over() == [], f"not of any lesson: {render.COMMAND}"


def test_every_picture_of_a_page_is_there_and_follows_the_colour_scheme():
    found = 0
    for path in render.PAGES.glob("*.md"):
        for target in re.findall(r"!\[[^\n]*?\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            picture = path.parent / target
            assert picture.is_file(), f"{path.name}: {target}"
            assert picture.suffix != ".svg" or "prefers-color-scheme:dark" in picture.read_text(encoding="utf-8")
            found += 1
    assert found > len(NAMES)


# -- the hash ---------------------------------------------------------------------------------------------------------

def lesson_of(*cells):
    return nbformat.writes(nbformat.v4.new_notebook(cells=list(cells)))


def test_the_hash_is_of_sources_and_modules_and_not_of_outputs():
    cells = [new_text("Prose.", id="prose"), new_code("from refimpl import Ledger", id="code")]
    before = render.fingerprint(lesson_of(*cells), ["08_a"])
    cells[1].outputs, cells[1].execution_count = [new_output("stream", text="3.2 ms")], 4
    assert render.fingerprint(lesson_of(*cells), ["08_a"]) == before
    for changed in ([new_text("Other prose.", id="prose"), cells[1]], [new_text("Prose.", id="other"), cells[1]],
                    [cells[0], new_code("from refimpl import Link", id="code")], cells[:1]):
        assert render.fingerprint(lesson_of(*changed), ["08_a"]) != before
    assert render.fingerprint(lesson_of(*cells), ["08_a", "09_b"]) != before


def test_the_hash_changes_with_a_module(tmp_path, monkeypatch):
    """A copy of the module with one more line stands in for it."""
    import refimpl.layout

    text = lesson_of(new_code("from refimpl import Layout\nLayout(dp=2)", id="code"))
    before = render.fingerprint(text, [])
    copy = tmp_path / "layout.py"
    copy.write_text(open(refimpl.layout.__file__, encoding="utf-8").read() + "# more\n", encoding="utf-8")
    monkeypatch.setattr(refimpl.layout, "__file__", str(copy))
    assert render.fingerprint(text, []) != before


@pytest.mark.parametrize(("code", "modules"), [
    ("from refimpl import Layout, run", ["refimpl.layout", "refimpl.world.launch"]),
    ("from refimpl.cost import traffic", ["refimpl.cost.traffic"]),
    ("from refimpl.course.widgets import SplitExplorer\nimport numpy as np", ["refimpl.course.widgets.split"]),
    ("import refimpl.layout", ["refimpl.layout"]),
    ("from refimpl.model.text import load\nfrom math import pi", ["refimpl.model.text"]),
    ("def f():\n    from refimpl.precision import STORED", ["refimpl.precision"]),
    ("from refimpl.course.quiz import quiz", []), ("print(1)", []),
])
def test_a_name_counts_where_it_is_defined(code, modules):
    assert render.modules_of(code) == modules


def test_a_lesson_whose_page_is_missing_or_old_is_stale(tmp_path):
    folder, pages = tmp_path / "lessons", tmp_path / "docs"
    folder.mkdir()
    pages.mkdir()
    for name in ("01_a", "02_b", "03_c"):
        (folder / f"{name}.ipynb").write_text(lesson_of(new_text(f"# {name}", id="title")), encoding="utf-8")
    names = [path.stem for path in render.lessons(folder)]
    for name, text in (("01_a", "01_a"), ("02_b", "03_c")):
        made_from = render.fingerprint((folder / f"{text}.ipynb").read_text(encoding="utf-8"), names)
        (pages / f"{name}.md").write_text(f"<!-- made from {made_from} by hand -->\n", encoding="utf-8")
    assert [path.stem for path in render.stale(pages, folder)] == ["02_b", "03_c"]
    (pages / "04_gone.md").write_text("<!-- made from 0123456789abcdef by hand -->\n", encoding="utf-8")
    (pages / "pictures").mkdir()
    (pages / "pictures" / "04_x.svg").write_text("<svg/>", encoding="utf-8")
    (pages / "notes.md").write_text("somebody's own\n", encoding="utf-8")
    assert [path.name for path in render.left_over(pages, folder)] == ["04_gone.md", "04_x.svg"]


# -- a page -----------------------------------------------------------------------------------------------------------

def test_a_lesson_is_run_and_becomes_a_page_with_pictures(tmp_path, monkeypatch):
    """One small notebook through all of it: text, output, a widget, a still that says more, a quiz, links."""
    folder = tmp_path / "lessons"
    folder.mkdir()
    still = ("\n\n<details><summary>The picture, where no kernel is running</summary>\n\n"
             "![{0}](pictures/{0}.svg)\n\n</details>")
    widget = "from refimpl.course.widgets import PipelineStepper\nPipelineStepper()"
    cells = [new_text("# Small\n\nSee [the other](02_b.ipynb#end).", id="title"),
             new_code("import os\nprint('hello'); print(os.getcwd() + '/data.txt')", id="hello"),
             new_text(f"Look.{still.format('moment')}", id="look"), new_code(widget, id="widget"),
             new_text("And again.", id="again"), new_code(widget, id="second"),
             new_text(f"Nothing follows.{still.format('alone')}", id="alone"),
             new_code("from refimpl.course import check\ncheck('ring_all_reduce', lambda x, comm: x)", id="checked"),
             new_code("from refimpl.course.quiz import quiz\nquiz('01')", id="quiz")]
    for name in ("01_small", "02_b"):
        (folder / f"{name}.ipynb").write_text(lesson_of(*cells), encoding="utf-8")
    monkeypatch.setenv("REFIMPL_PROGRESS", str(tmp_path / "mine.sqlite"))
    render.render(folder / "01_small.ipynb", tmp_path / "docs")
    text = (tmp_path / "docs" / "01_small.md").read_text(encoding="utf-8")
    for part in ("[All lessons](README.md) · [next](02_b.md)", "# Small\n\nSee [the other](02_b.md#end).",
                 "```text\nhello\ndata.txt\n```", "Look.\n\n```python", "![moment](../../lessons/pictures/moment.svg)",
                 "](pictures/01_second.svg)", "Nothing follows.\n\n![alone](../../lessons/pictures/alone.svg)",
                 "ring_all_reduce ✗ ", "> The questions are in the notebook"):
        assert part in text, part
    assert "<details>" not in text and str(tmp_path) not in text and "Quiz(" not in text
    assert [path.name for path in (tmp_path / "docs" / "pictures").iterdir()] == ["01_second.svg"]
    assert [path.stem for path in render.stale(tmp_path / "docs", folder)] == ["02_b"]
    assert not (tmp_path / "mine.sqlite").exists()                 # what the page tried is nobody's attempt


def shown(*outputs):
    cell = new_code("x", id="cell", outputs=list(outputs))
    return page(nbformat.v4.new_notebook(cells=[cell]), "07", [], ["/home/me"])


def test_what_was_printed_is_one_block_without_colours_and_folders():
    made = shown(new_output("stream", text="a \x1b[31mred\x1b[0m \n"), new_output("stream", text="/home/me/file\n\n"),
                 new_output("execute_result", {"text/plain": "3"}))
    assert made == ("```python\nx\n```\n\n```text\na red\nfile\n\n3\n```\n", {})


def test_plots_become_files_with_words():
    made = shown(new_output("display_data", {"image/png": PIXEL, "text/plain": "<Figure size 640x480>"}),
                 new_output("display_data", {"image/png": PIXEL, "text/plain": "[1] a\ncurve"}))
    assert made.pictures == {name: base64.b64decode(PIXEL) for name in ("07_cell.png", "07_cell-more.png")}
    assert made.text.endswith("![A plot](pictures/07_cell.png)\n\n![\\[1\\] a curve](pictures/07_cell-more.png)\n")


@pytest.mark.parametrize(("link", "from_the_page"), [
    ("pictures/01_ring.svg", "../../lessons/pictures/01_ring.svg"), ("08_pipelines.ipynb", "08_pipelines.md"),
    ("08_pipelines.ipynb#bubble", "08_pipelines.md#bubble"), ("99_none.ipynb", "../../lessons/99_none.ipynb"),
    ("../README.md", "../../README.md"), ("../docs/glossary.md#words", "../glossary.md#words"),
    ("https://example.org/a", "https://example.org/a"), ("#here", "#here"), ("/abs", "/abs")])
def test_links_lead_from_the_page(link, from_the_page):
    assert relinked(link, ["08_pipelines"]) == from_the_page


def test_links_in_code_are_left_alone():
    source = "```\nx[0](y.ipynb)\n```\n[a](08_pipelines.ipynb)"
    made = page(nbformat.v4.new_notebook(cells=[new_text(source, id="a")]), "07", ["08_pipelines"])
    assert made.text == "```\nx[0](y.ipynb)\n```\n[a](08_pipelines.md)\n"


# -- the command ------------------------------------------------------------------------------------------------------

def test_the_command_names_what_is_out_of_date_and_refuses_other_lessons(monkeypatch, capsys):
    monkeypatch.setattr(render, "stale", lambda *folders: render.lessons()[:2])
    monkeypatch.setattr(render, "left_over", lambda *folders: [])
    monkeypatch.setattr(render, "index", lambda *folder: (render.PAGES / "README.md").read_text(encoding="utf-8"))
    monkeypatch.setattr(render, "render", lambda path: pytest.fail("nothing is to be written"))
    for words in (["--check"], ["--check", "--all"]):
        assert render.main(words) == 1
        assert capsys.readouterr().out.split() == NAMES[:2]
    monkeypatch.setattr(render, "stale", lambda *folders: [])
    for words in (["--check"], ["--check", "--all"], ["--check", "08"]):
        assert render.main(words) == 0 and capsys.readouterr().out == ""
    with pytest.raises(SystemExit) as refused:
        render.main(["77"])
    assert refused.value.code == 2 and "there is no lesson '77': there are 00, 01" in capsys.readouterr().err


def test_a_check_of_some_lessons_names_those_of_them_that_are_out_of_date(monkeypatch, capsys):
    old = [path for path in render.lessons() if path.stem[:2] in ("01", "08")]
    monkeypatch.setattr(render, "stale", lambda *folders: old)
    monkeypatch.setattr(render, "left_over", lambda *folders: pytest.fail("is nobody's page"))
    for words, status, found in ((["02", "08"], 1, ["08_pipelines"]), (["02", "03"], 0, [])):
        assert render.main(["--check", *words]) == status
        assert capsys.readouterr().out.split() == found


def test_a_check_of_everything_names_an_old_index_and_what_is_left_over(tmp_path):
    folder, pages = tmp_path / "lessons", tmp_path / "docs"
    folder.mkdir()
    (pages / "pictures").mkdir(parents=True)
    (folder / "01_a.ipynb").write_text(lesson_of(new_text("# A", id="title")), encoding="utf-8")
    made_from = render.fingerprint((folder / "01_a.ipynb").read_text(encoding="utf-8"), ["01_a"])
    (pages / "01_a.md").write_text(f"<!-- made from {made_from} by hand -->\n", encoding="utf-8")
    assert render.out_of_date((), pages, folder) == ["README.md"]
    (pages / "README.md").write_text(render.index(folder), encoding="utf-8")
    assert render.out_of_date((), pages, folder) == []
    (pages / "README.md").write_text(render.index(folder) + "more\n", encoding="utf-8")
    (pages / "pictures" / "01_x.svg").write_text("<svg/>", encoding="utf-8")
    assert render.out_of_date((), pages, folder) == ["README.md", "pictures/01_x.svg, which no lesson has"]
    assert render.out_of_date(["01"], pages, folder) == []


def test_the_index_has_minutes_and_aims_of_every_lesson():
    rows = re.findall(r"^\| (\d\d) \| \[(.+)\]\((\w+)\.md\) \| ([\d +]*) \| (.*) \|$", render.index(), re.MULTILINE)
    assert [row[2] for row in rows] == NAMES
    for number, title, name, minutes, able in rows:
        cells = json.loads((render.LESSONS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        first = "".join(cells[0]["source"])
        assert f"# {title}\n" in first and name.startswith(number)
        assert minutes and able, f"{name}: its first cell says neither how long it takes nor what for"
