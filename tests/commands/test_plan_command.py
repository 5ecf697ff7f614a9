"""`plan`: what it prints, as text and as JSON, and what it refuses."""

import json

import pytest

from refimpl import __main__

GPT3 = ["--model", "gpt3-175b", "--gpu", "a100-80gb", "--gpus", "1024", "--global-batch", "1536", "--seq", "2048"]
SMALL = ["--model", "llama2-7b", "--gpu", "a100", "--gpus", "16", "--global-batch", "32"]


def say(capsys, *options, status=0):
    """What the command prints: on stdout, or on stderr when it is refused."""
    try:
        assert __main__.main(["plan", *options]) == status
    except SystemExit as leaving:                          # argparse leaves by itself
        assert leaving.code == status
    shown = capsys.readouterr()
    assert (shown.err if status != 2 else shown.out) == ""
    return shown.out if status != 2 else shown.err


def test_the_page_has_ranking_rule_changes_batch_and_reasons(capsys):
    page = say(capsys, *GPT3, "--top", "3")
    assert page.count(" GB   dp ") == 3
    for words in ("the classical rule:", "tp 8: as many as a node has", "dp 64 tp 8 pp 2, ZeRO 1", "half the network",
                  "one node more", "batch: 1536 sequences", "refused, ", "assumed: ",
                  "pp 2 without ZeRO does not do: 176 GB"):
        assert words in page


def test_the_report_has_all_refused_and_the_top_of_the_ranked(capsys):
    report = json.loads(say(capsys, *GPT3, "--json", "--top", "5"))
    assert len(report["layouts"]) == 5 and report["fitting"] > 100
    times = [one["step_time_s"] for one in report["layouts"]]
    assert times == sorted(times) and all(one["total_bytes"] <= report["usable_bytes"] for one in report["layouts"])
    (why,) = [one["reason"] for one in report["refused"]
              if (one["dp"], one["tp"], one["pp"], one["cp"], one["zero"]) == (64, 8, 2, 1, 0)]
    assert "176 GB of model states without ZeRO" in why
    assert not any(one["tp_crosses_nodes"] for one in report["layouts"])
    assert report["classical"]["layout"]["zero"] == 1


def test_what_is_fixed_is_not_varied(capsys):
    fixed = ["--tp", "2", "--zero", "1", "--micro-batch", "2", "--recompute", "full"]
    report = json.loads(say(capsys, *SMALL, *fixed, "--json"))
    assert report["layouts"] and all((one["tp"], one["zero"], one["micro_batch"], one["recompute"]) == (2, 1, 2, "full")
                                     for one in report["layouts"])


def test_why_there_is_no_schedule_for_fixed_chunks_or_micro_batches_is_said_of_each_layout(capsys):
    def reasons(*options, status):
        found = json.loads(say(capsys, *SMALL, *options, "--json", status=status))
        return {one["reason"] for one in found["refused"] if one["zero"] is None}

    assert reasons("--chunks", "4", status=0) == {
        "chunks=4 with pp=1: chunks are stages of a pipeline rank, and there is no pipeline",
        "pp 16 x chunks 4 = 64 stages, and the model has 32 layers"}
    assert reasons("--chunks", "9", "--pp", "4", "--dp", "1", status=1) == {
        "pp 4 x chunks 9 = 36 stages, and the model has 32 layers"}
    assert reasons("--chunks", "2", "--pp", "8", "--micro-batch", "2", "--global-batch", "34", "--tp", "2", "--dp", "1",
                   status=1) == {"chunks=2 with pp=8: no rounds of 8 micro-batches, or a few more, add up to 17"}
    assert reasons("--micro-batch", "5", "--dp", "2", "--tp", "4", "--pp", "2", status=1) == {
        "no micro-batch of 5 divides the 16 sequences of a replica"}


def test_experts_are_explained(capsys):
    page = say(capsys, "--model", "moe-409b", "--gpu", "h100", "--gpus", "1024", "--global-batch", "1024", "--tp", "8",
               "--pp", "8", "--ep", "8", "--top", "1")
    assert "ep 8 multiplies nothing: dp 16 x pp 8 x cp 1 x tp 8 = 1024 GPUs" in page
    assert "expert_tp 1: ep group [0, 1, 2, 3, 4, 5, 6, 7], inside one node" in page
    assert "expert_tp 8: ep group [0, 8, 16, 24, 32, 40, 48, 56], across 8 nodes" in page


def test_explain_shows_what_a_step_is_made_of_and_every_refusal(capsys):
    page, report = say(capsys, *SMALL, "--explain"), json.loads(say(capsys, *SMALL, "--json"))
    assert all(one["reason"] in page for one in report["refused"]) and "products" in page


def test_where_nothing_fits_the_reasons_are_shown_and_the_status_is_1(capsys):
    two = ["--model", "gpt3-175b", "--gpu", "a100", "--gpus", "2"]
    page = say(capsys, *two, status=1)
    assert "0 layouts fit" in page and "GB of model states" in page
    assert json.loads(say(capsys, *two, "--json", status=1))["layouts"] == []


@pytest.mark.parametrize(("options", "words"), [
    (["--model", "llama2-7b"], "--gpu and --gpus are missing"),
    ([*SMALL[:4], "--gpus", "0"], "expected 1 or more"),
    ([*SMALL, "--tp", "3"], "tp 3 = 3 ranks do not divide --gpus 16; 15 GPUs work"),
    ([*SMALL, "--tp", "2", "--dp", "2", "--pp", "2", "--cp", "1"], "= 8 ranks do not divide"),
    ([*SMALL, "--order", "tp-dp"], "order='tp-dp'"),
    ([*SMALL, "--dtype", "float23"], "no peak for dtype 'float23'"),
    ([*SMALL, "--grad-dtype", "foo"], "foo"),
    ([*SMALL, "--ep", "2"], "ep"),
    ([*SMALL, "--pp", "1", "--chunks", "4"], "--pp 1 --chunks 4: chunks are stages of a pipeline rank, and there is"),
    ([*SMALL[:3], "--gpus", "16"], "expected one argument"),
    (["--model", "llama7", "--gpu", "a100", "--gpus", "8"], "there is no model 'llama7'"),
])
def test_bad_input_is_one_line_that_says_what_works(capsys, options, words):
    err = say(capsys, *options, status=2)
    assert words in err and err.strip().count("\n") <= (1 if "usage" in err else 0)
