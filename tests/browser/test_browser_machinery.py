"""What the tests in a browser stand on: it finds what is wrong, changes only a copy, and leaves nothing running."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
SHOWN = "from IPython.display import HTML, Javascript, display\n"


@pytest.fixture
def opened(course):
    """opened(source, ...): a lesson of these cells, each called cell-0, cell-1 and so on."""
    lessons = []

    def open_cells(*sources):
        cells = [nbformat.v4.new_code_cell(source, id=f"cell-{k}") for k, source in enumerate(sources)]
        name = f"lessons/made_{len(list(course.folder.glob('lessons/made_*')))}.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), course.folder / name)
        lessons.append(course.open(name))
        return lessons[-1]

    yield open_cells
    for lesson in lessons:
        lesson.close()


def test_a_cell_that_fails_is_named_with_its_traceback(opened):
    lesson = opened("x = 1", "x / 0", "x = 2")
    with pytest.raises(RuntimeError, match=r"cell cell-1:(.|\n)*ZeroDivisionError"):
        lesson.run_all()
    assert lesson.troubles() == []


def test_errors_requests_and_dialogs_are_troubles(opened):
    lesson = opened(SHOWN + "display(HTML('<img src=\"http://refimpl.invalid/a.png\">'))",
                    SHOWN + "display(Javascript(\"setTimeout(() => { throw new Error('thrown'); })\"))",
                    SHOWN + "display(Javascript(\"setTimeout(() => alert('hello'))\"))")
    lesson.run_all()
    lesson.menu("Help", "About JupyterLab")
    lesson.page.locator(".jp-Dialog button").last.click()
    found = " / ".join(lesson.troubles())
    for words in ("a request to refimpl.invalid", "error in the page: thrown", "a dialog of the browser: hello",
                  "a dialog: "):
        assert words in found


def test_a_slider_moves_a_picture_in_either_theme_and_the_time_is_taken(opened):
    lesson = opened("import time, ipywidgets\n"
                    "slider, picture = ipywidgets.IntSlider(3, 0, 9), ipywidgets.HTML('3')\n"
                    "picture.add_class('picture')\n"
                    "def draw(change):\n    time.sleep(0.2)\n    picture.value = str(change.new)\n"
                    "slider.observe(draw, 'value')\n"
                    "ipywidgets.VBox([slider, picture])")
    lesson.run_all()
    picture, handle = lesson.page.locator(".picture"), lesson.page.locator(".noUi-handle")
    colours = []
    for number, theme in enumerate(("light", "dark"), start=4):
        lesson.theme(theme)
        colours.append(lesson.page.locator(".jp-Notebook").first.evaluate("n => getComputedStyle(n).backgroundColor"))
        assert 200 < lesson.keypress_ms(handle, "ArrowRight", picture) < 20_000        # what the kernel needs is in it
        assert picture.inner_text() == f"{number}" and lesson.value(handle) == number
    assert colours[0] != colours[1]
    with pytest.raises(ValueError, match="theme='blue': expected light or dark"):
        lesson.theme("blue")


def test_the_quiz_is_answered_by_keyboard_and_a_damaged_file_is_a_sentence_below_the_answer(course, opened):
    lesson = opened("from refimpl.course.quiz import quiz\nquiz('01', seed=0)")
    lesson.run_all()
    course.progress.write_bytes(b"this is no database, and never was one " * 100)
    boxes, said = lesson.page.locator(".refimpl-quiz > [class*='quiz-']"), []
    for box in (boxes.nth(0), boxes.nth(1)):
        box.locator("input[name]").first.focus()                       # they have a name once they are a group
        for key in ("ArrowDown", "Tab"):                               # the second, and on to the button
            lesson.page.keyboard.press(key)
        assert box.locator("input").nth(1).is_checked()
        lesson.page.keyboard.press("Enter")
        box.get_by_role("status").locator("b").wait_for()
        said.append(box.get_by_role("status").inner_text())
        assert box.locator("label", has=lesson.page.locator("input:checked")).inner_text() in said[-1]
    assert "was damaged" in said[0] and "progress.sqlite.damaged-1" in said[0] and "damaged" not in said[1]
    assert lesson.page.get_by_text("Traceback").count() == 0 and lesson.troubles() == []


# -- what is left ---------------------------------------------------------------------------------------------------

BROKEN_OFF = """
from refimpl.course.browser import course_in_browser

with course_in_browser() as course:
    lesson = course.open("lessons/00_first_run.ipynb")
    (course.folder / "lessons" / "00_first_run.ipynb").write_text("spoiled")
    input("ready")
    raise KeyError("something else went wrong")
"""


def marked(mark):
    """The names of the processes that inherited REFIMPL_MARK=mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):                       # gone meanwhile, or another user's
            if f"REFIMPL_MARK={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are read from /proc")
def test_a_session_that_breaks_off_leaves_no_process_no_file_and_the_course_as_it_was(course, tmp_path):
    lesson = ROOT / "lessons" / "00_first_run.ipynb"
    before, pipe = lesson.read_bytes(), subprocess.PIPE
    environment = os.environ | {"REFIMPL_MARK": str(tmp_path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", BROKEN_OFF], cwd=ROOT, env=environment, text=True, stdin=pipe,
                          stdout=pipe, stderr=pipe) as job:
        assert job.stdout.read(5) == "ready"
        running = " ".join(marked(tmp_path))
        assert [name for name in ("jupyterlab", "ipykernel", "--headless") if name not in running] == []
        said = job.communicate("\n", timeout=120)[1]
    assert said.strip().endswith("KeyError: 'something else went wrong'")
    assert marked(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    assert lesson.read_bytes() == before
