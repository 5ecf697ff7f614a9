"""How long a learner waits: from a key on the slider of the all-reduce stepper to the new picture, in a real browser.

JupyterLab on a copy of the course, in Chromium; the page's own clock from the key to the drawn picture, so that the
message to the kernel, the picture's function, the message back and the browser's work are all in it. Where there is no
browser, only the function is timed, and `median_ms` is None: a figure of something else would be no measurement.
"""

import json
import time
from contextlib import ExitStack

from refimpl.bench.timing import median

SIZES, ALLOWED_MS = None, 100
RANKS, STEPS, WARM_UP = 8, 7, 2                           # the largest picture; keys each way in a round, and before
CELL = f"from refimpl.course.widgets import AllReduceStepper\n\nAllReduceStepper({RANKS})"


def bench(course_in_browser, draw, rounds):
    """median_ms, slowest_ms and presses, in the browser; draw_ms, the picture's function alone; browser, its version.

    course_in_browser    of refimpl.course.browser        draw    draw(P, step) of the stepper
    Without a browser median_ms is None, and not_measured says why.
    """
    result = {"widget": "all-reduce stepper", "ranks": RANKS, "allowed_ms": ALLOWED_MS,
              "draw_ms": draw_ms(draw, rounds)}
    with ExitStack() as closing:
        try:
            course = closing.enter_context(course_in_browser())
        except ValueError as error:                       # NoBrowser: it says what is missing
            return result | {"median_ms": None, "slowest_ms": None, "presses": 0, "browser": None,
                             "not_measured": f"not measured in a browser: {error}"}
        return result | in_browser(course, rounds)


def in_browser(course, rounds):
    """Press keys: to the right, to the left, `rounds` times."""
    notebook = course.folder / "lessons" / "bench_widgets.ipynb"
    notebook.write_text(json.dumps(of_one_cell(CELL)), encoding="utf-8")
    lesson = course.open(f"lessons/{notebook.name}")
    lesson.run_all()
    widget = lesson.page.locator(".all-reduce-stepper").first
    handle, picture = widget.locator(".noUi-handle").nth(1), widget.locator(".refimpl-picture")
    press = lambda key: lesson.keypress_ms(handle, key, picture)
    for key in ["ArrowRight", "ArrowLeft"] * WARM_UP:
        press(key)
    times = [press(key) for _ in range(rounds) for key in ["ArrowRight"] * STEPS + ["ArrowLeft"] * STEPS]
    return {"median_ms": median(times), "slowest_ms": max(times), "presses": len(times),
            "browser": f"Chromium {lesson.page.context.browser.version}"}


def of_one_cell(source):
    """A notebook, as JSON will have it, of one cell of code."""
    cell = {"cell_type": "code", "id": "widget", "metadata": {}, "execution_count": None, "outputs": [],
            "source": source}
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    return {"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def draw_ms(draw, rounds):
    """Milliseconds that the picture's function takes: the median over all steps."""
    times = []
    for _ in range(rounds):
        for step in range(2 * (RANKS - 1) + 1):
            began = time.perf_counter()
            draw(RANKS, step)
            times.append(1e3 * (time.perf_counter() - began))
    return median(times)


def describe(result):
    """The figures as text."""
    alone = f"the picture's function alone: {result['draw_ms']:.2f} ms"
    if result["median_ms"] is None:
        return f"{result['not_measured']}\n{alone}"
    return (f"{result['widget']}, {result['ranks']} ranks, {result['presses']} keys in {result['browser']}\n"
            f"key to new picture: median {result['median_ms']:.0f} ms, slowest {result['slowest_ms']:.0f} ms; "
            f"{result['allowed_ms']} are allowed\n{alone}")
