"""Building blocks: well-formed SVG, in its place, with words that survive; axes that put points where they are."""

import base64
import math
from xml.etree import ElementTree

import pytest

from refimpl.course.widgets import Axes, svg
from refimpl.course.widgets.axes import numbers, share


def parsed(*shapes, width=400, height=300):
    """The elements of a picture of these shapes, by tag, without those that every picture has."""
    whole = ElementTree.fromstring(svg.picture(width, height, *shapes, title="A title", words="Some words.").svg)
    found = {}
    for element in list(whole.iter())[5:]:
        found.setdefault(element.tag.split("}")[1], []).append(element)
    return found


def numbers_of(element, *names):
    return [float(element.get(name)) for name in names]


# -- a whole picture ------------------------------------------------------------------------------------------------

def test_a_picture_tells_what_it_shows_to_those_who_cannot_see_it():
    whole = ElementTree.fromstring(svg.picture(300, 200, title="A < B & C", words='Says "so".').svg)
    assert whole.get("role") == "img" and whole.get("aria-label") == 'A < B & C. Says "so".'
    assert [whole.find(f"{{*}}{tag}").text for tag in ("title", "desc")] == ["A < B & C", 'Says "so".']
    assert whole.get("viewBox") == "0 0 300 200" and whole.get("class") == "rf"


def test_a_notebook_and_a_file_show_the_same_picture(tmp_path):
    shown = svg.picture(30, 20, svg.box(1, 2, 3, 4), title="A title", words="Some words.")
    bundle = shown._repr_mimebundle_()
    assert bundle["image/svg+xml"] == shown.svg and bundle["text/plain"] == "A title. Some words."
    image = ElementTree.fromstring(bundle["text/html"].replace(">", "/>"))
    assert image.get("alt") == "A title. Some words."
    assert base64.b64decode(image.get("src").removeprefix("data:image/svg+xml;base64,")).decode() == shown.svg
    shown.save(tmp_path / "it.svg")
    assert (tmp_path / "it.svg").read_text(encoding="utf-8") == shown.svg
    with pytest.raises(ValueError, match="the name must end in .svg"):
        shown.save(tmp_path / "it.png")


# -- shapes -----------------------------------------------------------------------------------------------------------

def test_a_box_has_its_label_in_the_middle_in_ink_that_can_be_read():
    found = parsed(svg.box(10, 20, 80, 30, "a<b", "forward"), svg.box(0, 0, 5, 5), svg.box(0, 0, 9, 9, "x", "idle"))
    first, empty, idle = found["rect"]
    assert numbers_of(first, "x", "y", "width", "height") == [10, 20, 80, 30] and first.get("class") == "forward"
    label, second = found["text"]                                        # none for the box without a label
    assert label.text == "a<b" and label.get("class") == "on-forward" and second.get("class") == "ink"
    assert label.get("x") == "50" and label.get("text-anchor") == "middle"
    assert svg.ink_on("ink") == "paper"


def test_words_under_the_mouse():
    assert [t.text for t in parsed(svg.box(0, 0, 9, 9, hint="why & how"))["title"]] == ["why & how"]


@pytest.mark.parametrize("end", [(100, 50), (0, 50), (50, 100), (50, 0), (90, 80)])
@pytest.mark.parametrize("bend", [0, 12])
def test_an_arrow_ends_where_it_should_and_its_head_points_there(end, bend):
    found = parsed(svg.arrow(50, 50, *end, bend=bend))
    head = [tuple(map(float, corner.split(","))) for corner in found["polygon"][0].get("points").split()]
    assert head[0] == end
    length = math.hypot(end[0] - 50, end[1] - 50)
    back = [math.hypot(x - 50, y - 50) for x, y in head[1:]]
    assert all(far < length for far in back)                             # the corners behind the tip are on our side
    start = found["path"][0].get("d").split()[0]
    assert start == "M50,50"


def test_the_words_of_an_arrow_stand_beside_it_on_the_side_asked_for():
    places = {}
    for side in (1, -1):
        label, = parsed(svg.arrow(0, 100, 200, 100, "chunk 3", side=side))["text"]
        places[side] = float(label.get("y"))
    assert places[1] < 100 < places[-1]                                  # left of an arrow to the right is above it


def test_cells_stand_in_a_row_each_in_its_kind():
    found = parsed(svg.cells(10, 20, ["1", "2", "3"], ["soft", "forward", "weight"], width=40, gap=2))
    assert [float(r.get("x")) for r in found["rect"]] == [10, 52, 94]
    assert [r.get("class") for r in found["rect"]] == ["soft", "forward", "weight"]
    assert [t.text for t in found["text"]] == ["1", "2", "3"]
    with pytest.raises(ValueError):
        svg.cells(0, 0, ["1", "2"], ["soft"])


def test_bars_are_as_long_as_their_values_and_say_them():
    rows = [("ring", 150, "150 floats", "forward"), ("tree", 300, "300 floats", "purple"), ("none", 0, "0", "idle")]
    found = parsed(svg.bars(0, 0, rows, width=200, labels=50))
    assert [float(r.get("width")) for r in found["rect"]] == [100, 200, 1]           # nothing is a hair, not invisible
    assert [t.text for t in found["text"]] == ["ring", "150 floats", "tree", "300 floats", "none", "0"]
    assert float(parsed(svg.bars(0, 0, rows[:1], width=200, longest=300))["rect"][0].get("width")) == 100
    assert svg.bars(0, 0, [], width=200) == "" and parsed(svg.bars(0, 0, rows[2:], width=200))["rect"]


def test_a_legend_has_words_for_every_colour():
    found = parsed(svg.legend(10, 20, [("forward", "sent"), ("weight", "done")]))
    assert [(r.get("class"), t.text) for r, t in zip(found["rect"], found["text"])] == [
        ("forward", "sent"), ("weight", "done")]
    x = [float(r.get("x")) for r in found["rect"]]
    assert x[1] > x[0] + svg.width_of("sent", 12)


def test_shapes_move_in_a_group_and_lines_have_dashes():
    shapes = svg.disc(0, 0, 5, "2", "weight"), svg.line([(0, 0), (1.5, 2)], "ink", dash="4 3")
    found = parsed(svg.group(*shapes, x=7, y=9))
    assert found["g"][0].get("transform") == "translate(7,9)" and found["circle"][0].get("class") == "weight"
    assert found["polyline"][0].get("points") == "0,0 1.5,2"
    assert found["polyline"][0].get("stroke-dasharray") == "4 3"


@pytest.mark.parametrize("shape", [svg.box, svg.line, svg.disc, svg.arrow])
def test_a_colour_without_a_meaning_is_refused(shape):
    arguments = {svg.box: (0, 0, 1, 1), svg.line: ([(0, 0)],), svg.disc: (0, 0, 1), svg.arrow: (0, 0, 1, 1)}[shape]
    with pytest.raises(ValueError, match="kind='red'"):
        shape(*arguments, kind="red")


# -- axes -------------------------------------------------------------------------------------------------------------

def test_points_are_where_they_belong():
    axes = Axes(100, 10, 200, 100, (0, 10), (0, 50))
    assert axes.place(0, 0) == (100, 110) and axes.place(10, 50) == (300, 10) and axes.place(5, 25) == (200, 60)
    assert axes.place(20, -5) == (300, 110)                              # held inside the frame
    log = Axes(100, 10, 200, 100, (1, 1e4), (1e-6, 1), log="xy")
    assert log.place(100, 1e-3) == pytest.approx((200, 60))


def test_round_numbers_on_the_axes():
    assert numbers((1e2, 1e5), log=True) == [1e2, 1e3, 1e4, 1e5]
    assert len(numbers((1e-6, 1e12), log=True)) <= 8
    assert numbers((0, 10), log=False) == [*map(float, range(10)), 10]
    assert numbers((20, 30), log=False)[0] == 20 and numbers((20, 30), log=False)[-1] == 30
    assert share(10, (1, 100), log=True) == pytest.approx(0.5)


def test_a_frame_has_its_numbers_and_labels_and_a_curve_its_name_and_dashes():
    axes = Axes(60, 20, 200, 100, (1, 100), (0, 2), "bytes", "seconds", log="x", write={"x": "{:.0f} B".format})
    words = [t.text for t in parsed(axes.frame())["text"]]
    assert words[:3] == ["1 B", "10 B", "100 B"] and words[-2:] == ["bytes", "seconds"] and "0.2" in words
    drawn = {kind: parsed(axes.curve([(1, 0), (10, 1), (100, 2)], kind, kind)) for kind in
             ("forward", "backward", "weight", "purple")}
    assert [d["text"][0].text for d in drawn.values()] == list(drawn)
    assert len({d["polyline"][0].get("stroke-dasharray") for d in drawn.values()}) == 4
    assert drawn["forward"]["polyline"][0].get("points") == "60,120 160,70 260,20"


@pytest.mark.parametrize("side", ["above", "below", "above-left", "below-right"])
def test_the_name_of_a_point_stays_inside_the_frame(side):
    axes = Axes(60, 20, 300, 100, (0, 1), (0, 1))
    for x in (0, 0.5, 1):
        label, = parsed(axes.point(x, 0.5, "a long name", side=side))["text"]
        half = svg.width_of("a long name", 12) / 2
        assert 60 <= float(label.get("x")) - half and float(label.get("x")) + half <= 360
        assert (float(label.get("y")) < 70) == ("above" in side)


@pytest.mark.parametrize("across, log", [((1, 1), ""), ((2, 1), ""), ((0, 1), "x"), ((math.nan, 1), "")])
def test_axes_that_cannot_be_are_refused(across, log):
    with pytest.raises(ValueError, match="across=.*must grow"):
        Axes(0, 0, 10, 10, across, (0, 1), log=log)
