"""`memory`: what it prints, as text and as JSON, what it refuses, and that it is quick."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refimpl import __main__
from refimpl.cost.footprint import KINDS, footprint
from refimpl.cost.hardware import find as gpu
from refimpl.cost.models import find
from refimpl.cost.training import Training
from refimpl.layout import Layout

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ["--model", "llama3-70b", "--dp", "8", "--tp", "8", "--zero", "1", "--seq", "8192", "--micro-batch", "1",
         "--recompute", "selective"]
A30 = ["--layers", "80", "--hidden", "8192", "--heads", "64", "--ffn", "24576", "--vocab", "152064"]


def say(capsys, *options, status=0):
    """What the command prints: on stdout, or on stderr when it is refused."""
    try:
        assert __main__.main(["memory", *options]) == status
    except SystemExit as leaving:                          # argparse leaves by itself
        assert leaving.code == status
    shown = capsys.readouterr()
    assert (shown.err if status == 0 else shown.out) == ""
    return shown.out if status == 0 else shown.err


def report(capsys, *options):
    """The object that --json prints: one line of standard JSON."""
    out = say(capsys, *options, "--json")
    assert out.count("\n") == 1
    return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no standard JSON"))


def test_json_has_bytes_by_kind_and_stage_and_the_worst_total(capsys):
    found = report(capsys, "--model", "gpt3-175b", "--tp", "8", "--pp", "8", "--dp", "16", "--global-batch", "1536",
                   "--sp", "--gpu", "a100-80gb")
    run = Training(find("gpt3-175b"), Layout(dp=16, tp=8, pp=8), microbatches=96, sequence_parallel=True)
    expected = footprint(run, gpu("a100-80gb"))
    assert found["memory"] == {kind: [expected.kinds(rank)[kind] for rank in range(8)] for kind in KINDS}
    assert found["stage_bytes"] == [sum(held[rank] for held in found["memory"].values()) for rank in range(8)]
    assert found["total_bytes"] == max(found["stage_bytes"]) == found["stage_bytes"][found["worst_stage"]]
    assert found["parameters"] == found["active_parameters"] == 174_615_846_912 and found["microbatches"] == 96
    assert found["bytes_per_parameter"] == 16 and found["layers"] == [12] * 8 and found["gpus"] == 1024
    assert found["usable_bytes"] == int(gpu("a100").memory) and found["fits"] == (found["total_bytes"] < 85.2e9)
    assert sum(line["bytes"] for line in found["lines"]) == found["total_bytes"]


def test_figure_1_of_the_zero_paper(capsys):
    """7.5e9 parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB."""
    for zero, held in enumerate((120e9, 31.40625e9, 16.640625e9, 1.875e9)):
        found = report(capsys, "--params", "7.5e9", "--dp", "64", "--zero", str(zero))
        assert found["total_bytes"] == held and found["parameters"] == 7_500_000_000
    assert report(capsys, "--params", "70e9", "--tp", "8", "--pp", "4")["total_bytes"] == 16 * 70e9 / 32
    assert report(capsys, "--params", "70e9", "--grad-dtype", "float32")["total_bytes"] == 1260e9


def test_the_usual_call_shows_a_table_in_gb_with_the_convention(capsys):
    out = say(capsys, *LLAMA, "--gpu", "h100")
    assert "llama3-70b: 70.55 billion parameters, on 64 GPUs: dp 8, tp 8, ZeRO 1" in out
    assert "16 bytes a parameter: bfloat16 weights 2, bfloat16 gradients 2, optimizer 12" in out
    table = {line[:16].strip(): line[16:].split() for line in out.splitlines()}
    found = report(capsys, *LLAMA, "--gpu", "h100")
    for kind, (held,) in found["memory"].items():
        assert (table[kind] == [f"{held / 1e9:.3f}", "GB"]) if held else kind not in table
    assert table["total"] == [f"{found['total_bytes'] / 1e9:.3f}", "GB"]
    assert "does not fit h100-sxm, which has 85.52 GB" in out and not found["fits"]
    assert "fits h100-sxm" in say(capsys, *LLAMA, "--gpu", "h100", "--sp", "--recompute", "full")


def test_stages_stand_side_by_side_and_the_worst_is_marked(capsys):
    out = say(capsys, "--model", "llama3-8b", "--pp", "4", "--flash")
    assert "rank 0*    rank 1    rank 2    rank 3" in out and "pipeline ranks; * holds most" in out
    many = say(capsys, "--model", "llama3-405b", "--pp", "63", "--tp", "8")
    assert "rank 0" in many and "rank 62" in many and "rank 30" not in many and max(map(len, many.splitlines())) < 130


def test_explain_shows_the_factors_behind_every_line(capsys):
    out = say(capsys, *LLAMA, "--explain")
    norms = 161 * 8192
    assert f"optimizer: parameters {(70_553_706_496 - norms) // 8 + norms:,} x bytes 12 / 8 ranks" in out
    assert "MLP: hidden: layers held 80 x tokens 8,192 x ffn 3,584 x arrays 3 x bytes 2" in out
    assert "h100-sxm: NVIDIA H100 data sheet" in say(capsys, *LLAMA, "--explain", "--gpu", "h100")
    lines = report(capsys, *LLAMA)["lines"]
    assert all(line["formula"] in out and line["what"] in out for line in lines)


def test_what_was_assumed_is_said(capsys):
    out = say(capsys, "--model", "gpt3", "--pp", "8")
    assert "assumed: 32 micro-batches, 4 a stage, as --global-batch was not given" in out
    assert "assumed: 2048 positions, the model's own, as --seq was not given" in out
    assert report(capsys, "--model", "gpt3", "--pp", "8", "--global-batch", "64", "--seq", "1024",
                  "--gpu", "a100-80gb")["assumed"] == []
    assert "assumed: without what a GPU's context and allocator take: --gpu counts it" in out
    assert "model states alone" in say(capsys, "--params", "7.5e9")


def test_A30_sizes_may_be_given_one_by_one(capsys):
    """EleutherAI/cookbook #36."""
    for more, billions in (([], 56.18), (["--gated"], 72.28)):
        assert abs(report(capsys, *A30, *more)["parameters"] / 1e9 - billions) < 0.006
    grouped = report(capsys, *A30, "--gated", "--kv-heads", "8")["parameters"]
    assert report(capsys, *A30, "--gated")["parameters"] - grouped == 80 * 2 * 8192 * 7 * 1024
    tied = report(capsys, *A30, "--gated", "--tied")["parameters"]
    assert report(capsys, *A30, "--gated")["parameters"] - tied == 152064 * 8192


def test_experts_by_flags(capsys):
    options = ["--layers", "32", "--hidden", "4096", "--heads", "32", "--kv-heads", "8", "--ffn", "14336", "--gated",
               "--vocab", "32000", "--experts", "8", "--top-k", "2"]
    found = report(capsys, *options)
    assert (found["parameters"], found["active_parameters"]) == (46_702_792_704, 12_879_925_248)
    narrow = report(capsys, *options, "--expert-ffn", "512", "--shared-experts", "1")
    assert narrow["parameters"] == 46_702_792_704 - 32 * 3 * 4096 * (8 * 14336 - 9 * 512)


def test_a_size_beside_a_name_changes_it(capsys):
    assert report(capsys, "--model", "gpt2-small", "--layers", "13")["parameters"] == 124_439_808 + 7_087_872
    assert report(capsys, "--model", "gpt2", "--seq", "2048")["parameters"] == 124_439_808 + 1024 * 768
    assert report(capsys, "--model", "gpt2", "--seq", "512")["parameters"] == 124_439_808


def test_a_config_json_is_read_and_what_is_unknown_in_it_is_named(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
        "wormholes": 3}))
    found = report(capsys, "--config", str(tmp_path / "config.json"), "--tp", "8")
    assert found["parameters"] == 8_030_261_248 and found["not_understood"] == ["wormholes"]
    assert "not understood, and left out: wormholes" in say(capsys, "--config", str(tmp_path / "config.json"))


def test_gpus_leave_dp_and_your_own_machine_is_read(capsys, tmp_path):
    (tmp_path / "own.toml").write_text(
        "[mine]\nmemory = 48e9\nmemory_bandwidth = 864e9\npeak = { bfloat16 = 181e12 }\n"
        "fabric = { alpha = 5e-6, bandwidth = 25e9 }\nnetwork = { alpha = 14e-6, bandwidth = 12.5e9 }\n")
    found = report(capsys, "--model", "llama3-8b", "--tp", "2", "--gpus", "16", "--gpu", "mine",
                   "--machines", str(tmp_path / "own.toml"))
    assert (found["layout"]["dp"], found["usable_bytes"], found["gpu"]) == (8, 48_000_000_000, "mine")


@pytest.mark.parametrize("options, says", [
    (["--model", "gpt3-170b"], "there is no model 'gpt3-170b': nearest gpt3-175b"),
    (["--model", "gpt3", "--gpu", "h1000"], "there is no GPU 'h1000': nearest h100"),
    (["--model", "gpt3", "--config", "c.json"], "--model gpt3 --config c.json: give one of the two"),
    (["--config", "nowhere.json"], "nowhere.json: cannot be read"),
    ([], "which model? Give --model NAME, --config FILE, or sizes, of which --layers, --hidden, --heads, --vocab are"),
    (["--layers", "3", "--hidden", "8", "--heads", "2"], "--vocab is missing"),
    (["--params", "7e9", "--model", "gpt3", "--gated"], "--params 7e+09 with --model, --gated: give the model, or"),
    (["--params", "7e9", "--seq", "8", "--sp", "--cp-kind", "ring", "--ulysses", "2", "--chunks", "2", "--schedule",
      "gpipe", "--micro-batch", "2", "--global-batch", "2", "--recompute", "full", "--flash", "--expert-tp", "1"],
     "--params 7e+09 with --seq, --expert-tp, --sp, --cp-kind, --ulysses, --chunks, --schedule, --micro-batch, "
     "--global-batch, --recompute, --flash: give the model, or only its parameters and how they are cut: --dp"),
    (["--params", "7e9", "--dp", "2", "--ep", "2"], "--ep 2 with --params"),
    (["--params", "80GB"], "argument --params: '80GB': expected a number without a unit, such as 8e+10"),
    (["--params", "70B"], "such as 7e+10"), (["--params", "0"], "'0': expected a number above 0"),
    (["--params", "-7"], "'-7': expected a number above 0"), (["--params", "nan"], "'nan': expected a number"),
    (["--model", "gpt3", "--seq", "8k"], "argument --seq: '8k': expected a whole number without a unit, such as 8000"),
    (["--model", "gpt3", "--seq", "2.5"], "'2.5': expected a whole number; nearest 2"),
    (["--model", "gpt3", "--tp", "0"], "argument --tp: '0': expected 1 or more; nearest 1"),
    (["--model", "gpt3", "--dp", "-2"], "argument --dp: '-2': expected 1 or more; nearest 1"),
    (["--model", "gpt3", "--layers", "9" * 20], "expected at most 10000; nearest 10000"),
    (["--model", "gpt3", "--pp", "9" * 20], "expected at most 10000"), (["--model", "gpt3", "--dp", "1e7"], "1000000"),
    (["--model", "gpt3", "--hidden", "9" * 20], "expected at most 100000000"),
    (["--config", "a\nb"], "a b: cannot be read"),
    (["--model", "gpt3", "--experts", "-1"], "'-1': expected 0 or more; nearest 0"),
    (["--model", "gpt3", "--tp", "8", "--gpus", "100"], "dp 1 x tp 8 x pp 1 x cp 1 = 8 ranks on --gpus 100: 96 or"),
    (["--model", "gpt3", "--tp", "8", "--dp", "3", "--gpus", "1024"], "= 24 ranks on --gpus 1024: dp may be 128"),
    (["--model", "gpt3", "--tp", "5"], "tp=5 does not divide heads=96; tp may be 1, 2, 3, 4"),
    (["--model", "gpt3", "--pp", "97"], "layers=96: 97 ranks"), (["--model", "gpt3", "--zero", "4"], "zero=4: "),
    (["--params", "7e9", "--zero", "4"], "zero=4: expected"), (["--params", "7e9", "--dtype", "bf16"], "dtype='bf16'"),
    (["--model", "mixtral", "--dp", "3", "--ep", "3"], "ep=3 does not divide experts=8"),
    (["--model", "gpt3", "--dp", "2", "--global-batch", "7"], "on dp=2 ranks; 6 or 8 sequences work"),
    (["--model", "gpt3", "--dp", "8", "--global-batch", "7"], "on dp=8 ranks; 8 sequences work"),
    (["--model", "gpt3", "--recompute", "ful"], "recompute='ful': expected one of none, selective, full; nearest 'ful"),
    (["--model", "gpt3", "--schedule", "1f1"], "schedule='1f1': expected one of"),
    (["--model", "gpt3", "--order", "tp-dp"], "order='tp-dp': expected tp, cp, dp and pp"),
    (["--model", "gpt3", "--tp", "8", "--expert-tp", "3"], "expert_tp=3: expected 1 or tp=8"),
    (["--model", "gpt3", "--gpu", "mine", "--machines", "no.toml"], "no.toml: cannot be read as TOML"),
])
def test_what_is_wrong_is_said_in_one_line_with_status_2(capsys, options, says):
    error = say(capsys, *options, status=2)
    assert error.count("\n") == 1 and error.startswith("error: ") and says in error


def test_it_takes_at_most_a_fifth_of_a_second_above_importing_numpy():
    """In seconds of the processor, the least of several, as the machine may be busy with something else."""
    def seconds(*words):
        before = os.times()
        subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True, timeout=60)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    pairs = [(seconds("-m", "refimpl", "memory", *LLAMA), seconds("-c", "import numpy")) for _ in range(3)]
    assert min(memory for memory, _ in pairs) - min(numpy for _, numpy in pairs) < 0.2


def test_it_needs_no_arrays():
    code = ("import sys; from refimpl import __main__; __main__.main(['memory', '--params', '7e9']); "
            "print([name for name in sys.modules if name.startswith('refimpl.model') or name == 'mpi4py'])")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr
