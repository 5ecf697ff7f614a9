"""The course in a real browser: JupyterLab on a copy of it, driven through Chromium.

    with course_in_browser() as course:
        lesson = course.open("lessons/00_first_run.ipynb", theme="dark")
        lesson.run_all()                                 raises when a cell does
        lesson.page.locator(".quiz-ring-bits")           Playwright's page, for everything else
        lesson.restart()
        lesson.screenshot("whole.png")
        assert lesson.troubles() == []                   errors in the page, requests that leave the machine, dialogs

For tests and for `bench widgets`. What a page asks of another machine fails, as it would offline, and is noted.
"""

import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from refimpl.course.chromium import NoBrowser, chromium, launched, playwright_started
from refimpl.course.lab import lab

__all__ = ["Course", "Lesson", "NoBrowser", "course_in_browser"]

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
SECONDS = 60                                             # for one step in the page; the machine may be busy
TALLEST = 16_000                                         # pixels that Chromium still draws in one picture


@contextmanager
def course_in_browser(width=1300, height=900):
    """A `Course` in a browser window of this size in pixels, and nothing of it left in the end.

    NoBrowser where there is none; RuntimeError where JupyterLab does not start.
    """
    with ExitStack() as closing:
        playwright = closing.enter_context(playwright_started())
        browser = closing.enter_context(launched(playwright, chromium(playwright)))
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="refimpl-", ignore_cleanup_errors=True))
        server = closing.enter_context(lab(Path(folder)))
        window = closing.enter_context(browser.new_context(viewport={"width": width, "height": height}))
        window.set_default_timeout(1000 * SECONDS)
        yield Course(server, window)


class Course:
    """The copy in its window.

    folder      the copy, where notebooks of one's own may be put before they are opened
    progress    the file of a learner who has done nothing yet
    """

    def __init__(self, server, window):
        self.folder, self.progress = server.course, server.progress
        self._server, self._window = server, window

    def open(self, notebook, theme="light"):
        """Open a notebook, a path in `folder`, and wait until its kernel is ready; a `Lesson`."""
        lesson = Lesson(self._window.new_page())
        lesson.page.goto(self._server.url(notebook))
        lesson.page.locator(".jp-Notebook").wait_for()
        lesson.ready()
        lesson.page.evaluate(LISTEN)
        lesson.theme(theme)
        return lesson


class Lesson:
    """One notebook in the browser. page: Playwright's, for what these few methods do not do."""

    def __init__(self, page):
        self.page, self._troubles = page, []
        page.add_init_script(WATCH_DIALOGS)
        page.on("pageerror", lambda error: self._troubles.append(f"error in the page: {error}"))
        page.on("request", lambda request: self._sent(request.url))
        page.on("websocket", lambda socket: self._sent(socket.url))
        page.on("dialog", self._dialog)

    def ready(self):
        """Wait until the kernel has nothing to do. The notebook's own sign says so too early."""
        self.page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()

    def theme(self, name):
        """Switch to the light or the dark theme."""
        if name not in THEMES:
            raise ValueError(f"theme={name!r}: expected {' or '.join(THEMES)}")
        self.page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", THEMES[name])
        light = "true" if name == "light" else "false"
        self.page.locator(f"body[data-jp-theme-light={light}]").wait_for(state="attached")

    def menu(self, *entries):
        """Click through a menu, as in menu("Run", "Run All Cells"); what it starts may be waited for with `done`."""
        self.page.evaluate("() => { window.refimplStarted = []; }")
        self.page.locator(".lm-MenuBar").get_by_text(entries[0], exact=True).click()
        for entry in entries[1:]:
            self.page.locator(".lm-Menu").get_by_text(entry, exact=True).click()

    def done(self):
        """Wait until what the menu started is done."""
        self.page.evaluate("() => Promise.allSettled(window.refimplStarted)")
        self.ready()

    def run_all(self):
        """Run > Run All Cells, to the end. RuntimeError with the traceback where a cell fails."""
        self.menu("Run", "Run All Cells")
        self.done()
        failed = self.page.evaluate(FAILED)
        if failed:
            raise RuntimeError("\n\n".join(failed))

    def restart(self):
        """Kernel > Restart Kernel, and yes to the question. Outputs stay as they are, as JupyterLab leaves them."""
        self.menu("Kernel", "Restart Kernel…")
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        self.done()
        self.page.evaluate("() => { window.refimplDialogs.pop(); }")         # that one was ours

    def fingerprint(self, picture):
        """A short string for what a locator shows. Compare these: a comparison of pictures prints them on failure."""
        return picture.evaluate(FINGERPRINT)

    def wait_for_change(self, picture, before):
        """Wait until a locator shows something else than it did at the fingerprint `before`; the new one."""
        picture.evaluate(f"""async (node, before) => {{
            const until = Date.now() + {1000 * SECONDS};
            while (({FINGERPRINT})(node) === before) {{
                if (Date.now() > until) throw new Error("the picture did not change");
                await new Promise(resolve => setTimeout(resolve, 20));
            }}
        }}""", before)
        return self.fingerprint(picture)

    def value(self, handle):
        """Where a slider's handle, a locator, stands: a float."""
        return float(handle.get_attribute("aria-valuenow"))

    def drag(self, handle, right):
        """Drag a slider's handle with the mouse, so many pixels to the right."""
        handle.scroll_into_view_if_needed()
        box = handle.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + right, y, steps=5)
        self.page.mouse.up()

    def keypress_ms(self, handle, key, picture):
        """Press a key on `handle`; milliseconds until the changed `picture` is drawn, by the page's own clock.

        handle, picture: locators. picture is what stays and whose content changes: the widget around an image, say.
        """
        handle.focus()
        picture.evaluate(TIME_THE_KEY)
        self.page.keyboard.press(key)
        return self.page.evaluate(f"""() => Promise.race([window.refimplDrawn,
            new Promise((_, no) => setTimeout(() => no(new Error("no new picture")), {1000 * SECONDS}))])""")

    def screenshot(self, path, of=None):
        """Write a .png of the whole notebook, however long it is, or of one locator."""
        size = self.page.viewport_size
        panel = self.page.locator(".jp-NotebookPanel:visible .jp-WindowedPanel-outer").first
        hidden = panel.evaluate("panel => panel.scrollHeight - panel.clientHeight")
        self.page.set_viewport_size(size | {"height": min(size["height"] + hidden, TALLEST)})
        panel.evaluate("panel => { panel.scrollTop = 0; }")                  # Run All has gone to the last cell
        self.page.wait_for_timeout(500)                  # cells that come into view are drawn only now
        (of or self.page).screenshot(path=path)
        self.page.set_viewport_size(size)

    def troubles(self):
        """What must not happen in any lesson, in words: errors, requests to other machines, unasked dialogs."""
        dialogs = self.page.evaluate("() => window.refimplDialogs")
        return self._troubles + [f"a dialog: {text}" for text in dialogs]

    def close(self):
        """Close the window of the notebook; its kernel goes on, as in JupyterLab."""
        self.page.close()

    def _sent(self, url):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1":
            self._troubles.append(f"a request to {parts.hostname}: {url[:100]}")

    def _dialog(self, dialog):
        self._troubles.append(f"a dialog of the browser: {dialog.message}")
        dialog.accept()


WATCH_DIALOGS = """
window.refimplDialogs = [];
new MutationObserver(changes => {
    for (const change of changes) for (const node of change.addedNodes)
        if (node.classList?.contains("jp-Dialog")) window.refimplDialogs.push(node.innerText);
}).observe(document, {subtree: true, childList: true});
"""

LISTEN = """() => {                  // a menu's entry is a command, and a command's result a promise
    window.refimplStarted = [];
    jupyterapp.commands.commandExecuted.connect((_, command) => window.refimplStarted.push(command.result));
}"""

FAILED = """() => {
    const found = [];
    for (const cell of jupyterapp.shell.currentWidget.content.widgets)
        for (const output of cell.model.sharedModel.toJSON().outputs ?? [])
            if (output.output_type === "error")
                found.push(`cell ${cell.model.id}:\\n${output.traceback.join("\\n").replace(/\\x1b\\[[0-9;]*m/g, "")}`);
    return found;
}"""

FINGERPRINT = """node => {
    let hash = 5381;
    for (const character of node.outerHTML) hash = (hash * 33 + character.codePointAt(0)) | 0;
    return `${hash >>> 0}`;
}"""

TIME_THE_KEY = """picture => {
    window.refimplDrawn = new Promise(resolve => addEventListener("keydown", key => {
        const changed = new MutationObserver(async () => {
            changed.disconnect();
            await Promise.all([...picture.querySelectorAll("img")].map(image => image.decode()));
            requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - key.timeStamp)));
        });
        changed.observe(picture, {subtree: true, childList: true, attributes: true, characterData: true});
    }, {once: true, capture: true}));
}"""
