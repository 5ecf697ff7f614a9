"""The heat map of the router: what is drawn is what the layer decides on the same sequence."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest

from refimpl.cost import moe as cost
from refimpl.course.widgets import RouterHeatMap
from refimpl.course.widgets.router_heat_map import EXPERTS, TOKENS, draw_routing, routed

FACTORS = [0.5, 1.0, 1.25, 4.0, math.inf]


def kinds(shown):
    found = [e.get("class") for e in ElementTree.fromstring(shown.svg).iter() if e.tag.endswith("}text")]
    return {kind: found.count(f"on-{kind}") for kind in ("forward", "backward")}


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("drop", ["position", "probability"])
def test_no_expert_has_more_than_its_room_and_the_right_ones_stay(k, factor, drop):
    ran = routed(k, 2.0, factor, drop)
    assert ran.choice.shape == ran.kept.shape == (TOKENS, k) and ran.load.sum() == TOKENS * k
    assert ran.room == (None if factor == math.inf else cost.capacity(k, TOKENS, EXPERTS, factor))
    for e in range(EXPERTS):
        chose = np.argwhere(ran.choice == e)
        taken = np.array([ran.kept[t, j] for t, j in chose], bool)
        room = TOKENS if ran.room is None else ran.room
        assert len(chose) == ran.load[e] and taken.sum() == min(len(chose), room)
        if 0 < taken.sum() < len(chose):
            urgent = [-t if drop == "position" else ran.weights[t, j] for t, j in chose]
            assert min(u for u, stays in zip(urgent, taken) if stays) >= max(
                u for u, stays in zip(urgent, taken) if not stays)


@pytest.mark.parametrize("factor", FACTORS)
def test_each_choice_is_drawn_taken_or_dropped(factor):
    ran = routed(2, 2.0, factor)
    dropped = int((~ran.kept).sum())
    shown = draw_routing(2, 2.0, factor)
    assert kinds(shown) == {"forward": 2 * TOKENS - dropped, "backward": dropped}
    assert shown.title == f"48 choices, {dropped} dropped: {dropped / 48:.0%}"


def test_favourites_raise_the_auxiliary_loss():
    losses = [routed(2, skew, math.inf).balance for skew in (0.0, 1.0, 2.0, 3.0)]
    assert losses == sorted(losses) and 1 < losses[0] < 1.3 and losses[-1] > 1.5


def test_the_bias_evens_the_load_out_and_changes_no_probability():
    before, after = routed(2, 2.0, math.inf), routed(2, 2.0, math.inf, steps=60)
    assert np.array_equal(before.p, after.p)
    assert before.load.max() >= 16 and after.load.max() <= 8 and after.load.min() >= 4
    rows = np.arange(TOKENS)[:, None]
    assert np.array_equal(after.weights, after.p[rows, after.choice])              # without the bias


def test_words_name_the_loads_and_who_drops():
    shown = draw_routing()
    assert "expert 0 has 13. An expert takes 8. Auxiliary loss 1.30 a token." in shown.words
    assert "Loads of experts 0 to 7: 13, 7, 11, 6, 0, 4, 7, 0. Dropped: expert 0 5, expert 2 3." in shown.words
    assert "Dropped: none" in draw_routing(factor=math.inf).words


@pytest.mark.parametrize("k, steps", [(0, 0), (9, 0), (2, -1)])
def test_what_no_router_does_is_refused(k, steps):
    with pytest.raises(ValueError, match=f"k={k}, steps={steps}"):
        draw_routing(k, steps=steps)


def test_the_widget_moves():
    explorer = RouterHeatMap()
    explorer.set(k=1, skew=3.0, factor=math.inf, drop="probability", steps=5)
    assert explorer.shown == draw_routing(1, 3.0, math.inf, "probability", 5)
    assert "router-heat-map" in explorer._dom_classes
