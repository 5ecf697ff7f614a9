"""`bench widgets`: which keys it counts, what it says without a browser, and that it never passes one for the other."""

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from refimpl import __main__
from refimpl.bench import widgets
from refimpl.course import browser
from refimpl.course import widgets as course_widgets
from refimpl.course.widgets import (
    WIDGETS,
    AllReduceStepper,
    Explorer,
    WhatIf,
    option,
    picture,
    switch,
    whole,
    words_area,
)

UP, DOWN = ("ArrowRight", "ArrowDown", "Space"), ("ArrowLeft", "ArrowUp")
PARTS = {".noUi-handle[aria-label]": "readout", "select[data-lm-suppress-shortcuts]": "options", "input": "indent"}


def Odd():
    """A widget with every kind of control: two at their ends, two that change nothing or cannot."""
    def draw(n, kind, on, text, idle, last):
        if last == 1:
            raise ValueError("last must not be 1")
        return picture(10, 10, title=f"{n} {kind} {on} {text} {last}", words="")

    return Explorer(draw, {"n": whole("n", 5, 0, 5), "kind": option("kind", ["a", "b"], "b"), "on": switch("on", True),
                           "text": words_area("text", "x"), "idle": whole("idle", 1, 0, 9),
                           "last": whole("last", 2, 1, 2)})


class FakeLesson:
    """A page with the widgets of the notebook, in which the n-th key takes n milliseconds and must change a picture."""

    def __init__(self, folder):
        self.folder, self.pressed, self.widgets = folder, [], []
        chromium = SimpleNamespace(version="1.2")
        self.page = SimpleNamespace(context=SimpleNamespace(browser=chromium), locator=self.find)

    def find(self, selector):
        assert selector == ".refimpl-widget"
        return SimpleNamespace(nth=lambda k: SimpleNamespace(locator=lambda selector: self.part(k, selector)))

    def part(self, k, selector):
        """The picture of the k-th widget, or its row of controls, from which one of them is chosen."""
        if selector == ".refimpl-picture":
            return self.widgets[k].picture
        assert selector == ".widget-hbox"
        row = self.widgets[k].children[0].children
        nth = lambda place: SimpleNamespace(locator=lambda part: (row[place], part))
        return SimpleNamespace(first=SimpleNamespace(locator={":scope > *": SimpleNamespace(nth=nth)}.get))

    def run_all(self):
        notebook = json.loads((self.folder / "lessons" / "bench_widgets.ipynb").read_text())
        for cell in notebook["cells"]:
            load, make = cell["source"].split("\n\n")
            exec(load, names := {})
            self.widgets.append(eval(make, names))

    def keypress_ms(self, handle, key, picture):
        control, part = handle
        assert hasattr(control, PARTS[part])
        before = picture.value
        widgets.move(control, 1 if key in UP else -1)
        assert picture.value != before, f"{control.description}: no new picture after {key}"
        self.pressed.append((control.description, key))
        return float(len(self.pressed))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "lessons").mkdir()
    lesson = FakeLesson(tmp_path)

    @contextmanager
    def course_in_browser():
        yield SimpleNamespace(folder=tmp_path, open=lambda path: lesson)

    monkeypatch.setattr(browser, "course_in_browser", course_in_browser)
    monkeypatch.setattr(course_widgets, "WIDGETS", (AllReduceStepper, WhatIf))
    return lesson


def test_controls_go_there_and_back_where_each_step_has_a_picture():
    assert [(walk.control, walk.keys) for walk in widgets.walks(Odd)] == [
        ("n", ["ArrowLeft", "ArrowRight"]), ("kind", ["ArrowUp", "ArrowDown"]), ("on", ["Space", "Space"])]
    step, ranks = widgets.walks(AllReduceStepper)[1], widgets.walks(AllReduceStepper)[0]
    assert (step.control, step.keys) == ("Step", ["ArrowRight"] * 3 + ["ArrowLeft"] * 3) and step.place == 1
    assert all(len(walk.draw_ms) == len(walk.keys) and min(walk.draw_ms) > 0 for walk in (step, ranks))


def test_all_widgets_are_measured_each_by_a_key_that_it_has(fake):
    names = [make.__name__ for make in WIDGETS]
    assert sorted(names) == sorted({n for n in course_widgets.__all__ if n[0].isupper()}
                                   - {"Axes", "Explorer", "Picture", "WIDGETS"})
    result = widgets.bench(browser.course_in_browser, WIDGETS, 1)
    assert [row["widget"] for row in result["rows"]] == names
    assert all(row["presses"] >= 2 for row in result["rows"])
    assert sum(row["presses"] for row in result["rows"]) == len(fake.pressed)


def test_it_reports_the_keys_of_each_widget_in_the_browser(fake, capsys):
    assert __main__.main(["bench", "widgets", "--rounds", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    first, second = report["rows"]
    n, total = first["presses"], len(fake.pressed)
    assert n == 2 * sum(len(walk.keys) for walk in widgets.walks(AllReduceStepper)) and second["presses"] == total - n
    assert first["median_ms"] == (1 + n) / 2 and first["slowest_ms"] == n and first["slowest_control"] == "Step"
    assert second["median_ms"] == (n + 1 + total) / 2 and second["slowest_ms"] == total
    assert report["browser"] == "Chromium 1.2" and "not_measured" not in report and report["over"] == []
    assert all(0 < row["draw_ms"] <= row["draw_slowest_ms"] for row in report["rows"])


def test_the_text_has_the_figures_and_names_what_is_over(fake, capsys, monkeypatch):
    assert __main__.main(["bench", "widgets"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("at most 100 ms, in a browser; all do (Chromium 1.2)\n") and "over 100 ms" not in said
    monkeypatch.setattr(widgets, "ALLOWED_MS", 8)           # the stepper's median is 6.5, its slowest key 12
    fake.widgets.clear()
    fake.pressed.clear()
    assert __main__.main(["bench", "widgets"]) == 0
    said = capsys.readouterr().out
    marked = [line.split()[0] for line in said.splitlines() if line.endswith("over 8 ms")]
    assert marked == ["WhatIf"] and "1 of 2 do, not WhatIf (Chromium 1.2)" in said


def test_without_a_browser_it_says_so_and_gives_no_figure_for_it(monkeypatch, capsys):
    monkeypatch.setenv("REFIMPL_CHROMIUM", str(Path("nowhere") / "chromium"))
    monkeypatch.setattr(course_widgets, "WIDGETS", (AllReduceStepper,))
    assert __main__.main(["bench", "widgets", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    row, = report["rows"]
    assert row["median_ms"] is None and row["presses"] == 0 and row["draw_ms"] > 0
    assert report["over"] is None and report["not_measured"].startswith("not measured in a browser: ")
    assert __main__.main(["bench", "widgets"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("not measured in a browser: ") and "AllReduceStepper" in said
    assert "key to picture" not in said


def test_what_goes_wrong_in_the_browser_is_not_taken_for_a_missing_one(fake, monkeypatch):
    def broken(*_):
        raise ValueError("the slider is gone")

    monkeypatch.setattr(fake, "keypress_ms", broken)
    with pytest.raises(ValueError, match="the slider is gone"):
        widgets.bench(browser.course_in_browser, [AllReduceStepper], 1)
