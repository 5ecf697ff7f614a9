"""A browser for the tests here, one for each file; without Chromium they are skipped, where REFIMPL_BROWSER=required
they fail. They close it before other tests run: Playwright's loop would be in the way of a notebook's.
"""

import os
from contextlib import ExitStack

import pytest

from refimpl.course.browser import NoBrowser, course_in_browser


@pytest.fixture(scope="module")
def course():
    """The course, opened in a browser."""
    with ExitStack() as closing:
        opened, missing = None, None
        try:
            opened = closing.enter_context(course_in_browser())
        except NoBrowser as error:
            missing = f"no browser: {error}"
        if missing and os.environ.get("REFIMPL_BROWSER") == "required":
            pytest.fail(f"REFIMPL_BROWSER=required, but there is {missing}", pytrace=False)
        if missing:
            pytest.skip(missing)
        yield opened


def pytest_terminal_summary(terminalreporter):
    """Say once why nothing was tried in a browser."""
    reasons = {report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])
               if report.nodeid.startswith("tests/browser/") and "no browser: " in report.longrepr[2]}
    for reason in sorted(reasons):
        terminalreporter.write_line(reason.removeprefix("Skipped: "))
