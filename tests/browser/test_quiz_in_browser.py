"""The quiz in a real browser under keys that are faster than the kernel: what one sees chosen is what is graded."""

import nbformat
import pytest

from refimpl.course.progress import Progress

KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
BUSY = """() => {
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    kernel.requestExecute({code: "import time; time.sleep(0.3)"});
}"""
BOXES = 8


@pytest.fixture
def lesson(course):
    """A notebook with the quiz of lesson 05."""
    cell = nbformat.v4.new_code_cell("from refimpl.course.quiz import quiz\nquiz('05', seed=0)", id="quiz")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=KERNEL), course.folder / "lessons" / "quick.ipynb")
    opened = course.open("lessons/quick.ipynb")
    opened.run_all()
    opened.page.locator(".refimpl-quiz input[name]").first.wait_for()
    yield opened
    opened.close()


def quick(lesson, box, *keys):
    """Keys without a pause, from the first choice on; the choice that is shown in the end, and the verdict."""
    box.locator("input[name]").first.focus()
    for key in keys:
        lesson.page.keyboard.press(key)
    said = box.get_by_role("status")
    said.locator("b").first.wait_for()
    return box.locator("label", has=lesson.page.locator("input:checked")).inner_text(), said.inner_text().split("\n")[0]


def test_quick_keys_are_graded_by_what_is_shown_while_the_kernel_is_idle_or_busy(course, lesson):
    boxes, chosen = lesson.page.locator(".refimpl-question"), []
    for k in range(BOXES):
        if k % 2:
            lesson.page.evaluate(BUSY)
        shown, said = quick(lesson, boxes.nth(k), "Space", *["ArrowDown"] * (1 + k % 3), "Tab", "Enter")
        assert said in (f"Right: {shown}", f"Not this one: {shown}"), f"question {k + 1}"
        chosen.append(shown)
        if "Not this one" in said:                       # a second try does not remember what the page said before
            boxes.nth(k).get_by_role("button", name="Try again").click()
            boxes.nth(k).get_by_role("status").locator("b").wait_for(state="detached")
            shown, said = quick(lesson, boxes.nth(k), "Space", "ArrowUp", "ArrowUp", "Tab", "Enter")
            assert said in (f"Right: {shown}", f"Not this one: {shown}"), f"question {k + 1}, again"
            chosen.append(shown)
    assert len(chosen) > BOXES
    assert [attempt.detail["choice"] for attempt in Progress(course.progress).attempts("quiz")] == chosen
    assert lesson.troubles() == []
