"""`bench widgets`: which keys it counts, what it says without a browser, and that it never passes one for the other."""

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from refimpl import __main__
from refimpl.bench import widgets
from refimpl.course import browser
from refimpl.course.widgets.all_reduce_stepper import draw_all_reduce


class FakeLesson:
    """A page in which the n-th key takes n milliseconds, and whose slider must not run against its end."""

    def __init__(self):
        self.pressed, self.step, self.found = [], 0, []
        chromium = SimpleNamespace(version="1.2")
        self.page = SimpleNamespace(locator=self.locator, context=SimpleNamespace(browser=chromium))

    def locator(self, selector):
        self.found.append(selector)
        part = SimpleNamespace(locator=self.locator, nth=lambda k: f"{selector} {k}")
        part.first = part
        return part

    def run_all(self):
        self.ran = True

    def keypress_ms(self, handle, key, picture):
        assert handle == ".noUi-handle 1"                                # the second slider: the step
        self.step += {"ArrowRight": 1, "ArrowLeft": -1}[key]
        assert self.ran and 0 <= self.step <= 2 * (widgets.RANKS - 1)    # at the end nothing would change
        self.pressed.append(key)
        return float(len(self.pressed))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "lessons").mkdir()
    lesson = FakeLesson()

    @contextmanager
    def course_in_browser():
        yield SimpleNamespace(folder=tmp_path, open=lambda path: lesson)

    monkeypatch.setattr(browser, "course_in_browser", course_in_browser)
    return SimpleNamespace(lesson=lesson, notebook=tmp_path / "lessons" / "bench_widgets.ipynb")


def test_it_reports_the_median_key_in_the_browser(fake, capsys):
    assert __main__.main(["bench", "widgets", "--rounds", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["presses"] == 2 * 2 * widgets.STEPS == len(fake.lesson.pressed) - 2 * widgets.WARM_UP
    counted = range(2 * widgets.WARM_UP + 1, 2 * widgets.WARM_UP + 1 + report["presses"])
    assert report["median_ms"] == sum(counted) / len(counted) and report["slowest_ms"] == max(counted)
    assert report["browser"] == "Chromium 1.2" and report["draw_ms"] > 0 and "not_measured" not in report


def test_the_cell_that_it_times_makes_the_widget_that_it_looks_for(fake):
    widgets.bench(browser.course_in_browser, draw_all_reduce, 1)
    cell, = json.loads(fake.notebook.read_text())["cells"]
    assert "AllReduceStepper(8)" in cell["source"]
    names = {}
    exec(cell["source"].replace("\nAllReduce", "\nmade = AllReduce"), names)
    classes = {name for part in (names["made"], names["made"].picture) for name in part._dom_classes}
    assert {".all-reduce-stepper", ".refimpl-picture"} <= {f".{name}" for name in classes}
    assert {".all-reduce-stepper", ".refimpl-picture", ".noUi-handle"} == set(fake.lesson.found)
    assert list(names["made"].controls)[1] == "step"


def test_the_text_has_the_figures(fake, capsys):
    assert __main__.main(["bench", "widgets", "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    assert "key to new picture: median 12 ms, slowest 18 ms; 100 are allowed" in said and "function alone:" in said


def test_without_a_browser_it_says_so_and_gives_no_figure_for_it(monkeypatch, capsys):
    monkeypatch.setenv("REFIMPL_CHROMIUM", str(Path("nowhere") / "chromium"))
    assert __main__.main(["bench", "widgets", "--rounds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["median_ms"] is None and report["presses"] == 0 and report["draw_ms"] > 0
    assert report["not_measured"].startswith("not measured in a browser: ")
    assert __main__.main(["bench", "widgets", "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("not measured in a browser: ") and "key to new picture" not in said


def test_what_goes_wrong_in_the_browser_is_not_taken_for_a_missing_one(fake, monkeypatch):
    def broken(*_):
        raise ValueError("the slider is gone")

    monkeypatch.setattr(fake.lesson, "keypress_ms", broken)
    with pytest.raises(ValueError, match="the slider is gone"):
        widgets.bench(browser.course_in_browser, draw_all_reduce, 1)
