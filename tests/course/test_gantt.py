"""The Gantt chart: every action in its place, readable without colour, drawn quickly, written whole or not at all."""

import os
import re
import time
from xml.etree import ElementTree

import pytest
from pipelines import every_schedule

from refimpl.course.plots import gantt
from refimpl.pipeline import build, simulate

SVG = "{http://www.w3.org/2000/svg}"


def picture(timeline, **options):
    """The chart, read as XML."""
    return ElementTree.fromstring(gantt.svg(timeline, **options))


def boxes(root):
    """{what the title says: (colour, x, y, width, height)} of every action's box."""
    found = {}
    for lane in root.findall(f"{SVG}g"):
        for group in lane.findall(f"{SVG}g"):
            for rect in group.findall(f"{SVG}rect"):
                title = rect.find(f"{SVG}title").text
                if not title.startswith("idle"):
                    place = (float(rect.get(key, 0)) for key in ("x", "y", "width", "height"))
                    found.setdefault(title, []).append((group.get("fill"), *place))
    return found


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "interleaved", "dualpipev"])
def test_every_action_is_a_box_from_its_start_to_its_end(name):
    t = simulate(build(name, 4, 8), hop=0.25)
    found = boxes(picture(t))
    width = float(picture(t).get("width"))
    scale = (width - gantt.LEFT - 16) / t.makespan
    assert len(found) == sum(map(len, t.schedule.ranks))
    for row, starts, ends in zip(t.schedule.ranks, t.starts, t.ends):
        for action, start, end in zip(row, starts, ends):
            for _, x, _, w, _ in found[f"{action}: {start:g} to {end:g}"]:
                assert abs(x - start * scale) < 0.1 and abs(x + w - end * scale) < 0.7


def test_kinds_differ_in_colour_shape_and_label():
    t = simulate(build("zb_h1", 2, 3))
    root = picture(t)
    looks = {kind: {(colour, y, height) for title, found in boxes(root).items() for colour, _, y, _, height in found
                    if title[1] == kind} for kind in "FIW"}
    assert looks == {"F": {("#0072B2", 0, 16)}, "I": {("#D55E00", 0, 24)}, "W": {("#009E73", 8, 16)}}
    assert gantt.COLOURS["F"] == "#0072B2" and gantt.COLOURS["B"] == gantt.COLOURS["I"] == "#D55E00"
    assert gantt.COLOURS["W"] == "#009E73" and len({gantt.SHAPE[kind] for kind in "FBW"}) == 3
    assert {str(action) for row in t.schedule.ranks for action in row} <= set(texts(root))
    legend = {"F forward", "B backward (I: input gradient)", "W weight gradient", "idle"}
    assert legend | {"rank 0", "rank 1"} <= set(texts(root))


def contrast(one, other):
    """WCAG 2 contrast of two colours: 1 to 21."""
    def luminance(colour):
        channels = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("kind", list("FBIW"))
def test_labels_can_be_read_on_their_boxes(kind):
    assert contrast(gantt.COLOURS[kind], gantt.INK[kind]) >= 4.5


def test_where_names_do_not_fit_letters_do_and_where_they_do_not_shapes_are_left():
    t = simulate(build("1f1b", 8, 64))
    assert texts(picture(t)).count("F") == 8 * 64 and "0F0" not in texts(picture(t))
    assert texts(picture(t, width=600)).count("F") == 0
    assert "0F0" in texts(picture(t, width=9000))
    assert float(picture(t).get("width")) == gantt.WIDEST


def test_the_text_alternative_says_what_the_picture_shows():
    t = simulate(build("1f1b", 4, 8))
    root = picture(t, title="Four <ranks> & more")
    words = gantt.describe(t)
    assert root.get("role") == "img" and root.find(f"{SVG}desc").text == words
    assert root.find(f"{SVG}title").text == "Four <ranks> & more"
    assert root.get("aria-label") == f"Four <ranks> & more. {words}"
    assert "4 ranks, 8 micro-batches. A step takes 33, of which 27.3% is bubble (37.5% of the ideal time" in words
    assert "Rank 3 works 24 between 3 and 27, and keeps 1 activations at most." in words
    assert "takes 33, of which 27.3% is bubble" in picture(t).find(f"{SVG}title").text


def test_a_wait_says_in_its_title_what_for():
    titles = [element.text for element in picture(simulate(build("1f1b", 4, 8))).iter(f"{SVG}title")]
    assert "idle 4 to 10: 0B0 waits for 1B0 of rank 1" in titles


def test_a_pair_is_two_boxes_one_above_the_other():
    found = boxes(picture(simulate(build("dualpipev", 2, 4))))
    title = next(title for title in found if title.startswith("("))
    (one, x1, y1, w1, h1), (two, x2, y2, w2, h2) = found[title]
    assert {one, two} == {"#0072B2", "#D55E00"} and (x1, w1) == (x2, w2) and abs(y1 - y2) == h1 == h2 == 12


@pytest.mark.parametrize("last", [0, 0.003, 1, 7.5, 33, 213, 99999])
def test_the_axis_has_a_dozen_round_times_and_the_last(last):
    found = gantt.ticks(last)
    assert found[0] == 0 and found[-1] == last and len(found) <= 13 and found == sorted(set(found))


def test_every_schedule_can_be_drawn_both_ways_and_described():
    for schedule in every_schedule([1, 3], [1, 7]):
        for times in ((1, 1, 1), (0, 0, 0), (1, 0.001, 0)):
            t = simulate(schedule, *times)
            picture(t)
            lines = gantt.terminal(t, 80).splitlines()
            assert max(map(len, lines)) <= 80 and len(lines) == schedule.stages + 1


def test_a_usual_chart_takes_less_than_10_ms():
    t, seconds = simulate(build("1f1b", 8, 64)), []
    for _ in range(10):
        t.__dict__.pop("idle", None)                                # what a timeline remembers is part of the work
        t.schedule.__dict__.pop("where", None)
        begin = time.perf_counter()
        gantt.svg(t)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.010


# -- in a terminal ----------------------------------------------------------------------------------------------------

def test_the_chart_in_letters():
    assert gantt.terminal(simulate(build("1f1b", 2, 3))) == "\n".join([
        "rank 0 |F0F1....B0--F2B1--..B2--|",
        "rank 1 |..F0B0--F1B1--F2B2--....|",
        "        0                     12"])
    assert gantt.terminal(simulate(build("zb_h1", 2, 2), hop=0.5)) == "\n".join([
        "rank 0 |F0F1....I0W0I1W1|",
        "rank 1 |...F0I0F1I1W0W1.|",
        "        0              8"])
    assert gantt.terminal(simulate(build("interleaved", 2, 2))).splitlines()[0] == (
        "rank 0 |0F0-0F1-2F0-2F1-........2B0-----....2B1-----0B0-----0B1-----|")
    assert "|FFFFIWFFB-.FB-B2.FB-B3IWIW|" in gantt.terminal(simulate(build("dualpipev", 2, 4)), 36)


def test_where_there_is_no_room_for_names_there_are_letters_and_then_the_middle_is_left_out():
    t = simulate(build("1f1b", 4, 8))
    assert gantt.terminal(t, 42).splitlines()[0] == "rank 0 |FFFF......B0FB1FB2FB3FB4.B5.B6.B7|"
    assert gantt.terminal(t, 30) == "\n".join([
        "rank 0 |FFFF......~B.B5.B6.B7|",
        "rank 1 |.FFF....B0~B5.B6.B7..|",
        "rank 2 |..FF..B0FB~FB6.B7....|",
        "rank 3 |...FB0FB1F~BFB7......|",
        "        0                  33"])


def test_an_uneven_stage_does_not_stretch_the_chart_for_ever():
    t = simulate(build("zb_h1", 2, 4), weight=1e-6)
    assert len(gantt.terminal(t, 1000).splitlines()[0]) < 300


def test_colours_are_added_to_the_same_letters():
    t = simulate(build("zb_h1", 3, 5))
    coloured = gantt.terminal(t, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == gantt.terminal(t)
    assert len(set(re.findall(r"\x1b\[[1-9][0-9;]*m", coloured))) == 3


# -- as a file --------------------------------------------------------------------------------------------------------

def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "chart.svg"
    gantt.save_svg(path, gantt.svg(simulate(build("1f1b", 2, 2))))
    old = path.read_text()
    ElementTree.fromstring(old)

    def no_rename(*_):
        raise OSError("No space left on device")

    with monkeypatch.context() as broken, pytest.raises(OSError, match="No space"):
        broken.setattr(os, "replace", no_rename)
        gantt.save_svg(path, "<svg/>")
    assert path.read_text() == old and [p.name for p in tmp_path.iterdir()] == ["chart.svg"]


@pytest.mark.parametrize("name, says", [
    ("chart.png", "the name must end in .svg; .*chart.svg works"), ("missing/a.svg", "there is no folder .*missing"),
    ("folder.svg", "cannot be written there"), ("", "the name must end in .svg; chart.svg works")])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.svg").mkdir()
    for refuses in (gantt.check_svg_file, lambda path: gantt.save_svg(path, "<svg/>")):
        with pytest.raises(ValueError, match=f"--svg .*{says}"):
            refuses(name)
