"""What each GPU holds: published tables, the formulas of memory.py, and the mistakes of other calculators not made."""

import csv
import math
from pathlib import Path

import pytest

from refimpl.cost import memory, moe, pipeline
from refimpl.cost.footprint import KINDS, footprint, held_parameters, local, replicas, stage, state_lines, worst_stage
from refimpl.cost.hardware import find as gpu
from refimpl.cost.kept import core_lines, layer_lines
from refimpl.cost.models import change, custom, find
from refimpl.cost.sizes import Model
from refimpl.cost.states import States
from refimpl.cost.training import Training
from refimpl.layout import Layout
from refimpl.pipeline import FAMILIES, build
from refimpl.pipeline.action import parts

DATA = Path(__file__).parent.parent / "data"
GIB, GB = 2**30, 1e9
SMALL = custom(layers=8, hidden=64, heads=8, vocabulary=100, sequence=32, kv_heads=4, ffn=96, gated=True)
SMALL_GPT = custom(layers=8, hidden=64, heads=8, vocabulary=100, sequence=32, tied=True)
MOE = Model("moe", 4, 32, 4, 50, kv_heads=2, ffn=40, gated=True, sequence=16, tied=False, bias=False, norm="rms",
            experts=8, top_k=2, expert_ffn=24, shared_experts=1, dense_layers=1)
ZERO, KORTHIKANTI = (list(csv.DictReader((DATA / f"{name}.csv").open())) for name in ("zero_table1", "korthikanti"))


def kinds(model, rank=0, **options):
    cut = {axis: options.pop(axis) for axis in ("dp", "tp", "pp", "cp", "ep", "expert_tp") if axis in options}
    return footprint(Training(model, Layout(**cut), **options)).kinds(rank)


# Model states.

@pytest.mark.parametrize("row", ZERO, ids=lambda row: row["N_d"])
def test_table_1_of_the_zero_paper(row):
    """To 1 GB, as printed: the paper rounds some cells and cuts others off."""
    for name, psi in (("7.5B", 7.5e9), ("128B", 128e9), ("1T", 1e12)):
        for zero, cut in ((1, "os"), (2, "os+g"), (3, "os+g+p")):
            held = sum(line.bytes for line in state_lines(int(psi), States(zero=zero), int(row["N_d"])))
            assert abs(held / GB - float(row[f"{name}_{cut}"])) <= (1 if psi > 1e10 else 0.06)


@pytest.mark.parametrize(("options", "bytes_", "sharded"), [
    ({"dtype": "float16"}, 16, "4+12 2+14 0+16"), ({"grad_dtype": "float32"}, 18, "6+12 2+16 0+18"),
    ({"grad_dtype": "both"}, 20, "8+12 2+18 0+20"), ({"dtype": "float32"}, 16, "8+8 4+12 0+16"),
    ({"dtype": "float64"}, 32, "16+16 8+24 0+32")])
def test_conventions_of_bytes_a_parameter(options, bytes_, sharded):
    states = States(**options)
    assert states.bytes == bytes_ and states.convention.startswith(f"{bytes_} bytes a parameter")
    for zero, sums in zip((1, 2, 3), sharded.split()):
        whole, cut = map(int, sums.split("+"))
        assert math.isclose(States(**options, zero=zero).per_parameter(64), whole + cut / 64)


def test_model_states_are_those_of_the_formula_in_memory():
    for zero in range(4):
        ours = {line.what: line.bytes for line in state_lines(6400, States(grad_dtype="float32", zero=zero), 64)}
        theirs = memory.model_states([6400], 64, zero, gradient=4)
        assert list(ours.values()) == list(theirs.values())


@pytest.mark.parametrize("row", KORTHIKANTI, ids=lambda row: row["model"])
def test_figure_1_of_korthikanti_et_al(row):
    """GiB to 3 digits: 18 bytes for each weight of the layers' matrices, and activations under five settings."""
    model = find("megatron-22b" if row["model"] == "22B" else "gpt3-175b")
    cut, b, v = Layout(tp=int(row["tp"]), pp=int(row["pp"])), int(row["micro_batch"]), int(row["v"])
    settings = {"act_none_GiB": {}, "act_tp_sp_GiB": {"sequence_parallel": True},
                "act_sel_GiB": {"recompute": "selective"}, "act_full_GiB": {"recompute": "full"},
                "act_tp_sp_sel_GiB": {"recompute": "selective", "sequence_parallel": True}}
    for column, options in settings.items():
        run = Training(model, cut, micro_batch=b, microbatches=64, grad_dtype="float32", **options,
                       **({"schedule": "interleaved", "chunks": v} if v > 1 else {}))
        assert abs(footprint(run).kinds(0)["activations"] / GIB - float(row[column])) < 0.0006
    matrices = sum(local(t, run) for layer in run.layers_of(0) for t in model.tensors(layer) if t.name.startswith("w"))
    assert matrices * run.states.bytes / GIB == float(row["paramsopt_GiB"])


@pytest.mark.parametrize(("model", "pp"), [
    (SMALL, 1), (SMALL, 4), (SMALL_GPT, 1), (MOE, 1), (MOE, 4), (find("deepseek-v3"), 16), (find("llama3-405b"), 16)])
def test_the_stages_together_hold_the_model_once(model, pp):
    run = Training(model, Layout(pp=pp))
    assert sum(sum(held_parameters(run, rank).values()) for rank in range(pp)) == model.parameters


def test_a_tied_table_is_held_twice_where_its_ends_are_apart():
    run = Training(SMALL_GPT, Layout(pp=2), microbatches=2)
    assert sum(held_parameters(run, rank)["dense"] for rank in (0, 1)) == SMALL_GPT.parameters + 100 * 64
    v = Training(SMALL_GPT, Layout(pp=2), microbatches=4, schedule="zbv")
    assert sum(held_parameters(v, rank)["dense"] for rank in (0, 1)) == SMALL_GPT.parameters


def test_tensor_parallel_ranks_cut_matrices_and_share_norms():
    for t in (2, 4):
        held = held_parameters(Training(SMALL, Layout(tp=t)), 0)["dense"]
        norms = SMALL.parts["norms"]
        assert t * (held - norms) + norms == SMALL.parameters
    kv = 2 * 64 * 8                                                         # 4 key-value heads on 8 ranks: one each
    vocabulary = 2 * 64 * (8 * 13 - 100)                                    # 100 rows on 8 ranks: 13 on the fullest
    held = held_parameters(Training(SMALL, Layout(tp=8)), 0)["dense"]
    assert 8 * (held - SMALL.parts["norms"]) + SMALL.parts["norms"] == SMALL.parameters + 8 * 4 * kv + vocabulary


def test_replicas_are_the_groups_of_the_layout():
    for sizes in ({"dp": 8, "tp": 2, "ep": 4}, {"dp": 2, "tp": 4, "cp": 2, "ep": 8, "expert_tp": 1}, {"dp": 3}):
        run = Training(MOE, Layout(**sizes))
        assert replicas(run) == {"dense": run.layout.size("dp_cp"), "experts": run.layout.size("expert_dp")}


def test_experts_are_cut_by_ep_and_sharded_over_expert_dp():
    """ep 4 on dp 8: each expert twice, so ZeRO has 2 ranks to cut experts over, and 8 for the rest."""
    run = Training(MOE, Layout(dp=8, ep=4), zero=1)
    lines = {line.what: line for line in stage(run, 0)}
    assert lines["experts: optimizer"].bytes == MOE.parts["experts"] // 4 * 12 // 2
    assert lines["optimizer"].bytes == math.ceil((MOE.parameters - MOE.parts["experts"]) * 12 / 8)
    folded = Training(MOE, Layout(dp=2, tp=4, ep=8, expert_tp=1))
    assert held_parameters(folded, 0)["experts"] == MOE.parts["experts"] // 8
    assert held_parameters(Training(MOE, Layout(dp=8, tp=4, ep=8)), 0)["experts"] == MOE.parts["experts"] // 32


# Activations.

@pytest.mark.parametrize("model", [SMALL, SMALL_GPT, change(SMALL_GPT, ffn=70)], ids=["llama", "gpt", "uneven"])
@pytest.mark.parametrize("t", [1, 2, 4, 8])
@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_layer_keeps_what_memorys_formula_says(model, t, sp, recompute, flash, dtype):
    run = Training(model, Layout(tp=t), micro_batch=3, sequence_parallel=sp, recompute=recompute, flash=flash,
                   dtype=dtype)
    kept = sum(math.prod(factors.values()) for factors in layer_lines(run, 0).values())
    assert kept == memory.layer_activations(32, 3, 64, 8, t, sp, recompute, model.kv_heads, model.ffn, model.gated,
                                            model.dropout, flash, rank=t - 1, item=run.item)
    held = footprint(run).kinds(0)
    assert held["activations"] == 8 * kept
    norm = "layer" if model is not SMALL else "rms"
    last = memory.layer_statistics(32, 3, t, sp, "none", norm, run.item) // 2
    assert held["statistics"] == 8 * memory.layer_statistics(32, 3, t, sp, recompute, norm, run.item) + last


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("looped_bfs", 2),
                                                  ("interleaved_zb", 2), ("zb_h1", 1), ("zb_h2", 1), ("zbv", 2),
                                                  ("dualpipev", 2)])
def test_a_stage_keeps_as_many_micro_batches_as_its_schedule_has_in_flight(schedule, chunks):
    p, m = 4, 16
    run = Training(SMALL, Layout(pp=p), microbatches=m, schedule=schedule, chunks=chunks)
    one = footprint(Training(change(SMALL, layers=2))).kinds(0)["activations"]
    for rank in range(p):
        kept = pipeline.in_flight(schedule, p, m, chunks, rank)
        assert footprint(run).kinds(rank)["activations"] == kept * one


def most_in_flight(schedule, stage):
    """Micro-batches of one stage that are between F and B, or W, at most: counted on the lists of actions."""
    alive = most = 0
    for action in schedule.ranks[schedule.placement[stage]]:
        for half in parts(action):
            if half.stage == stage:
                alive += {"F": 1, "I": 0, "B": -1, "W": -1}[half.kind]
        most = max(most, alive)
    return most


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_the_ends_of_the_model_keep_as_many_micro_batches_as_the_schedules_lists_say(name, p):
    found = 0
    for m in (1, 2, 4, 5, 6, 8, 10, 16, 32):
        for v in ((1, 2, 4) if FAMILIES[name].any_chunks else (None,)):
            try:
                schedule = build(name, p, m, v)
            except ValueError:                              # there is none of this size
                continue
            run = Training(change(SMALL, layers=32), Layout(pp=p), microbatches=m, schedule=name, chunks=v)
            most, counted = run.in_flight_embedding(), most_in_flight(schedule, 0)
            assert most == counted or name == "interleaved_zb" and m % p and most > counted
            assert run.in_flight_head() == most_in_flight(schedule, run.stages - 1)
            found += 1
    assert found >= 2


def test_pipelining_does_not_divide_the_first_stages_activations():
    """p micro-batches of l/p layers: l layers' worth whatever p is, and whatever m >= p."""
    held = [kinds(SMALL, pp=p, microbatches=m)["activations"] for p, m in ((1, 1), (2, 2), (4, 4), (8, 8), (8, 64))]
    assert len(set(held)) == 1
    assert kinds(SMALL, pp=4, microbatches=64, schedule="gpipe")["activations"] == 16 * held[0]


def test_context_parallel_ranks_keep_their_share():
    """A ring keeps a number a row; all-gather, too; ulysses whole heads, of key-value heads at least one."""
    alone = kinds(SMALL, flash=True)
    for kind in ("ring", "zigzag", "striped", "gather"):
        assert kinds(SMALL, cp=4, cp_kind=kind)["activations"] * 4 == alone["activations"]
    assert kinds(SMALL, cp=4, cp_kind="ulysses", flash=True)["activations"] * 4 == alone["activations"]
    whole = Training(SMALL, Layout(cp=4), cp_kind="ulysses")
    assert core_lines(whole)["probabilities"] == {"b": 1, "rows": 32, "columns": 32, "heads": 2, "bytes": 2}
    shared = layer_lines(Training(SMALL, Layout(cp=8), cp_kind="ulysses"), 0)["keys, values"]
    assert shared["kv heads"] == 8 and math.prod(shared.values()) == 4 * 8 * 2 * 8 * 2
    mixed = Training(SMALL, Layout(cp=8), cp_kind="hybrid", ulysses=2)
    assert core_lines(mixed)["log-sum-exp of the scores"] == {"b": 1, "rows": 8, "heads": 4, "bytes": 4}
    assert kinds(SMALL, cp=8, cp_kind="hybrid", ulysses=2)["activations"] * 8 == alone["activations"]


def test_experts_keep_top_k_copies():
    run = Training(MOE, Layout(), flash=True)
    tokens, h, ffn, item = 16, 32, 24, 2
    lines = layer_lines(run, 1)
    assert math.prod(lines["experts: hidden"].values()) == 2 * tokens * ffn * 3 * item
    assert math.prod(lines["experts: input"].values()) == 2 * tokens * h * item
    assert math.prod(lines["router: probabilities"].values()) == tokens * 8 * 4
    assert math.prod(lines["shared experts: hidden"].values()) == tokens * ffn * 3 * item
    assert "MLP: hidden" in layer_lines(run, 0) and "router: probabilities" not in layer_lines(run, 0)
    folded = layer_lines(Training(MOE, Layout(tp=4, ep=4, expert_tp=1), flash=True), 1)["experts: hidden"]
    usual = layer_lines(Training(MOE, Layout(tp=4, dp=2, ep=2), flash=True), 1)["experts: hidden"]
    assert math.prod(folded.values()) == math.prod(usual.values()) == 2 * tokens * ffn * 3 * item // 4


@pytest.mark.parametrize("gated", [True, False])
def test_a_mixture_keeps_and_holds_what_its_own_formulas_say(gated):
    sizes = {"hidden": 32, "layers": 3, "heads": 4, "vocabulary": 50, "kv_heads": 2}
    model = custom(**sizes, ffn=40, gated=gated, sequence=16, experts=8, top_k=2, expert_ffn=24, shared_experts=1)
    counted = moe.parameters(**sizes, experts=8, ffn=24, top_k=2, shared=1, gated=gated, tied=False, bias=False)
    assert (model.parameters, model.active_parameters) == (counted["total"], counted["active"])
    lines = layer_lines(Training(model, Layout(), micro_batch=3), 0)
    ours = sum(math.prod(lines[what].values()) for what in ("MLP: input", "experts: input", "experts: hidden",
                                                            "experts: output"))
    assert ours == moe.layer_activations(48, 48, 96, 32, 24, 2, gated)


def test_the_last_stage_has_logits_in_float32_and_their_gradient():
    held = kinds(SMALL, rank=3, pp=4, microbatches=8, micro_batch=2)
    assert held["logits"] == 2 * (2 * 32 * 100 * 4) and held["ends"] == 2 * 2 * 32 * 64 * 2
    assert kinds(SMALL, rank=0, pp=4, microbatches=8)["logits"] == 0
    assert kinds(SMALL, rank=3, pp=4, microbatches=8, schedule="gpipe")["logits"] == (8 + 1) * 32 * 100 * 4
    assert kinds(SMALL, tp=8)["logits"] == 2 * 32 * 13 * 4                 # 100 on 8 ranks: 13 on the fullest
    assert kinds(SMALL, rank=0, pp=2, microbatches=4, schedule="zbv")["logits"] > 0


def test_the_first_stage_has_the_embeddings_mask_of_all_micro_batches_in_flight():
    ids = 4 * 32 * 9                                                       # 8 bytes a token; one, if it is this rank's
    assert kinds(SMALL_GPT, rank=0, pp=4, microbatches=8)["ends"] == ids + 4 * 32 * 64
    assert kinds(SMALL, rank=0, pp=4, microbatches=8)["ends"] == ids


# What comes and goes.

def test_recomputation_works_on_one_layer_at_a_time():
    full, none = (Training(SMALL, recompute=kind) for kind in ("full", "none"))
    one = sum(math.prod(factors.values()) for factors in layer_lines(none, 0).values())
    assert footprint(full).kinds(0)["working"] == one and footprint(none).kinds(0)["working"] == 0
    selective = Training(SMALL, recompute="selective")
    assert footprint(selective).kinds(0)["working"] == 32 * 32 * 8 * 2


def test_zero_gathers_a_unit_and_the_next():
    layer = sum(t.size for t in SMALL.tensors(0))
    assert layer > 100 * 64
    for zero, held in ((0, 0), (1, 0), (2, 2 * layer * 4), (3, 2 * layer * (4 + 2))):
        assert kinds(SMALL, dp=4, zero=zero, grad_dtype="float32")["gathered"] == held
    assert kinds(SMALL, dp=1, zero=3)["gathered"] == 0


def test_experts_that_nobody_shares_are_not_gathered():
    shared, alone = (kinds(MOE, dp=8, ep=ep, zero=3)["gathered"] for ep in (4, 8))
    assert shared > alone > 0


def test_messages_on_their_way_need_buffers():
    item, tokens, h = 2, 32, 64
    assert kinds(SMALL)["communication"] == 0
    assert kinds(SMALL, pp=2, microbatches=2)["communication"] == 2 * tokens * h * item
    assert kinds(SMALL, tp=2, sequence_parallel=True)["communication"] == tokens * h * item
    kv = tokens // 4 * 4 * (8 + 8) * item
    assert kinds(SMALL, cp=4)["communication"] == 2 * kv
    assert kinds(SMALL, cp=4, cp_kind="gather")["communication"] == 4 * kv
    assert kinds(SMALL, cp=4, cp_kind="ulysses")["communication"] == 0
    assert kinds(MOE, dp=2, ep=2)["communication"] == 2 * 16 * 32 * item


def test_a_gpu_keeps_some_for_itself():
    run = Training(SMALL)
    plain, on = footprint(run), footprint(run, gpu("h100"))
    assert plain.kinds(0)["reserve"] == 0 and on.kinds(0)["reserve"] > 1.5e9
    assert on.total() - plain.total() == on.kinds(0)["reserve"]


# The whole.

def test_every_line_is_the_product_of_its_factors_and_they_add_up():
    run = Training(find("moe-409b"), Layout(dp=16, tp=8, pp=8, ep=8), microbatches=32, zero=1, sequence_parallel=True)
    found = footprint(run, gpu("h100"))
    for rank, lines in enumerate(found.stages):
        assert all(abs(line.bytes - math.prod(line.factors.values()) / line.over) < 1 for line in lines)
        assert sum(found.kinds(rank).values()) == found.total(rank) == sum(line.bytes for line in lines)
        assert set(found.kinds(rank)) == set(KINDS)
    assert found.total() == max(found.total(rank) for rank in range(8)) == found.total(found.worst)
    assert found.stages[0][0].formula.startswith("parameters ")


@pytest.mark.parametrize(("model", "pp"), [(find("llama3-405b"), 16), (find("deepseek-v3"), 16), (SMALL, 3), (MOE, 4)])
@pytest.mark.parametrize("schedule", FAMILIES)
def test_the_worst_stage_is_found_without_counting_all(model, pp, schedule):
    for m in (pp, 2 * pp, 8 * pp):
        if model.layers >= pp * FAMILIES[schedule].chunks and (m > pp or schedule != "dualpipev"):
            run = Training(model, Layout(pp=pp), microbatches=m, schedule=schedule, flash=True)
            found = footprint(run)
            assert sum(line.bytes for line in worst_stage(run)) == found.total()


def test_gpt3_at_dp64_tp8_pp2_needs_zero_1():
    """175 GB of states on an A100 of 80 GB; with ZeRO 1 46 GB."""
    for zero, states in ((0, 175), (1, 46)):
        held = kinds(find("gpt3-175b"), dp=64, tp=8, pp=2, microbatches=8, zero=zero)
        assert round(sum(held[kind] for kind in ("weights", "gradients", "optimizer")) / GB) in (states, states + 1)


# What other calculators get wrong (facts measured on EleutherAI/cookbook, llm-analysis, Megatron-LM, DeepSpeed).

def test_gradients_and_optimizer_are_cut_by_tp_and_pp():
    """EleutherAI/cookbook divides weights only: 83 GiB of gradients for 22B on TP 8."""
    held = kinds(find("megatron-22b"), tp=8, micro_batch=4)
    assert held["gradients"] == held["weights"] and held["optimizer"] == 6 * held["weights"]
    assert held["gradients"] < 5.3 * GIB
    deep = kinds(find("gpt3-175b"), tp=8, pp=8, microbatches=8)
    assert deep["optimizer"] < 12 * 174.7e9 / 64 * 1.05


def test_zero_divides_by_those_who_share_and_not_by_all_gpus():
    held = kinds(find("gpt3-175b"), dp=16, tp=8, pp=8, microbatches=8, zero=1)
    assert held["optimizer"] == math.ceil(held["weights"] / 2 * 12 / 16)
    three = kinds(find("gpt3-175b"), dp=16, tp=8, pp=8, microbatches=8, zero=3)
    assert three["weights"] == math.ceil(held["weights"] / 16)


def test_full_recomputation_is_not_selective():
    full, selective = (kinds(find("megatron-22b"), tp=8, recompute=kind)["activations"]
                       for kind in ("full", "selective"))
    assert full * 13 == selective * 2                                      # 2 s b h to (10 + 24/8) s b h


def test_grouped_heads_and_gated_mlps_count_as_they_are():
    """Megatron-LM's own report takes 34 for every model."""
    run = Training(find("llama3-8b"), flash=True)
    sbh = 8192 * 4096
    lines = layer_lines(run, 0)
    kept = sum(math.prod(lines[what].values()) for what in lines if "log-sum" not in what)
    assert kept == sbh * (4 * 2 + 2 + 2 * 2 / 4 + 2 + 3 * 2 * 14336 / 4096)


def test_flash_attention_leaves_little_to_recompute():
    flash, both, naive = (kinds(find("gpt3-175b"), tp=8, **options)["activations"]
                          for options in ({"flash": True}, {"flash": True, "recompute": "selective"}, {}))
    assert both < flash < 1.01 * both and naive - both == 96 * 5 * 12 * 2048**2


# What does not fit together.

@pytest.mark.parametrize(("model", "cut", "options", "says"), [
    (SMALL, {"tp": 3}, {}, "tp=3 does not divide heads=8; tp may be 1, 2, 4 or 8"),
    (change(SMALL, heads=12, hidden=96, kv_heads=3), {"tp": 2}, {},
     "kv_heads=3 are neither cut nor shared evenly by tp=2; tp may be 1, 3, 6 or 12"),
    (SMALL, {"cp": 5}, {"cp_kind": "ring"}, "sequence=32 is not divisible by cp=5; cp may be 1, 2, 4, 8, 16 or 32"),
    (SMALL, {"cp": 32}, {}, "sequence=32 is not divisible by 2 x cp=32; cp may be 1, 2, 4, 8 or 16"),
    (SMALL, {"tp": 8, "cp": 8}, {"sequence_parallel": True}, "sequence=32 over cp=8 is not divisible by tp=8"),
    (SMALL, {"cp": 16}, {"cp_kind": "ulysses"}, "cp=16 ranks cannot share the 8 heads of a tp rank"),
    (SMALL, {"cp": 8}, {"cp_kind": "hybrid"}, "ulysses=None with cp_kind='hybrid', cp=8: hybrid needs it"),
    (SMALL, {"cp": 8}, {"cp_kind": "hybrid", "ulysses": 3}, "it may be 1, 2, 4 or 8"),
    (SMALL, {"cp": 8}, {"ulysses": 2}, "ulysses=2 with cp_kind='zigzag'"),
    (SMALL, {"dp": 2, "ep": 2}, {}, "ep=2: custom has no experts; ep may be 1"),
    (MOE, {"dp": 3, "ep": 3}, {}, "ep=3 does not divide experts=8; ep may be 1, 2, 4 or 8"),
    (SMALL_GPT, {}, {"sequence": 33}, "sequence=33 is longer than the 32 positions that custom learns; nearest 32"),
    (SMALL, {"pp": 9}, {"microbatches": 9}, "layers=8: 9 ranks with 1 chunk each need a layer for every stage"),
    (SMALL, {"pp": 2}, {"microbatches": 2, "chunks": 2}, "chunks=2: 1f1b has 1 on every rank"),
    (SMALL, {"pp": 4}, {"microbatches": 9, "schedule": "interleaved", "chunks": 2}, "8 or 10 micro-batches work"),
    (SMALL, {}, {"schedule": "1f1"}, "schedule='1f1': expected one of gpipe, 1f1b"),
    (SMALL, {}, {"cp_kind": "rign"}, "cp_kind='rign': expected one of ring.*nearest 'ring'"),
    (SMALL, {}, {"recompute": "some"}, "recompute='some': expected one of none, selective, full"),
    (SMALL, {}, {"dtype": "fp16"}, "dtype='fp16': expected one of float16.*nearest 'float16'"),
    (SMALL, {}, {"grad_dtype": "fp32"}, "grad_dtype='fp32': expected one of .*nearest 'float32'"),
    (SMALL, {}, {"dtype": "float32", "grad_dtype": "float16"}, "grad_dtype=float16 is narrower than dtype=float32"),
    (SMALL, {}, {"zero": 4}, "zero=4: expected 0, 1, 2 or 3; nearest 3"),
    (SMALL, {}, {"sequence": 0}, "sequence=0: expected 1 or more"), (SMALL, {}, {"micro_batch": 0}, "micro_batch=0"),
    (SMALL, {}, {"microbatches": -1}, "microbatches=-1")])
def test_what_does_not_fit_is_said_before_anything_is_counted(model, cut, options, says):
    with pytest.raises(ValueError, match=says):
        Training(model, Layout(**cut), **options)


def test_a_training_knows_its_batch_and_its_layers():
    run = Training(SMALL, Layout(dp=3, pp=2, cp=2), micro_batch=5, microbatches=4, schedule="interleaved", chunks=2)
    assert run.global_batch == 3 * 5 * 4 and run.stages == 4 and run.positions == 16
    assert run.held == [[range(0, 2), range(4, 6)], [range(2, 4), range(6, 8)]]
    assert hash(run) == hash(Training(SMALL, Layout(dp=3, pp=2, cp=2), None, 5, 4, "interleaved", 2))
