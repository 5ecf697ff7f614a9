"""A Chromium to look through: which one, and how it is started so that it says nothing to anybody.

Only tests and `bench widgets` need it, and Playwright, which drives it; `NoBrowser` says how to get them.
"""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
PLACES = ("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
          "C:/Program Files/Google/Chrome/Application/chrome.exe",
          "C:/Program Files (x86)/Microsoft/Edge/Application/msedge.exe")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-proxy-server",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]         # no name has an address, as offline


class NoBrowser(ValueError):
    """There is no Chromium, or no Playwright to drive it; says how to get it."""


def playwright_started():
    """Playwright, as a context manager."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise NoBrowser(f"this needs Playwright ({error}): run start.py again, or pip install playwright") from None
    return sync_playwright()


def chromium(playwright):
    """The path of a Chromium, or of a browser made of it: REFIMPL_CHROMIUM, Playwright's own, or the system's."""
    chosen = os.environ.get("REFIMPL_CHROMIUM")
    if chosen:
        if not shutil.which(chosen):
            raise NoBrowser(f"REFIMPL_CHROMIUM={chosen}: there is no such program")
        return shutil.which(chosen)
    places = [playwright.chromium.executable_path, *filter(None, map(shutil.which, NAMES)), *PLACES]
    for place in places:
        if os.path.exists(place):
            return place
    raise NoBrowser("this needs Chromium or Chrome: `sudo apt install chromium` on Debian and Ubuntu, elsewhere "
                    "`.venv/bin/python -m playwright install chromium`, or REFIMPL_CHROMIUM=/path/to/it")


def launched(playwright, program):
    """The program as a browser without a screen, a context manager. NoBrowser where it does not start."""
    from playwright.sync_api import Error
    try:
        return playwright.chromium.launch(executable_path=program, args=FLAGS)
    except Error as error:
        why = str(error).splitlines()[0]
        raise NoBrowser(f"{program} does not start ({why}): REFIMPL_CHROMIUM=/path/to/another one?") from None
