"""`traffic`: what it prints, as text and as JSON, and what it refuses."""

import json

import pytest

from refimpl import __main__
from refimpl.cost.hardware import find as gpu
from refimpl.cost.models import find
from refimpl.cost.seat import Seat
from refimpl.cost.step_traffic import rows
from refimpl.cost.training import Training
from refimpl.layout import Layout

GPT3 = ["--model", "gpt3-175b", "--gpu", "a100-80gb", "--tp", "8", "--pp", "8", "--dp", "16", "--global-batch", "1536"]


def say(capsys, *options, status=0):
    """What the command prints: on stdout, or on stderr when it is refused."""
    try:
        assert __main__.main(["traffic", *options]) == status
    except SystemExit as leaving:                          # argparse leaves by itself
        assert leaving.code == status
    shown = capsys.readouterr()
    assert (shown.err if status == 0 else shown.out) == ""
    return shown.out if status == 0 else shown.err


def test_the_rows_are_those_of_the_formula(capsys):
    report = json.loads(say(capsys, *GPT3, "--rank", "130", "--json"))
    training = Training(find("gpt3-175b"), Layout(tp=8, pp=8, dp=16), microbatches=96)
    found = rows(Seat(training, 130), gpu=gpu("a100-80gb"))
    assert [(row["dimension"], row["phase"], row["messages"], row["bytes"], row["link"]) for row in report["rows"]] == [
        (row.dimension, row.phase, row.messages, row.bytes, row.link) for row in found]
    assert report["total_bytes"] == sum(row.bytes for row in found) == sum(report["bytes"].values())
    assert report["place"] == {"tp": 2, "cp": 0, "dp": 0, "pp": 1}


def test_tensor_parallel_traffic_of_gpt3_is_the_papers(capsys):
    """8 b s h (t-1)/t elements a layer and micro-batch (Narayanan et al. 2021, section 3.2), of an inner stage."""
    report = json.loads(say(capsys, *GPT3, "--rank", "256", "--json"))
    sent = {(row["dimension"], row["phase"]): row for row in report["rows"]}
    both = sent["tp", "forward"]["bytes"] + sent["tp", "backward"]["bytes"]
    assert both == 96 * 12 * 8 * 2048 * 12288 * 7 // 8 * 2 and sent["tp", "forward"]["link"] == "domain"
    assert sent["pp", "pp forward"]["messages"] == 96 and sent["pp", "pp forward"]["link"] == "network"


def test_without_a_rank_the_one_that_sends_most_is_shown(capsys):
    shown = json.loads(say(capsys, *GPT3, "--json"))
    others = [json.loads(say(capsys, *GPT3, "--rank", str(128 * stage), "--json")) for stage in range(8)]
    assert shown["total_bytes"] == max(one["total_bytes"] for one in others)


def test_the_text_has_a_line_a_row_and_explain_a_formula_for_each(capsys):
    report, explained = json.loads(say(capsys, *GPT3, "--json")), say(capsys, *GPT3, "--explain")
    plain = say(capsys, *GPT3)
    assert len(explained.splitlines()) == len(plain.splitlines()) + len(report["rows"])
    assert all(f"{row['bytes']:,}" in plain for row in report["rows"]) and "agreement" in plain


@pytest.mark.parametrize("options", [
    ["--model", "mixtral-8x7b", "--dp", "8", "--ep", "8"],
    ["--model", "deepseek-v3", "--pp", "2", "--dp", "4", "--ep", "4"],
    ["--model", "llama3-8b", "--tp", "16", "--cp", "2", "--sp", "--zero", "3"],
    ["--model", "llama3-8b", "--cp", "4", "--cp-kind", "hybrid", "--ulysses", "2"],
    ["--model", "gpt2-small", "--pp", "2", "--dp", "2", "--zero", "2"]])
def test_every_dimension_can_be_explained(capsys, options):
    assert say(capsys, *options, "--explain").count("GB in all") == 1
    words = say(capsys, *options)
    assert ("same load" in words) == ("--ep" in options)


def test_one_rank_sends_nothing(capsys):
    assert "nothing: one rank alone" in say(capsys, "--model", "gpt2-small")


@pytest.mark.parametrize(("options", "words"), [
    ([*GPT3, "--rank", "1024"], "expected 0 to 1023"),
    ([*GPT3, "--rank", "-1"], "expected 0 or more"),
    (["--model", "gpt3-175"], "nearest gpt3-175b"),
    ([*GPT3, "--gpus", "512"], "--gpus 512"),
    ([*GPT3, "--tp", "7"], "tp=7 does not divide heads=96"),
    ([*GPT3, "--global-batch", "1537"], "1536 or 1552"),
])
def test_bad_input_is_one_line_that_says_what_works(capsys, options, words):
    err = say(capsys, *options, status=2)
    assert words in err and err.strip().count("\n") <= (1 if "usage" in err else 0)
