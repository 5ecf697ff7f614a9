"""Every lesson runs from top to bottom, its widgets included, and is stored as a clean file."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
LESSONS = sorted((ROOT / "lessons").glob("*.ipynb"))
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
SECONDS = 120                                       # for one cell


# -- running ------------------------------------------------------------------------------------------------------

def complaints(notebook, name, folder):
    """Run the notebook in `folder`; what went wrong, in words: which cell, its source, the traceback."""
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", store_widget_state=True,
                                     resources={"metadata": {"path": str(folder)}})
    try:
        client.execute()
    except (nbclient.exceptions.CellExecutionError, nbclient.exceptions.CellTimeoutError) as error:
        failed = error
    else:
        failed = None
    found = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                found.append(f"{name}, cell {number} ({cell.id}):\n\n{cell.source}\n\n{trace(output)}")
    if failed and not found:
        found.append(f"{name}: {failed}")
    # An exception in the callback of `interact` goes into the widget's own output, and the cell succeeds.
    widgets = notebook.metadata.get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {})
    for model in widgets.get("state", {}).values():
        for output in model["state"].get("outputs", []):
            if output["output_type"] == "error":
                found.append(f"{name}, inside a widget:\n\n{trace(output)}")
    return found


def trace(output):
    """An error's traceback without the terminal's colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output["traceback"]))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to run in: kernels write their files there, and take this refimpl and this Python."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    return tmp_path


@each_lesson
def test_the_lesson_runs_from_top_to_bottom(lesson, place):
    copy = shutil.copytree(lesson.parent, place / "lessons")
    found = complaints(nbformat.read(copy / lesson.name, as_version=4), lesson.name, copy)
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("source, words", [
    ("x = 1\nprint(1 / 0)", ["cell 1 (broken)", "print(1 / 0)", "ZeroDivisionError"]),
    ("from ipywidgets import interact\n@interact(x=(0, 3))\ndef show(x): raise KeyError('callback')",
     ["inside a widget", "KeyError: 'callback'"]),
    ("from ipywidgets import Button\nb = Button()\nb.on_click(lambda b: 1 / 0)\nb.click()",
     ["cell 1 (broken)", "b.click()", "ZeroDivisionError"]),
])
def test_a_broken_lesson_is_found_out(place, source, words):
    """The check itself: errors in cells, in callbacks of `interact`, and in a button's, each told with its place."""
    cells = [nbformat.v4.new_code_cell("pass", id="fine"), nbformat.v4.new_code_cell(source, id="broken")]
    found = complaints(nbformat.v4.new_notebook(cells=cells), "some.ipynb", place)
    assert len(found) == 1 and found[0].startswith("some.ipynb, ")
    assert [word for word in words if word not in found[0]] == []


# -- as stored ----------------------------------------------------------------------------------------------------

def stored(path):
    """The text that a commit would get; of a file git does not know, or without git, the file's.

    A learner who ran a lesson has outputs in the working copy, and has done nothing wrong.
    """
    show = subprocess.run(["git", "show", f":{path.relative_to(ROOT).as_posix()}"], cwd=ROOT, capture_output=True,
                          encoding="utf-8") if shutil.which("git") else None
    return show.stdout if show and show.returncode == 0 else path.read_text(encoding="utf-8")


def untidy(notebook):
    """What should not be in a stored lesson, in words."""
    found = ["a widget's state is stored"] if "widgets" in notebook.metadata else []
    ids = [cell.id for cell in notebook.cells]
    found += [f"two cells are called {name}" for name in sorted(set(ids)) if ids.count(name) > 1]
    for cell in notebook.cells:
        if not re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", cell.id) or re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]+)*", cell.id):
            found.append(f"cell {cell.id}: give it a name of words, which stays when the cell changes")
        if cell.get("outputs") or cell.get("execution_count"):
            found.append(f"cell {cell.id}: outputs are stored; nbstripout --keep-id removes them")
        if cell.cell_type == "markdown" and re.search(r"\w!(\s|$)|\bsimply\b", cell.source, re.IGNORECASE):
            found.append(f"cell {cell.id}: no exclamation marks, and nothing is done \"simply\"")
    return found


@each_lesson
def test_the_lesson_is_stored_clean(lesson):
    notebook = nbformat.reads(stored(lesson), as_version=4)
    nbformat.validate(notebook)
    assert untidy(notebook) == []


def test_nbstripout_finds_nothing_to_strip(tmp_path):
    for lesson in LESSONS:
        (tmp_path / lesson.name).write_text(stored(lesson), encoding="utf-8")
    strip = [sys.executable, "-m", "nbstripout", "--keep-id", "--verify"]
    done = subprocess.run([*strip, *tmp_path.iterdir()], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", execution_count=3)])
    nbformat.write(notebook, tmp_path / "run.ipynb")
    assert subprocess.run([*strip, tmp_path / "run.ipynb"], capture_output=True).returncode == 1


def test_an_untidy_lesson_is_found_out():
    """The check itself, on a notebook as JupyterLab saves it after a run."""
    new_code, new_text = nbformat.v4.new_code_cell, nbformat.v4.new_markdown_cell
    output = nbformat.v4.new_output("stream", text="hello")
    cells = [new_code("pass", id="deadbeef-0000", execution_count=3, outputs=[output]),
             new_text("Simply run it.", id="easy"), new_text("Well done!", id="praise"), new_text("More.", id="more")]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"widgets": {}})
    notebook.cells[-1].id = "praise"                # nbformat itself would repair two that are alike
    found = untidy(notebook)
    assert [complaint.split(":")[0] for complaint in found] == [
        "a widget's state is stored", "two cells are called praise", "cell deadbeef-0000", "cell deadbeef-0000",
        "cell easy", "cell praise"]


def test_there_are_lessons():
    assert LESSONS
