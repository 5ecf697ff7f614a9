"""The layout explorer: ep adds no GPU, and what a GPU shows is what layout.py says."""

import re

import pytest

from refimpl.course.widgets import ExpertLayout
from refimpl.course.widgets.expert_layout import CUT, EXPERTS, MOST, PRESETS, SIZES, WHOLE, draw_experts, layout_of


def gpus(shown):
    """{rank: its experts, as shown}"""
    labels = re.findall(r">GPU (\d+)</text><text[^>]*>e([^<]*)<", shown.svg)
    assert len(labels) == len(dict(labels))
    return {int(rank): words for rank, words in labels}


@pytest.mark.parametrize("tp", SIZES)
@pytest.mark.parametrize("ep", SIZES)
def test_ep_adds_no_gpu(tp, ep):
    for cut in (CUT, WHOLE):
        shown = draw_experts(dp=8, tp=tp, ep=ep, cut=cut)
        assert len(gpus(shown)) == 8 * tp and f"= {8 * tp} GPUs; ep {ep} adds none" in shown.title


@pytest.mark.parametrize("begin", PRESETS.values(), ids=PRESETS)
def test_an_ep_group_has_every_expert_once(begin):
    shown, layout = gpus(draw_experts(**begin)), layout_of(**{k: v for k, v in begin.items() if k != "rank"})
    for group in layout.groups("ep"):
        found = []
        for rank in group:
            first, _, last = shown[rank].partition(",")[0].partition("-")
            found += range(int(first), int(last or first) + 1)
        assert found == list(range(EXPERTS))
    for name in ("expert_dp", "expert_tp"):
        for group in layout.groups(name):
            assert len({shown[rank].partition(",")[0] for rank in group}) == 1
            assert len({shown[rank] for rank in group}) == (1 if name == "expert_dp" else len(group))


def test_whole_experts_keep_tokens_inside_the_node():
    cut, whole = (draw_experts(**PRESETS[f"tp fills the node, experts {how}"]) for how in ("cut", "whole"))
    assert "tokens cross the slow links" in cut.words and "ep group is [0, 8, 16, 24]" in cut.words
    assert "tokens stay on its fast links" in whole.words and "ep group is [0, 1, 2, 3, 4, 5, 6, 7]" in whole.words
    assert "the weights of 0.5 whole ones" in cut.words and "the weights of 2 whole ones" in whole.words


@pytest.mark.parametrize("sizes, says", [
    ({"dp": 2, "ep": 4}, "ep=4 does not divide cp x dp = 2"), ({"dp": 8, "tp": 8, "pp": 2}, "128 GPUs"),
    ({"dp": 8, "tp": 8, "ep": 32, "cut": WHOLE}, "ep=32 does not divide 16 experts")])
def test_what_cannot_be_is_said(sizes, says):
    with pytest.raises(ValueError, match=says):
        draw_experts(**{"ep": 1} | sizes)


def test_the_widget_says_so_and_goes_on():
    explorer = ExpertLayout()
    explorer.set(dp=2)
    assert "ep=8 does not divide" in explorer.status.value and not explorer.errors.outputs
    explorer.set(ep=2, rank=1)
    assert explorer.shown == draw_experts(dp=2, ep=2, rank=1) and explorer.controls["rank"].max == 1
    explorer.set(dp=8, cp=8, tp=8)
    assert f"at most {MOST}" in explorer.status.value
