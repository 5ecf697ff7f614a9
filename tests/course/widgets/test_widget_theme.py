"""The palette: told apart by every kind of eyes, readable on both papers, and carried by every picture."""

import re
from xml.etree import ElementTree

import pytest

from refimpl.course.plots import gantt
from refimpl.course.widgets import theme
from refimpl.course.widgets.svg import picture


def luminance(colour):
    """Relative luminance of "#RRGGBB", as in WCAG 2."""
    channels = [int(colour[k:k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_itself():
    assert contrast("#FFFFFF", "#000000") == pytest.approx(21) and contrast("#777777", "#777777") == 1
    assert contrast("#0072B2", "#FFFFFF") == pytest.approx(5.19, abs=0.01)


@pytest.mark.parametrize("paper", [theme.LIGHT["paper"], theme.DARK["paper"]])
def test_shapes_stand_out_from_both_papers(paper):
    assert {kind: contrast(colour, paper) >= 3 for kind, colour in theme.PALETTE.items()} == dict.fromkeys(
        theme.PALETTE, True)


def test_words_on_shapes_can_be_read():
    assert {kind: contrast(theme.PALETTE[kind], ink) >= 4.5 for kind, ink in theme.ON.items()} == dict.fromkeys(
        theme.PALETTE, True)


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK])
@pytest.mark.parametrize("ink, ground", [("ink", "paper"), ("ink", "soft"), ("ink", "idle"), ("faint", "paper")])
def test_words_on_paper_and_on_neutral_shapes_can_be_read(colours, ink, ground):
    assert contrast(colours[ink], colours[ground]) >= 4.5


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK])
def test_outlines_can_be_seen(colours):
    assert contrast(colours["line"], colours["paper"]) >= 3


def test_the_colours_are_those_of_the_timelines():
    assert [theme.PALETTE[kind] for kind in ("forward", "backward", "weight")] == [gantt.COLOURS[k] for k in "FBW"]
    assert [theme.ON[kind] for kind in ("forward", "backward", "weight")] == [gantt.INK[k] for k in "FBW"]


def test_every_picture_carries_both_themes_and_touches_nothing_else_on_the_page():
    style = ElementTree.fromstring(picture(10, 10, title="t", words="w").svg).find(".//{*}style").text
    assert f"@media (prefers-color-scheme:dark){{svg.rf{{--rf-paper:{theme.DARK['paper']}" in style
    for light, colours in (("true", theme.LIGHT), ("false", theme.DARK)):
        assert (f"body[data-jp-theme-light={light}] svg.rf{{--rf-paper:var(--jp-layout-color0,{colours['paper']})"
                in style)
    selectors = re.findall(r"([^{}]+)\{[^{}]*\}", style.replace("@media (prefers-color-scheme:dark){", ""))
    assert [s for s in selectors if not s.strip("}").split("] ")[-1].startswith("svg.rf")] == []


def test_every_kind_has_a_rule_for_shapes():
    rules = theme.style()
    assert [kind for kind in theme.KINDS if f"svg.rf .{kind}{{" not in rules] == []
    with pytest.raises(ValueError, match="kind='red': must be one of forward, backward, weight"):
        theme.check_kind("red")
