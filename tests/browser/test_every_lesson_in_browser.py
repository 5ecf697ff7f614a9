"""Every lesson as a learner meets it: reached from the map, run, its widgets moved by key and by mouse, and its quiz,
which remembers a mistake when the kernel is another one. One window for all; a tab of JupyterLab for each.
"""

import importlib
import inspect
import pkgutil
from contextlib import contextmanager
from pathlib import Path

import ipywidgets
import pytest
from slow import only_all

from refimpl.course import widgets
from refimpl.course.quiz.questions import load
from refimpl.course.widgets.course_map import NAMED

pytestmark = only_all

MAP = "00_the_map"
LESSONS = sorted((path.stem for path in (Path(__file__).parents[2] / "lessons").glob("*.ipynb")),
                 key=lambda name: (name == MAP, name))  # it restarts, and all others start from it
BOXES = {number: title for title, number in NAMED.values()}
SEEN = {}                                                # {lesson: names of the widgets in it}, as the tests get there
SECONDS = 30                                             # for one picture; the machine may be busy


@pytest.fixture(scope="module")
def window(course):
    """JupyterLab with the map, which has run."""
    opened = course.open(f"lessons/{MAP}.ipynb")
    opened.run_all()
    return opened


@pytest.fixture
def panel(window):
    """What is in front, whichever notebook that is. Afterwards only the map is open, and only its kernel runs."""
    yield window.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    window.page.evaluate(CLOSE, MAP)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_reached_from_the_map_runs_reacts_and_remembers_a_mistake(window, panel, name):
    before = window.troubles()
    open_from_the_map(window, panel, name)
    window.run_all()
    roots = panel.locator(".refimpl-widget")
    SEEN[name] = {each for k in range(roots.count()) for each in names(roots.nth(k).get_attribute("class").split())}
    for k in range(roots.count()):
        every_control_reacts_to_a_key_and_the_widget_to_the_mouse(window, roots.nth(k))
    if name == "00_first_run":
        assert panel.locator(".refimpl-quiz").count() == 0
    else:
        question = next(q for q in load() if q.lesson == name[:2] and not q.draw)
        answer_wrong(panel, question)
        window.restart()
        window.run_all()
        panel.locator(f".quiz-{question.id}").get_by_text("you missed this one last time").wait_for()
    assert window.troubles() == before


def test_no_widget_escapes_the_lessons():
    """The widgets of the lessons are those that exist. Tried, too, are all of them: each lesson tries those it has."""
    if SEEN.keys() != set(LESSONS):
        pytest.skip("only together with all the lessons above")
    made = {name: names(make()._dom_classes) for name, make in makers().items()}
    assert [name for name, found in made.items() if len(found) != 1] == []             # a widget has one name
    assert set().union(*SEEN.values()) == set().union(*made.values())


# -- from the map --------------------------------------------------------------------------------------------------

def open_from_the_map(window, panel, name):
    """Click on the lesson's box and on the link beside the menu; then once more, from the menu on with keys."""
    if name == MAP:
        return
    if name == "00_first_run":                           # it has no box: it comes before or after
        panel.get_by_role("link", name="First run", exact=True).click()
        return in_front(window, name)
    the_map, number = panel.locator(".course-map"), name[:2]
    link = the_map.get_by_role("link", name=f"Open lesson {number}: ")
    the_map.locator("[onclick]", has_text=f"{number} {BOXES[number]}").click()
    link.click()
    in_front(window, name)
    window.page.locator(".lm-TabBar-tab", has_text=MAP).click()
    in_front(window, MAP)
    the_map.locator("select").focus()
    window.page.keyboard.press("Tab")
    assert link.evaluate("link => link === document.activeElement"), "Tab does not lead from the menu to the link"
    window.page.keyboard.press("Enter")
    in_front(window, name)


def in_front(window, name):
    """Wait until this notebook is in front, and its kernel ready."""
    window.page.wait_for_function("path => jupyterapp.shell.currentWidget?.context?.path === path",
                                  arg=f"lessons/{name}.ipynb")
    window.page.evaluate("""async () => {
        const session = jupyterapp.shell.currentWidget.context.sessionContext;
        await session.ready;
        await session.session.kernel.info;
    }""")
    window.ready()


CLOSE = """async name => {                               // without a question whether to save
    for (const each of [...jupyterapp.shell.widgets("main")]) {
        if (each.context?.path === `lessons/${name}.ipynb`) { jupyterapp.shell.activateById(each.id); continue; }
        await each.context?.sessionContext.shutdown();
        each.dispose();
    }
}"""


# -- widgets -------------------------------------------------------------------------------------------------------

CONTROLS = (".noUi-handle, select, textarea, input[type=checkbox], .widget-toggle-buttons button:first-child, "
            "button:not(.widget-toggle-button)")
KEYS = {"slider": ("ArrowRight", "ArrowLeft"), "menu": ("ArrowDown", "ArrowUp"), "field": ("x", "Backspace"),
        "box": ("Space", "Space"), "button": ("Space", None)}                        # there, and back
NEEDS = {"Sort by rank": ("Layout", 1), "Chunks a rank": ("Example", 1),             # what does nothing at first: the
         "Experts are cut": ("Example", 2)}                                          # menu to move before, and how far


def every_control_reacts_to_a_key_and_the_widget_to_the_mouse(window, root):
    """A key on each control changes what is shown, and the opposite one brings it back: none spoils the next."""
    root.scroll_into_view_if_needed()
    found = root.locator(CONTROLS)
    controls = [found.nth(k) for k in range(found.count())]
    names = [control.evaluate(LABEL) for control in controls]
    assert all(names) and len(set(names)) == len(names) > 0, f"{root.get_attribute('class')}: controls {names}"
    for name, control in zip(names, controls):
        menu, steps = NEEDS.get(name, (name, 0))
        for _ in range(steps):
            with changing(root, f"{menu}: ArrowDown"):
                press(window, controls[names.index(menu)], "ArrowDown")
        kind, at_its_end = control.evaluate(KIND)
        there, back = KEYS[kind][::-1 if at_its_end else 1]
        with changing(root, f"{name}: {there}") as first:
            press(window, control, there)
        if back:
            with changing(root, f"{name}: {back} after {there}", into=first):
                press(window, control, back)
        for _ in range(steps):
            with changing(root, f"{menu}: ArrowUp"):
                press(window, controls[names.index(menu)], "ArrowUp")
    with changing(root, f"{root.get_attribute('class')}: the mouse"):
        move_by_mouse(window, root)


@contextmanager
def changing(root, words, into=None):
    """What is done meanwhile changes what the widget shows, back `into` that, if it is given. Yields what it showed.

    AssertionError that begins with these words, where nothing happens, or a mistake of ours is shown.
    """
    before = root.evaluate(SHOWN)
    yield before
    happened = root.evaluate(BECOMES, [into or before, into is not None])
    assert happened, f"{words} {'does not bring back what was shown' if into else 'changes nothing'}"
    broken = "could not be drawn" in root.inner_text()
    assert not broken, f"{words}: {root.get_by_role('status').inner_text()}"


def press(window, control, key):
    """Press a key where Tab leads to, too."""
    reached = control.evaluate("node => node.tabIndex >= 0")
    assert reached, f"Tab does not lead to {control.evaluate(LABEL)}"
    control.focus()
    window.page.keyboard.press(key)


def move_by_mouse(window, root):
    """Drag a slider; without one, click on what takes a click in the picture, or on a box, or into a field."""
    slider, others = root.locator(".noUi-handle"), root.locator("[onclick], input[type=checkbox]")
    if slider.count():
        window.drag(slider.first, -80 if slider.first.evaluate(KIND)[1] else 80)
    elif others.count():
        others.last.click()
    else:
        root.locator("textarea").click()
        window.page.keyboard.type("x")                   # the click has put the cursor there


LABEL = """node => {
    const labels = node.closest(".widget-inline-hbox")?.querySelectorAll(".widget-label, .widget-label-basic");
    const words = [...(labels ?? [node])].map(label => label.textContent.replaceAll("\\u200b", "").trim());
    return words.find(some => some) ?? "";
}"""
KIND = """node => {                                        // what it is, and whether it can only go back
    if (node.matches(".noUi-handle")) return ["slider", node.ariaValueNow === node.ariaValueMax];
    if (node.matches("select")) return ["menu", node.selectedIndex === node.options.length - 1];
    return [node.matches("textarea") ? "field" : node.matches("input") ? "box" : "button", false];
}"""
SHOWN = "root => [...root.querySelectorAll('.refimpl-picture, [role=status]')].map(n => n.outerHTML).join('')"
BECOMES = f"""async (root, [other, same]) => {{          // wait until what is shown is the other, or is not
    const shown = {SHOWN}, until = Date.now() + {1000 * SECONDS};
    while ((shown(root) === other) !== same) {{
        if (Date.now() > until) return false;
        await new Promise(resolve => setTimeout(resolve, 20));
    }}
    return true;
}}"""


def names(classes):
    """The names of widgets among CSS classes: what refimpl adds, and neither ipywidgets nor JupyterLab."""
    return {each for each in classes if not each.startswith(("lm-", "jp-", "jupyter-", "widget-", "refimpl-"))}


def makers():
    """{name: what makes it} of all interactive widgets in refimpl/course/widgets, exported or not."""
    found = {}
    for module in pkgutil.iter_modules(widgets.__path__, f"{widgets.__name__}."):
        for name, thing in vars(importlib.import_module(module.name)).items():
            own = getattr(thing, "__module__", None) == module.name and thing is not widgets.Explorer
            widget = inspect.isclass(thing) and issubclass(thing, ipywidgets.Widget)
            if own and (widget or inspect.isfunction(thing) and name[0].isupper()):
                found[name] = thing
    return found


# -- the quiz ------------------------------------------------------------------------------------------------------

def answer_wrong(panel, question):
    """Choose a wrong answer and check it: it gets its own reason."""
    wrong = next(choice for choice in question.show().choices if not choice.right)
    box = panel.locator(f".quiz-{question.id}")
    box.get_by_label(wrong.text, exact=True).check()
    box.get_by_role("button", name="Check answer").click()
    box.get_by_role("status").get_by_text("Not this one:").wait_for()
