"""Which browser is taken, what is said where there is none, and what the copy of the course is made of.

What happens in the browser is tested in tests/browser.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from refimpl.course import chromium as module
from refimpl.course import lab
from refimpl.course.browser import course_in_browser
from refimpl.course.chromium import NoBrowser, chromium

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """(make(name) puts a program there and gives its path, a Playwright whose own browser would be there, too)."""
    def make(name):
        path = tmp_path / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return str(path)

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("REFIMPL_CHROMIUM", raising=False)
    monkeypatch.setattr(module, "PLACES", ())
    return make, SimpleNamespace(chromium=SimpleNamespace(executable_path=str(tmp_path / "own")))


def test_the_chosen_browser_comes_first_then_playwright_s_own_then_the_system_s(places, monkeypatch):
    make, playwright = places
    for name in ("google-chrome", "chromium-browser", "chromium", "own"):         # the later, the better
        made = make(name)
        assert chromium(playwright) == made
    mine = make("mine")
    monkeypatch.setenv("REFIMPL_CHROMIUM", mine)
    assert chromium(playwright) == mine


def test_no_browser_is_told_with_how_to_get_one(places, monkeypatch):
    _, playwright = places
    with pytest.raises(NoBrowser, match="sudo apt install chromium.*playwright install chromium.*REFIMPL_CHROMIUM="):
        chromium(playwright)
    monkeypatch.setenv("REFIMPL_CHROMIUM", "/nowhere/chromium")
    with pytest.raises(NoBrowser, match="REFIMPL_CHROMIUM=/nowhere/chromium: there is no such program"):
        chromium(playwright)


def test_a_browser_that_does_not_start_is_no_browser(monkeypatch, tmp_path):
    program = tmp_path / "broken"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("REFIMPL_CHROMIUM", str(program))
    with pytest.raises(NoBrowser, match=f"{program} does not start"), course_in_browser():
        pass


def test_without_playwright_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(NoBrowser, match="this needs Playwright"), course_in_browser():
        pass


@pytest.mark.parametrize("required, status, words", [("", 0, "1 skipped"), ("required", 1, "REFIMPL_BROWSER=required")])
def test_without_a_browser_its_tests_are_skipped_with_a_reason_or_fail_where_it_is_required(required, status, words):
    job = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/browser/test_lesson_in_browser.py"],
        cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"REFIMPL_CHROMIUM": "/nowhere/chromium", "REFIMPL_BROWSER": required})
    assert job.returncode == status, job.stdout + job.stderr
    assert words in job.stdout
    assert "no browser" in job.stdout and "REFIMPL_CHROMIUM=/nowhere/chromium: there is no such program" in job.stdout


# -- the copy -----------------------------------------------------------------------------------------------------

def test_the_copy_has_what_a_lesson_needs_and_starts_without_outputs(tmp_path, monkeypatch):
    course = tmp_path / "course"
    for part in lab.PARTS:
        (course / part).mkdir(parents=True)
    cell = nbformat.v4.new_code_cell("1 + 1", execution_count=3, outputs=[nbformat.v4.new_output("stream", text="2")])
    cells = [nbformat.v4.new_markdown_cell("Words."), cell]
    run = nbformat.v4.new_notebook(cells=cells, metadata={"widgets": {"a": 1}})
    nbformat.write(run, course / "lessons" / "run.ipynb")
    (course / "refimpl" / "__pycache__").mkdir()
    before = (course / "lessons" / "run.ipynb").read_bytes()
    monkeypatch.setattr(lab, "ROOT", course)

    copy = lab.copy_of_the_course(tmp_path / "copy")
    clean = nbformat.read(copy / "lessons" / "run.ipynb", as_version=4)
    nbformat.validate(clean)
    assert clean.cells[1].outputs == [] and clean.cells[1].execution_count is None and "widgets" not in clean.metadata
    assert [c.source for c in clean.cells] == ["Words.", "1 + 1"]
    assert sorted(p.relative_to(copy).as_posix() for p in copy.rglob("*")) == sorted([*lab.PARTS, "lessons/run.ipynb"])
    assert (course / "lessons" / "run.ipynb").read_bytes() == before


def test_the_server_is_at_home_in_the_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_TOKEN", "another one's")
    monkeypatch.setenv("XDG_DATA_HOME", "/elsewhere")
    monkeypatch.setenv("PYTHONPATH", "before")
    environment = lab.environment(tmp_path, tmp_path / "course")
    assert "JUPYTER_TOKEN" not in environment and "XDG_DATA_HOME" not in environment
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "course"), "before"]
    for name in ("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "REFIMPL_PROGRESS"):
        assert environment[name].startswith(str(tmp_path / "home"))


def test_a_server_that_does_not_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "command", lambda course, token: [sys.executable, "-c", "raise SystemExit('no port')"])
    with pytest.raises(RuntimeError, match="did not start. The last that it wrote:\nno port"), lab.lab(tmp_path):
        pass


def test_the_addresses_of_notebooks_are_quoted():
    server = lab.Server(Path("course"), Path("progress"), "http://127.0.0.1:1/", "key")
    assert server.url("lessons/a b.ipynb") == "http://127.0.0.1:1/lab/tree/lessons/a%20b.ipynb?token=key&reset"
