"""The memory bar, the planner's map, what if, and the fact check: their numbers are those of cost/, at any setting."""

import re

import pytest

from refimpl.cost.facts import VERDICTS, claims
from refimpl.cost.footprint import footprint
from refimpl.cost.hardware import find as gpu
from refimpl.cost.planner import Question, plan
from refimpl.cost.step import step
from refimpl.course.widgets import FactCheck, MemoryBar, PlannerExplorer, WhatIf, memory_bar, planner_explorer, what_if
from refimpl.course.widgets.cases import CASES, FIRST, training_of
from refimpl.course.widgets.fact_check import draw_claim, score
from refimpl.course.widgets.memory_bar import draw_footprint, gb
from refimpl.course.widgets.planner_explorer import draw_plan, places, planned
from refimpl.course.widgets.what_if import draw_what_if, grouped

each_case = pytest.mark.parametrize("case", CASES)


def texts(picture):
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.svg)


# -- the memory bar ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("settings", [
    {}, {"model": "gpt3-175b", "gpu": "a100-80gb", "dp": 64, "pp": 2, "sequence": 2048, "zero": 1},
    {"model": "mixtral-8x7b", "dp": 8, "tp": 1, "ep": 8, "zero": 3, "sequence": 4096, "grad_dtype": "float32"},
    {"tp": 4, "pp": 16, "recompute": "full", "sequence_parallel": False},
    {"model": "deepseek-v3", "dp": 64, "tp": 1, "pp": 16, "ep": 64, "zero": 1, "sequence": 4096}])
def test_the_memory_bar_says_what_the_footprint_says(settings):
    shown = draw_footprint(**settings)
    options = dict(model="llama3-70b", dp=8, tp=8, pp=1, zero=0, sequence=8192, recompute="selective",
                   sequence_parallel=True) | {name: value for name, value in settings.items() if name != "gpu"}
    card = gpu(settings.get("gpu", "h100-sxm"))
    for zero in range(4):
        total = gb(footprint(memory_bar.training_of(**options | {"zero": zero}), card).total())
        assert total in texts(shown) and total in shown.words
    held = footprint(memory_bar.training_of(**options), card)
    assert all(f"{kind} {gb(held.kinds(held.worst)[kind])}" in shown.words for kind in memory_bar.COLOURS)
    assert ("more than" in shown.title) == (held.total() > card.memory)
    assert f"{card.name} has {gb(card.memory)}" in " ".join(texts(shown))


def test_the_fullest_rank_is_not_always_the_first():
    """DeepSeek-V3's first layers have no experts."""
    held = footprint(memory_bar.training_of("deepseek-v3", dp=64, pp=16, ep=64, sequence=4096), gpu("h100-sxm"))
    shown = draw_footprint("deepseek-v3", dp=64, tp=1, pp=16, ep=64, sequence=4096, recompute="none")
    assert held.worst == 1 and "The fullest GPU, rank 1, in numbers" in texts(shown)


def test_the_bars_are_as_long_as_their_bytes():
    """Of the stage that was chosen, piece by piece."""
    card = gpu("h100-sxm")
    held = footprint(memory_bar.training_of("llama3-70b", 8, 8, zero=3, sequence=8192, recompute="selective",
                                            sequence_parallel=True), card)
    drawn = memory_bar.bar(0, "ZeRO 3", memory_bar.by_colour(held), 1e-8)
    widths = [float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)"', drawn)]
    assert len(widths) == 5 and abs(sum(widths) - held.total() * 1e-8) < 0.1


def test_the_memory_bar_refuses_what_does_not_divide_and_says_what_does():
    widget = MemoryBar()
    widget.set(model="gpt2-xl", tp=8)
    assert "tp may be 1, 5 or 25" in widget.status.value and not widget.errors.outputs


# -- what if ----------------------------------------------------------------------------------------------------------

@each_case
def test_each_case_begins_as_it_was_and_fits(case):
    known, shown = CASES[case], draw_what_if(case)
    training, card = training_of(known, **known.start), gpu(known.gpu)
    assert shown.title == f"{case}: as it was" and training.layout.world == known.gpus
    assert footprint(training, card).total() <= card.memory
    found = step(training, card)
    assert f"MFU {found.mfu:.1%}" in shown.words and abs(sum(grouped(found).values()) - found.seconds) < 1e-12


def test_published_layouts_are_those_of_their_papers():
    sizes = {name: training_of(case, **case.start).layout for name, case in CASES.items()}
    of = lambda start: next(layout for name, layout in sizes.items() if name.startswith(start))
    layout = of("Llama-3 405B, 8k")
    assert (layout.tp, layout.cp, layout.pp, layout.dp) == (8, 1, 16, 128)
    layout = of("Llama-3 405B, 131k")
    assert (layout.tp, layout.cp, layout.pp, layout.dp) == (8, 16, 16, 8)
    layout = of("DeepSeek")
    assert (layout.tp, layout.pp, layout.ep, layout.dp, layout.size("expert_dp")) == (1, 16, 64, 128, 2)


def test_what_if_answers_with_the_change():
    assert "Slower" in draw_what_if(FIRST, network=0.1).title
    assert "Faster: 1.9" in draw_what_if(FIRST, gpus=2.0).title
    assert "does not fit" in draw_what_if(FIRST, pp=2, chunks=1, zero=0, tp=4).title
    with pytest.raises(ValueError, match="does not divide 1,024 GPUs"):
        draw_what_if(FIRST, pp=12)
    with pytest.raises(ValueError, match="micro-batches of 8 on dp = 1024"):
        draw_what_if(FIRST, tp=1, pp=1, chunks=1, micro_batch=8)


def test_another_case_brings_its_own_layout():
    widget = WhatIf()
    for case in reversed(CASES):
        widget.controls["case"].value = case
        assert widget.shown.title == f"{case}: as it was" and not widget.errors.outputs


# -- the planner's map ------------------------------------------------------------------------------------------------

def test_the_map_shows_the_plan():
    shown, found = draw_plan(), planned(FIRST, 1, 1, "selective", 1, 1.0, 1.0)
    best = found.layouts[0]
    known = CASES[FIRST]
    again = plan(Question(best.training.model, gpu(known.gpu), 1024, 1536, 2048, flash=False, grad_dtype="float32",
                          fixed=(("cp", 1), ("zero", 1), ("recompute", "selective"), ("micro_batch", 1))))
    assert [one.seconds for one in again.layouts] == [one.seconds for one in found.layouts]
    assert f"{best.seconds:.3g} s, {best.bytes / 1e9:.0f} GB" in texts(shown)
    assert what_if.layout_words(best.training) in shown.words
    number, one, slower = places(found)[best.training.layout.tp, best.training.layout.pp]
    assert (number, one, slower) == (1, best, 1.0)


def test_the_classical_rule_takes_the_fewest_stages_that_fit_with_a_full_node():
    found = planned(FIRST, 1, 1, "selective", 1, 1.0, 1.0)
    tp, pp, one = planner_explorer.classical(found, 8)
    fitting = [other.training.layout.pp for other in found.layouts if other.training.layout.tp == 8]
    assert (tp, pp) == (8, min(fitting)) and f"PP {pp} is the first to fit" in draw_plan().words
    assert planner_explorer.classical(planned(FIRST, 1, 0, "none", 8, 1.0, 0.5), 8) is None


def test_where_nothing_fits_the_map_says_so():
    shown = draw_plan("Llama-3 405B, 131k, on 16,384 H100", 1, 0, "none", 8)
    assert "None of" in shown.title and "does not fit here" in shown.words


@each_case
def test_the_planner_explorer_opens_every_case(case):
    widget = PlannerExplorer()
    widget.controls["case"].value = case
    assert case in widget.shown.title and not widget.errors.outputs and "Fastest" in widget.shown.words


# -- the fact check ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("one", claims(), ids=lambda one: one.id)
def test_a_verdict_is_shown_only_after_the_guess(one):
    before = draw_claim(one.id)
    assert one.derivation[:30] not in " ".join(texts(before)) and one.source[:20] not in " ".join(texts(before))
    assert "\u2713" not in before.svg and before.title == f"Claim {one.id}: {one.claim}"
    for guess in VERDICTS:
        after = draw_claim(one.id, guess)
        assert f"is {one.verdict}" in after.title and ("as you said" in after.title) == (guess == one.verdict)
        assert f"{one.verdict} \u2713" in texts(after) and (f"{guess} \u2717" in texts(after)) == (guess != one.verdict)
        assert f"{one.value:,.6g}" in after.words


def test_the_first_guess_counts_and_comes_back_with_its_claim():
    widget = FactCheck("a")
    widget.controls["guess"].value = "right"
    assert "you said right" in widget.shown.title
    widget.controls["guess"].value = "wrong"                       # too late
    assert "you said right" in widget.shown.title and widget.guesses == {"a": "right"}
    widget.controls["claim"].value = "b"
    assert widget.controls["guess"].value is None and "is wrong" not in widget.shown.title
    widget.controls["guess"].value = "wrong"
    widget.controls["claim"].value = "a"
    assert widget.controls["guess"].value == "right" and "you said right" in widget.shown.title
    assert score(widget.guesses) == "1 of 2 guessed right, 26 to go" and not widget.errors.outputs
