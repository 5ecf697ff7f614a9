"""How long a learner waits: from a key on a widget's control to the new picture, for every widget, in a real browser.

JupyterLab on a copy of the course, in Chromium, all widgets in one notebook. The page's own clock runs from the key to
the drawn picture: the message to the kernel, the picture's function, the message back and the browser's work are all
in it. Every control that keys move, and that changes the picture, goes a few steps there and back; there the picture is
one that has never been drawn. Without a browser only the function is timed, and `median_ms` is None: a figure of
something else would be no measurement.
"""

import json
import time
from contextlib import ExitStack
from typing import NamedTuple

from refimpl.bench.timing import median

SIZES, ROUNDS, ALLOWED_MS = None, 1, 100
KEYS = 6                                                  # of a widget, there; as many back; its controls share them
SLIDER = "ArrowRight", "ArrowLeft", ".noUi-handle[aria-label]"
CONTROLS = {                                              # a key up, one down, and what takes them, once it is ready
    "IntSlider": SLIDER, "SelectionSlider": SLIDER, "Checkbox": ("Space", "Space", "input"),
    "Dropdown": ("ArrowDown", "ArrowUp", "select[data-lm-suppress-shortcuts]")}


class Walk(NamedTuple):
    """Some steps of one control, and back.

    control    its name        place      in the row of controls        part    of it that keys go to, a CSS selector
    keys       in their order  draw_ms    that the picture's function takes after each
    """

    control: str
    place: int
    part: str
    keys: list
    draw_ms: list


def bench(course_in_browser, widgets, rounds):
    """rows: widget, draw_ms and draw_slowest_ms, presses, median_ms, slowest_ms and slowest_control; over; browser.

    course_in_browser    of refimpl.course.browser        widgets    what makes each of refimpl.course.widgets
    draw_ms is of the picture's function alone; over has the names of the widgets whose median is above allowed_ms.
    Without a browser what would be measured in it is None, and not_measured says why.
    """
    plan = {make.__name__: walks(make) for make in widgets}
    waited, told = {name: [] for name in plan}, {"allowed_ms": ALLOWED_MS, "over": None, "browser": None}
    with ExitStack() as closing:
        try:
            course = closing.enter_context(course_in_browser())
        except ValueError as error:                       # NoBrowser: it says what is missing
            told["not_measured"] = f"not measured in a browser: {error}"
        else:
            waited, told["browser"] = in_browser(course, plan, rounds)
    rows = [row(name, found, waited[name]) for name, found in plan.items()]
    if "not_measured" not in told:
        told["over"] = [each["widget"] for each in rows if each["median_ms"] > ALLOWED_MS]
    return told | {"rows": rows}


def row(name, found, waited):
    """The figures of a widget. found: its walks; waited: [(milliseconds, control) of each key]."""
    drawn = [ms for walk in found for ms in walk.draw_ms]
    slowest, control = max(waited, default=(None, None))
    return {"widget": name, "draw_ms": median(drawn), "draw_slowest_ms": max(drawn), "presses": len(waited),
            "median_ms": median([ms for ms, _ in waited]) if waited else None,
            "slowest_ms": slowest, "slowest_control": control}


# -- which keys -------------------------------------------------------------------------------------------------------

def walks(make):
    """A `Walk` of every control that keys move and that changes the picture. make() makes the widget."""
    kinds = [type(control).__name__ for control in controls_of(make())]
    steps = max(KEYS // sum(kind in CONTROLS for kind in kinds), 1)
    return [walk for place, kind in enumerate(kinds) if kind in CONTROLS and (walk := longest(make, place, steps))]


def longest(make, place, steps):
    """The longest walk of a control, of `steps` steps at most: up, or down where up there is none; None if neither."""
    tried = (there_and_back(make(), place, way, n) for way in (1, -1) for n in range(steps, 0, -1))
    return next((walk for walk in tried if walk), None)


def there_and_back(widget, place, way, steps):
    """The `Walk` of so many steps; None where one of them leaves the picture as it is, or the last not as it was."""
    control, pictures, times = controls_of(widget)[place], [widget.picture.value], []
    widget.draw = timed(widget.draw, times)
    for ahead in [way] * steps + [-way] * steps:
        move(control, ahead)
        pictures.append(widget.picture.value)
    if pictures[-1] != pictures[0] or any(after == before for before, after in zip(pictures, pictures[1:])):
        return None
    up, down, part = CONTROLS[type(control).__name__]
    there, back = (up, down) if way == 1 else (down, up)
    return Walk(control.description, place, part, [there] * steps + [back] * steps, times[-2 * steps:])


def controls_of(widget):
    """The row above the picture, as it stands in the page."""
    return widget.children[0].children


def move(control, way):
    """Move a control as a key does: by one, up or down; not at all where it ends."""
    if hasattr(control, "index"):
        control.index = min(max(control.index + way, 0), len(control.options) - 1)
    elif hasattr(control, "max"):
        control.value = min(max(control.value + way * control.step, control.min), control.max)
    else:
        control.value = not control.value


def timed(draw, times):
    """`draw`, but it appends to `times` how many milliseconds it took."""
    def drawn(**values):
        began = time.perf_counter()
        try:
            return draw(**values)
        finally:
            times.append(1e3 * (time.perf_counter() - began))

    return drawn


# -- in the browser ---------------------------------------------------------------------------------------------------

def in_browser(course, plan, rounds):
    """Press all keys of the plan, `rounds` times: {widget: [(milliseconds, control) of each]}, and which browser."""
    notebook = course.folder / "lessons" / "bench_widgets.ipynb"
    notebook.write_text(json.dumps(notebook_of(plan)), encoding="utf-8")
    lesson, waited = course.open(f"lessons/{notebook.name}"), {name: [] for name in plan}
    lesson.run_all()
    for k, (name, found) in enumerate(plan.items()):
        widget = lesson.page.locator(".refimpl-widget").nth(k)
        controls, picture = widget.locator(".widget-hbox").first, widget.locator(".refimpl-picture")
        for walk in found * rounds:
            handle = controls.locator(":scope > *").nth(walk.place).locator(walk.part)
            waited[name] += [(lesson.keypress_ms(handle, key, picture), walk.control) for key in walk.keys]
    return waited, f"Chromium {lesson.page.context.browser.version}"


def notebook_of(names):
    """A notebook, as JSON will have it: a cell for each widget."""
    cells = [{"cell_type": "code", "id": name, "metadata": {}, "execution_count": None, "outputs": [],
              "source": f"from refimpl.course.widgets import {name}\n\n{name}()"} for name in names]
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def describe(result):
    """The figures as text."""
    alone = lambda row: f"{row['draw_ms']:>7.1f} {row['draw_slowest_ms']:>8.1f}"
    if result["browser"] is None:
        return "\n".join([result["not_measured"], "", f"{'':20} {'the function alone, ms':>22}",
                          f"{'widget':20} {'median':>7} {'slowest':>8}",
                          *(f"{row['widget']:20} {alone(row)}" for row in result["rows"])])
    over, allowed = result["over"], result["allowed_ms"]
    lines = [f"{'':20} {'':>5} {'key to picture, ms':>18}  {'the function alone':>18}",
             f"{'widget':20} {'keys':>5} {'median':>9} {'slowest':>8}  {'median':>9} {'slowest':>8}  slowest key on"]
    for row in result["rows"]:
        mark = f"  over {allowed} ms" if row["widget"] in over else ""
        lines.append(f"{row['widget']:20} {row['presses']:>5} {row['median_ms']:>9.0f} {row['slowest_ms']:>8.0f}  "
                     f"{row['draw_ms']:>9.1f} {row['draw_slowest_ms']:>8.1f}  {row['slowest_control']}{mark}")
    rows = len(result["rows"])
    kept = "all do" if not over else f"{rows - len(over)} of {rows} do, not {', '.join(over)}"
    return "\n".join([*lines, "", f"claimed: the median of every widget is at most {allowed} ms, in a browser; {kept} "
                      f"({result['browser']})"])
