"""Lessons 03, 11 and 13 say nothing about themselves that is not so: the numbers in their text."""

import json

from refimpl import Layout
from refimpl.cost import traffic
from refimpl.cost.facts import claims
from refimpl.cost.footprint import footprint
from refimpl.cost.hardware import find as gpu
from refimpl.cost.models import find
from refimpl.cost.planner import Question, plan
from refimpl.cost.states import States
from refimpl.cost.step import step
from refimpl.cost.training import Training
from refimpl.course.widgets import stills
from refimpl.course.widgets.cases import CASES, training_of
from refimpl.course.widgets.planner_explorer import draw_plan

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
    kinds = footprint(states).kinds(0)
    assert "are 176 GB without ZeRO, on a GPU of 85" in prose
    assert round(sum(kinds[kind] for kind in ("weights", "gradients", "optimizer")) / 1e9) == 176
    assert int(gpu("a100-80gb").memory / 1e9) == 85
    llama = find("llama2-70b")
    assert "With float32 gradients the states are 78 GB" in prose and round(18 * llama.parameters / 16 / 1e9) == 78
    layer = sum(tensor.units * tensor.each * tensor.copies for tensor in llama.tensors(0))
    assert "two layers of 0.86 billion parameters, each with 2 bytes of weight and 4 of gradient, 10 GB" in prose
    assert round(layer / 1e9, 2) == 0.86 and round(2 * layer * (2 + 4) / 1e9) == 10
    run = Training(llama, Layout(dp=16), zero=3, recompute="full", flash=True, grad_dtype="float32")
    rest = footprint(run, gpu("h100")).total() - 18 * llama.parameters / 16
    assert "Half of that is what ZeRO 3 gathers" in prose and 0.5 < 2 * layer * (2 + 4) / rest < 0.53
    kept = [footprint(Training(find("llama3-70b"), Layout(dp=8, tp=8), 8192, recompute="selective", zero=1,
                               sequence_parallel=cut)).kinds(0)["activations"] / 1e9 for cut in (True, False)]
    assert "weights and gradients, 35 GB together, before activations, 22.5" in prose
    assert "by 37.6 GB, where 10.0 were left" in prose
    assert [round(item, 1) for item in (*kept, kept[1] - kept[0])] == [22.5, 60.1, 37.6]


def test_the_numbers_in_the_text_of_lesson_11():
    prose, _ = cells_of("11")
    kinds = footprint(Training(find("gpt3-175b"), Layout(dp=64, tp=8, pp=2), microbatches=24)).kinds(0)
    assert "The states alone are 176 GB on the fullest GPU" in prose
    assert round(sum(kinds[kind] for kind in ("weights", "gradients", "optimizer")) / 1e9) == 176
    assert "Both steps have the same 16.8 million tokens" in prose and round(2048 * 8192 / 1e6, 1) == 16.8
    model = find("deepseek-v3")
    assert "671 billion parameters, of which a token uses 37" in prose
    assert (int(model.parameters / 1e9), int(model.active_parameters / 1e9)) == (671, 37)
    assert "128 and 2. And a step takes three times as long as the real one" in prose
    assert Layout(dp=128, pp=16, ep=64).size("expert_dp") == 2
    assert "with $h$ = 5120" in prose and find("moe-409b").hidden == 5120
    assert "the states are 198 GB" in prose and round(18 / 16 * sum(
        kinds[kind] for kind in ("weights", "gradients", "optimizer")) / 1e9) == 198
    known, found = {name: training_of(case, **case.start) for name, case in CASES.items()}, draw_plan()
    llama, deepseek = (step(known[name], gpu(CASES[name].gpu)) for name in
                       ("Llama-3 405B, 8k, on 16,384 H100", "DeepSeek-V3 on 2048 H800"))
    published = known["DeepSeek-V3 on 2048 H800"].global_batch * 4096 / 14.8e12 * 2.664e6 * 3600 / 2048
    assert 2.9 < deepseek.seconds / published < 3.1
    published = known["Llama-3 405B, 8k, on 16,384 H100"].model.flops(2048, 8192) / 16384 / 400e12
    assert "ours is a third too long, by just what `dp` is" in prose
    assert 0.3 < llama.seconds / published - 1 < 0.37
    assert abs(llama.seconds - llama.breakdown["dp"] - published) < 0.05 * published
    assert "its best takes 18.8 s, the classical rule's layout 16% more" in prose
    assert "18.8 s" in found.words + found.title and "16% behind the fastest" in found.words
    wider = plan(Question(find("gpt3-175b"), gpu("a100-80gb"), 1024, 1536)).layouts[0]
    assert "which brings the best to 16.4 s" in prose and round(wider.seconds, 1) == 16.4
    assert "the rule does worst, 46% behind" in prose
    assert "46% behind the fastest" in draw_plan("409B experts on 1024 H100").words
    full = draw_plan(recompute="full").title
    assert "a fifth of the step" in prose and "takes 22.9 s" in full and 0.2 < 22.9 / 18.8 - 1 < 0.23


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
