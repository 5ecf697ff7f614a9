"""`step`: what it prints, as text and as JSON, and what it refuses."""

import json

import pytest

from refimpl import __main__
from refimpl.cost.hardware import find as gpu
from refimpl.cost.models import find
from refimpl.cost.step import PARTS, step
from refimpl.cost.training import Training
from refimpl.layout import Layout

GPT3 = ["--model", "gpt3-175b", "--gpu", "a100-80gb", "--tp", "8", "--pp", "8", "--dp", "16", "--global-batch", "1536"]


def say(capsys, *options, status=0):
    """What the command prints: on stdout, or on stderr when it is refused."""
    try:
        assert __main__.main(["step", *options]) == status
    except SystemExit as leaving:                          # argparse leaves by itself
        assert leaving.code == status
    shown = capsys.readouterr()
    assert (shown.err if status == 0 else shown.out) == ""
    return shown.out if status == 0 else shown.err


def test_the_report_is_the_prediction(capsys):
    report = json.loads(say(capsys, *GPT3, "--recompute", "full", "--json"))
    found = step(Training(find("gpt3-175b"), Layout(tp=8, pp=8, dp=16), microbatches=96, recompute="full"),
                 gpu("a100-80gb"))
    assert report["step_time_s"] == found.seconds and report["mfu"] == found.mfu and report["hfu"] == found.hfu
    assert report["model_tflops_per_gpu"] == found.model_tflops and report["breakdown_s"] == found.breakdown
    assert report["parameters"] == find("gpt3-175b").parameters and report["gpus"] == 1024


def test_the_text_has_every_part_and_explain_a_formula_for_each(capsys):
    plain, explained = say(capsys, *GPT3), say(capsys, *GPT3, "--explain")
    assert "gpt3-175b on 1,024 a100-80gb: dp 16, tp 8, pp 8" in plain and "MFU" in plain and "assumed: " in plain
    shown = [line for line in plain.splitlines() if line.endswith("%")]
    assert len(shown) == sum(json.loads(say(capsys, *GPT3, "--json"))["breakdown_s"][part] > 0 for part in PARTS)
    assert explained.count("\n    ") == len(shown) + 1


def test_a_timeline_is_drawn(capsys, tmp_path):
    file = tmp_path / "step.svg"
    say(capsys, "--model", "llama2-7b", "--gpu", "h100", "--pp", "4", "--global-batch", "8", "--timeline", str(file))
    assert file.read_text().startswith("<svg") and "4 ranks, 8 micro-batches" in file.read_text()
    err = say(capsys, *GPT3, "--timeline", str(tmp_path / "step.jpeg"), status=2)
    assert "--timeline" in err and "step.svg works" in err


def test_published_runs_are_compared(capsys):
    text = say(capsys, "--published")
    assert "megatron-22b, full recomputation" in text and "micro-batch 1, 3 chunks" in text
    report = json.loads(say(capsys, "--published", "--json"))
    assert len(report["rows"]) == 11
    assert report["summary"]["Korthikanti 2022"]["median"] < 0.05
    assert report["summary"]["Narayanan 2021"]["median"] < 0.08


@pytest.mark.parametrize(("options", "words"), [
    (["--model", "gpt3-175b"], "--gpu"),
    (["--model", "gpt3-175b", "--gpu", "a1000"], "nearest a100"),
    (["--model", "gpt4", "--gpu", "a100"], "there is no model 'gpt4'"),
    ([*GPT3, "--gpus", "1000"], "1024 ranks on --gpus 1000"),
    ([*GPT3, "--micro-batch", "0"], "expected 1 or more"),
    ([*GPT3, "--micro-batch", "-2"], "expected 1 or more"),
    ([*GPT3, "--seq", "2k"], "without a unit"),
    (["--model", "gpt3-175b", "--gpu", "v100-32gb"], "no peak for dtype 'bfloat16'"),
])
def test_bad_input_is_one_line_that_says_what_works(capsys, options, words):
    err = say(capsys, *options, status=2)
    assert words in err and err.strip().count("\n") <= (1 if "usage" in err else 0)
