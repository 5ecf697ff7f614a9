"""From controls to a picture, without a browser: what moves is drawn, what goes wrong is seen."""

import subprocess
import sys

import ipywidgets
import pytest

from refimpl.course.widgets import Explorer, option, picture, round_numbers, stops, switch, whole, words_area


def draw(n, half=False):
    """A picture of a number; no odd ones by halves; 13 is a mistake of ours."""
    if half and n % 2:
        raise ValueError(f"n={n} is odd: try {n - 1}")
    if n == 13:
        raise KeyError("thirteen")
    return picture(10, 10, title=f"Number {n}", words=f"There are {n / 2 if half else n} of <them>.")


@pytest.fixture
def explorer():
    return Explorer(draw, {"n": whole("Number", 4, 0, 20), "half": switch("by halves")}, name="numbers")


def test_the_first_picture_is_there_at_once_and_has_its_words(explorer):
    assert explorer.picture.value == draw(4).svg == explorer.shown.svg == explorer.still().svg
    assert 'role="status" aria-live="polite"' in explorer.status.value
    assert "There are 4 of &lt;them&gt;." in explorer.status.value
    assert "numbers" in explorer._dom_classes and "refimpl-picture" in explorer.picture._dom_classes


def test_a_moved_control_draws_a_new_picture(explorer):
    explorer.controls["n"].value = 6
    assert explorer.picture.value == draw(6).svg and "Number 6. There are 6" in explorer.status.value
    explorer.controls["half"].value = True
    assert explorer.shown == draw(6, True) and explorer.still() == draw(4)
    assert explorer.values == {"n": 6, "half": True}


def test_several_controls_at_once_make_one_picture():
    drawn = []

    def noted(n, half):
        drawn.append((n, half))
        return draw(n, half)

    explorer = Explorer(noted, {"n": whole("Number", 4, 0, 20), "half": switch("by halves")})
    explorer.set(n=8, half=True)
    assert drawn == [(4, False), (8, True)]
    with pytest.raises(ValueError, match="m: there is no such control; there are n, half"):
        explorer.set(m=3)


def test_what_cannot_be_is_said_in_its_own_words_and_the_picture_stays(explorer):
    explorer.set(n=5, half=True)
    assert "n=5 is odd: try 4" in explorer.status.value and explorer.picture.value == draw(4).svg
    assert "clip-path" not in explorer.status.value                      # seen, not only read aloud
    explorer.controls["n"].value = 6
    assert "odd" not in explorer.status.value and explorer.picture.value == draw(6, True).svg


def test_a_mistake_of_ours_is_never_silent(explorer):
    with pytest.raises(KeyError, match="thirteen"):
        explorer.controls["n"].value = 13
    assert "The picture could not be drawn: KeyError: &#x27;thirteen&#x27;" in explorer.status.value
    explorer.controls["n"].value = 14
    assert "could not" not in explorer.status.value


def test_a_mistake_in_the_first_picture_is_told_where_the_widget_is_made():
    with pytest.raises(KeyError):
        Explorer(draw, {"n": whole("Number", 13, 0, 20)})


def test_a_control_may_depend_on_others():
    drawn = []

    def noted(P, step):
        drawn.append((P, step))
        return draw(P)

    explorer = Explorer(noted, {"P": whole("Ranks", 8, 1, 9), "step": whole("Step", 0, 0, 3)},
                        adjust=lambda P, step: {"step": {"max": 2 * (P - 1)}})
    step = explorer.controls["step"]
    assert step.max == 14
    step.value = 14
    explorer.controls["P"].value = 3
    assert step.max == 4 and step.value == 4
    assert drawn == [(8, 0), (8, 14), (3, 4)]                            # none of a step that there is not
    explorer.set(step=16, P=9)                                           # there is room for it when P has moved
    assert drawn[3:] == [(9, 16)]


def test_presets_move_the_controls():
    explorer = Explorer(draw, {"n": whole("Number", 4, 0, 20), "half": switch("by halves")},
                        presets={"four": {"n": 4, "half": False}, "half of six": {"n": 6, "half": True}})
    menu = explorer.children[0].children[0]
    assert menu.description == "Example" and [words for words, _ in menu.options] == ["four", "half of six"]
    menu.index = 1
    assert explorer.shown == draw(6, True) and explorer.values == {"n": 6, "half": True}


def test_without_a_kernel_the_picture_is_shown(explorer):
    explorer.controls["n"].value = 6
    bundle = explorer._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["image/svg+xml"] == draw(4).svg and data["text/plain"] == "Number 4. There are 4 of <them>."
    assert "application/vnd.jupyter.widget-view+json" in data


def test_every_control_has_a_label_and_a_value():
    controls = [whole("Ranks", 4, 2, 8), option("Kind", ["a", "b"], "b"), switch("on", True),
                option("Size", {"small": 1, "large": 2}), words_area("Orders", "send 1"),
                stops("Size", 200.0, round_numbers(0, 3), "{:g} B".format)]
    assert [c.description for c in controls] == ["Ranks", "Kind", "on", "Size", "Orders", "Size"]
    assert [c.value for c in controls] == [4, "b", True, 1, "send 1", 200]
    assert all(isinstance(c, ipywidgets.Widget) for c in controls)
    assert round_numbers(0, 2) == [1, 2, 5, 10, 20, 50, 100] and controls[-1].options[:2] == (("1 B", 1), ("2 B", 2))
    assert round_numbers(-1, 0) == [0.1, 0.2, 0.5, 1]


def test_a_menu_has_no_choice_that_would_leave_it_empty():
    with pytest.raises(ValueError, match="^Cut: 'by tp' has the value None, and would leave the menu empty"):
        option("Cut", [("by tp", None), ("whole", 1)])


def test_pictures_do_not_need_a_notebook():
    """The functions that draw are of use on a page, too: they start no kernel and need no display."""
    code = ("from refimpl.course.widgets.all_reduce_stepper import draw_all_reduce; import sys\n"
            "print(draw_all_reduce(3, 1).title, 'jupyterlab' in sys.modules, 'matplotlib' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "Step 1 of 4: reduce-scatter False False\n", done.stderr
