"""Lessons 03, 11 and 13 say nothing about themselves that is not so: the numbers in their text."""

import json

from refimpl import Layout
from refimpl.cost import traffic
from refimpl.cost.facts import claims
from refimpl.cost.footprint import footprint
from refimpl.cost.hardware import find as gpu
from refimpl.cost.models import find
from refimpl.cost.states import States
from refimpl.cost.training import Training
from refimpl.course.widgets import stills

NAMES = {"03": "03_memory", "11": "11_choosing_a_layout", "13": "13_fact_check"}


def cells_of(number):
    """(text of all cells of prose, of all cells of code)"""
    cells = json.loads((stills.FOLDER.parent / f"{NAMES[number]}.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == kind)
            for kind in ("markdown", "code")]


def test_the_numbers_in_the_text_of_lesson_03():
    prose, _ = cells_of("03")
    assert "On 8 they are 2.9 and 4.3" in prose
    assert [round(16 / States(zero=stage).per_parameter(8), 1) for stage in (1, 2)] == [2.9, 4.3]
    assert "1.8 billion parameters, 3.6 GB in bfloat16" in prose
    layer = find("gpt3-175b").parts
    parameters = (layer["attention"] + layer["mlp"]) / 96
    assert round(parameters / 1e9, 1) == 1.8 and round(2 * parameters / 1e9, 1) == 3.6
    assert "Nearly four fifths of what all 80 layers keep" in prose
    held = footprint(Training(find("llama3-70b"), recompute="full")).kinds(0)
    assert 0.75 < held["logits"] / held["activations"] < 0.8
    states = Training(find("gpt3-175b"), Layout(dp=64, tp=8, pp=2), microbatches=24)
    kinds = footprint(states).kinds(1)
    assert "the states alone are 175 GB without ZeRO, on a GPU of 85" in prose
    assert round(sum(kinds[kind] for kind in ("weights", "gradients", "optimizer")) / 1e9) in (175, 176)
    assert int(gpu("a100-80gb").memory / 1e9) == 85
    assert "With float32 gradients the states are 79 GB" in prose and round(18 * 70 / 16) == 79


def test_the_numbers_in_the_text_of_lesson_11():
    prose, _ = cells_of("11")
    kinds = footprint(Training(find("gpt3-175b"), Layout(dp=64, tp=8, pp=2), microbatches=24)).kinds(0)
    assert "The states alone are 176 GB on the fullest GPU" in prose
    assert round(sum(kinds[kind] for kind in ("weights", "gradients", "optimizer")) / 1e9) == 176
    assert "Both steps have the same 16.8 million tokens" in prose and round(2048 * 8192 / 1e6, 1) == 16.8
    model = find("deepseek-v3")
    assert "671 billion parameters, of which a token uses 37" in prose
    assert (int(model.parameters / 1e9), int(model.active_parameters / 1e9)) == (671, 37)
    assert "128 and 2. Waiting for" in prose
    assert Layout(dp=128, pp=16, ep=64).size("expert_dp") == 2
    assert "with $h$ = 5120" in prose and find("moe-409b").hidden == 5120


def test_the_numbers_in_the_text_of_lesson_13():
    prose, _ = cells_of("13")
    found = claims()
    assert "28 claims" in prose and len(found) == 28
    letters = [one for one in found if len(one.id) == 1]
    assert "Of the twenty that circulate, a to t, two are right as they stand" in prose
    assert len(letters) == 20 and sum(one.verdict == "right" for one in letters) == 2
    assert "it adds a quarter" in prose
    plain, cut = (sum(traffic.tensor_parallel_block(1, 16, 8, 8, 0, sequence_parallel=sp).values()) for sp in (0, 1))
    assert cut == 1.25 * plain
    assert "on 64 ranks ZeRO 2 saves 7.2 times" in prose and round(16 / States(zero=2).per_parameter(64), 1) == 7.2
