"""The picture of what ranks did: every stretch in its place, told apart by colour and height, in words as well."""

from xml.etree import ElementTree

import pytest

from refimpl.course.plots import activity
from refimpl.train.activity import Stretch

SVG = "{http://www.w3.org/2000/svg}"
RANKS = [[Stretch(1e-3, 2e-3, "compute"), Stretch(2e-3, 2.5e-3, "tp"), Stretch(2.5e-3, 4e-3, "waiting")],
         [Stretch(1e-3, 3e-3, "waiting"), Stretch(3e-3, 3.5e-3, "dp"), Stretch(3.5e-3, 4e-3, "compute")]]


def test_every_stretch_is_a_box_from_its_start_to_its_end_on_its_ranks_lane():
    root = ElementTree.fromstring(activity.svg(RANKS, width=1086))                    # 1000 pixels for 3 ms
    lanes = root.findall(f"{SVG}g")
    assert len(lanes) == 2
    for stretches, lane in zip(RANKS, lanes):
        boxes = lane.findall(f"{SVG}rect")
        assert len(boxes) == len(stretches)
        for (start, end, what), box in zip(stretches, boxes):
            assert float(box.get("x")) == pytest.approx((start - 1e-3) * 1e6 / 3, abs=0.01)
            assert float(box.get("width")) == pytest.approx((end - start) * 1e6 / 3, abs=0.01)
            assert (box.get("fill"), int(box.get("height"))) == activity.LOOK[what]
            assert box.find(f"{SVG}title").text.startswith(what)


def test_kinds_differ_in_colour_and_height_and_only_those_that_occur_are_explained():
    assert len(set(activity.LOOK.values())) == len(activity.LOOK)
    heights = [height for what, (_, height) in activity.LOOK.items() if what != activity.WAITING]
    assert len(set(heights)) == len(heights)
    texts = [element.text for element in ElementTree.fromstring(activity.svg(RANKS)).iter(f"{SVG}text")]
    assert {"compute", "waiting", "tp communication", "dp communication", "rank 0", "rank 1"} <= set(texts)
    assert "pp communication" not in texts and texts[-1] == "3 ms"


def test_the_picture_says_in_words_what_it_shows():
    root = ElementTree.fromstring(activity.svg(RANKS, title="A < B"))
    words = root.find(f"{SVG}desc").text
    assert words == activity.describe(RANKS) and words in root.get("aria-label")
    assert "Rank 0, ms: compute 1, tp 0.5, waiting 1.5." in words and root.find(f"{SVG}title").text == "A < B"


def test_a_step_in_which_no_time_passed_can_be_drawn():
    ElementTree.fromstring(activity.svg([[], []]))
