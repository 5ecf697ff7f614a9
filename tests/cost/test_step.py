"""How long a step takes: published runs, one layer as measured, the trainer's virtual clock, what follows from what."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
from random_layouts import DATA as TEXT
from random_layouts import random_setup

from refimpl.cost import efficiency, models, published
from refimpl.cost.hardware import Link as Wire
from refimpl.cost.hardware import find
from refimpl.cost.layer_time import layer_seconds
from refimpl.cost.stage_time import one_layer
from refimpl.cost.step import PARTS, step, timeline
from refimpl.cost.training import Training
from refimpl.cost.virtual_step import virtual_seconds
from refimpl.layout import Layout
from refimpl.model.config import Config
from refimpl.train import predicted
from refimpl.train.run import Plan, on_rank
from refimpl.train.setup import Setup
from refimpl.world import run
from refimpl.world.network import Link, Network

DATA = Path(__file__).parent.parent / "data"
A100, H100 = find("a100-80gb"), find("h100-sxm")
GPT3 = models.find("gpt3-175b")


def of(model=GPT3, gpu=A100, overlap=True, **options):
    cut = {axis: options.pop(axis) for axis in ("dp", "tp", "pp", "cp", "ep", "expert_tp", "order") if axis in options}
    return step(Training(model, Layout(**cut), **options), gpu, overlap)


# Published runs.

def test_korthikanti_et_al_are_predicted_within_5_and_12_percent():
    middle, worst = published.summary(published.korthikanti())["Korthikanti 2022"]
    assert middle < 0.05 and worst < 0.12


def test_narayanan_et_al_are_predicted_within_8_and_15_percent():
    found = published.narayanan()
    middle, worst = published.summary(found)["Narayanan 2021"]
    assert middle < 0.08 and worst < 0.15 and all("micro-batch" in row.assumed for row in found)


def test_the_published_numbers_are_those_of_the_papers():
    with (DATA / "korthikanti.csv").open() as opened:
        rows = [(int(r["tp"]), int(r["pp"]), int(r["v"]), int(r["micro_batch"]), int(r["global_batch"]),
                 float(r["iter_full_s"]), float(r["iter_present_s"])) for r in csv.DictReader(opened)]
    assert [row[1:] for row in published.KORTHIKANTI] == rows
    with (DATA / "megatron_sc21_table1.csv").open() as opened:
        names = "tp", "pp", "gpus", "batch", "tflops_per_gpu"
        rows = [(f"megatron-{r['params_B']}b", *(int(r[name]) for name in names)) for r in csv.DictReader(opened)]
    assert list(published.NARAYANAN) == rows


@pytest.mark.parametrize(("recompute", "sp", "forward", "backward"), [
    ("none", False, 7.7, 11.9), ("none", True, 7.2, 11.8), ("full", False, 7.7, 19.5), ("selective", False, 7.7, 13.2),
    ("selective", True, 7.2, 13.1)])
def test_one_layer_takes_what_was_measured(recompute, sp, forward, backward):
    """Milliseconds of table 4 of Korthikanti et al., 22B on 8 GPUs: a layer by itself, which no total makes up for."""
    training = Training(models.find("megatron-22b"), Layout(tp=8), micro_batch=4, sequence_parallel=sp,
                        recompute=recompute, dtype="float16")
    found = one_layer(training, A100, True).seconds
    assert math.isclose(1e3 * found[0], forward, rel_tol=0.05) and math.isclose(1e3 * found[1], backward, rel_tol=0.12)


@pytest.mark.parametrize(("name", "pp", "chunks", "batch", "full", "selective"), [
    ("megatron-529.6b", 35, 3, 280, 49.05, 37.83), ("megatron-1008b", 64, 1, 512, 94.42, 71.49)])
def test_models_that_the_constants_have_not_seen(name, pp, chunks, batch, full, selective):
    """The other two models of Korthikanti et al., table 5, 530B and 1T."""
    base = Training(models.find(name), Layout(tp=8, pp=pp), microbatches=batch, recompute="full", chunks=chunks,
                    schedule="interleaved" if chunks > 1 else "1f1b", dtype="float16", grad_dtype="float32")
    lean = replace(base, recompute="selective", sequence_parallel=True)
    for training, seconds in ((base, full), (lean, selective)):
        assert math.isclose(step(training, A100, overlap=False).seconds, seconds, rel_tol=0.12)


# The trainer's virtual clock.

def even(setup):
    """Whether all micro-batches are alike, and groups lie alike on the nodes of 4."""
    layout = setup.layout
    return (setup.global_batch % (layout.dp * setup.microbatches) == 0 and layout.world <= 12
            and not {3} & {layout.dp, layout.cp, layout.tp})


EVEN = [seed for seed in range(90) if even(random_setup(seed))][:16]


def network(setup):
    """Links, and a rate at which messages matter; less so where routers, which are not balanced, decide who sends."""
    return Network(Link(1e-6, 1 / 50e9), Link(4e-6, 1 / 12.5e9), 4, flops=2e8 if setup.layout.ep > 1 else 1e9)


def predict(setup, where):
    """Virtual seconds of a step, by the formula."""
    seat = predicted.seat_of(setup, 0)
    return virtual_seconds(seat.training, where, seat.summed, seat.loss_scale)


@pytest.mark.parametrize("seed", EVEN)
def test_the_formula_is_the_trainers_clock_within_2_percent(seed):
    setup = random_setup(seed)
    ranks = run(on_rank, setup.layout.world, setup, TEXT, Plan(steps=1, measure=False), network=network(setup))
    assert math.isclose(predict(setup, network(setup)), max(history.clock for history in ranks), rel_tol=0.02)


ONE_AT_A_TIME = [({"dp": 4}, {}), ({"dp": 4}, {"zero": 3}), ({"tp": 4}, {}), ({"tp": 4}, {"sequence_parallel": True}),
                 ({"tp": 4}, {"sequence_parallel": True, "zero": 2}), ({"pp": 4}, {}), ({"pp": 2}, {"schedule": "zbv"}),
                 ({"cp": 4}, {}), ({"cp": 4}, {"cp_kind": "gather"}), ({"cp": 4}, {"cp_kind": "ulysses"})]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(("cut", "options"), ONE_AT_A_TIME, ids=[f"{cut} {more}" for cut, more in ONE_AT_A_TIME])
def test_in_one_dimension_the_formula_is_the_trainers_clock_to_rounding(cut, options, family):
    """On slow links, with key-value heads that tp ranks share: messages take about as long as work."""
    config = Config(family, 256, 32, 4, 8, kv_heads=2, ffn=64, context=32)
    setup = Setup(config, Layout(**cut), sequence=32, global_batch=16, micro_batch=1, **options)
    where = Network(Link(1e-5, 1 / 1e9), flops=1e9)
    ranks = run(on_rank, setup.layout.world, setup, TEXT, Plan(steps=1, measure=False), network=where)
    assert math.isclose(predict(setup, where), max(history.clock for history in ranks), rel_tol=1e-9)


def test_messages_take_more_of_the_clock_than_the_test_above_forgives():
    shares = []
    for setup in map(random_setup, EVEN):
        alone = predict(setup, Network(Link(0, 0), flops=network(setup).flops))
        shares.append(1 - alone / predict(setup, network(setup)))
    assert sum(share > 0.02 for share in shares) >= 5 and max(shares) > 0.1


# What follows from what.

def test_the_parts_add_up_and_utilisations_are_flops_over_time():
    found = of(tp=8, pp=8, dp=4, microbatches=32, recompute="full", dtype="float16")
    assert set(found.breakdown) == set(PARTS) and math.isclose(sum(found.breakdown.values()), found.seconds)
    sequences = 4 * 32
    assert math.isclose(found.mfu, GPT3.flops(sequences) / (found.seconds * 256 * 312e12))
    assert math.isclose(found.hfu / found.mfu, GPT3.flops(sequences, recompute="full") / GPT3.flops(sequences))
    assert math.isclose(found.model_tflops, found.mfu * 312)


def test_the_bubble_in_closed_form_is_the_timelines_where_ranks_are_alike():
    model = replace(GPT3, vocabulary=8, positions=8, sequence=8, layers=16)       # nothing at the ends
    for schedule, chunks in (("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("looped_bfs", 2)):
        training = Training(model, Layout(pp=4), microbatches=8, schedule=schedule, chunks=chunks, sequence=8)
        found = step(training, A100)
        drawn = timeline(training, found.ranks, found.hop)
        whole = found.seconds - found.breakdown["dp"] - found.breakdown["optimizer"]
        assert math.isclose(drawn.makespan, whole, rel_tol=0.02)


def test_a_schedule_without_a_formula_for_these_times_is_timed_action_by_action():
    assert of(pp=4, microbatches=16, schedule="zbv", flash=True).breakdown["bubble"] > 0


@pytest.mark.parametrize(("change", "part"), [("network", "dp"), ("fabric", "tp")])
def test_half_a_links_bandwidth_makes_what_it_carries_slower_and_nothing_else(change, part):
    link = getattr(A100, change)
    slow = replace(A100, **{change: Wire(link.alpha, link.bandwidth / 2)})
    options = {"tp": 8, "dp": 16, "overlap": False, "flash": True}
    whole, half = of(gpu=A100, **options).breakdown, of(gpu=slow, **options).breakdown
    assert 1.5 < half[part] / whole[part] <= 2.001
    assert all(half[name] == whole[name] for name in PARTS if name != part)


def test_tensor_parallelism_across_nodes_costs_what_the_network_takes():
    inside, across = (of(tp=16, gpu=gpu, sequence_parallel=True, flash=True).breakdown["tp"]
                      for gpu in (replace(A100, domain_size=16, node_size=16), A100))
    assert across > 1.15 * inside                                                  # all cards of the node carry a part


def test_which_axis_crosses_nodes_follows_the_order():
    """Case A29: tp-cp-dp-pp sends the pipeline across nodes, tp-cp-pp-dp the gradients."""
    options = {"tp": 4, "pp": 2, "dp": 2, "microbatches": 4, "overlap": False, "flash": True}
    first, second = (of(order=order, **options).breakdown for order in ("tp-cp-dp-pp", "tp-cp-pp-dp"))
    assert first["pp"] > second["pp"] and first["dp"] < second["dp"]


def test_overlap_hides_sums_but_not_the_last_unit_and_not_for_nothing():
    options = {"tp": 8, "dp": 16, "micro_batch": 16, "flash": True}
    hidden, waited = of(**options).breakdown["dp"], of(overlap=False, **options).breakdown["dp"]
    assert 0.1 * waited < hidden < 0.5 * waited


def test_experts_inside_a_node_are_faster_than_across():
    mixtral, options = models.find("mixtral-8x7b"), {"flash": True, "zero": 1, "sequence_parallel": True}
    inside = of(mixtral, H100, dp=8, tp=8, ep=8, expert_tp=1, **options).breakdown["ep"]
    across = of(mixtral, H100, dp=8, tp=8, ep=8, expert_tp=8, **options).breakdown["ep"]
    assert across > 4 * inside > 0


def test_selective_recomputation_costs_the_core_and_full_all_of_forward():
    none, selective, full = (of(tp=8, recompute=kind) for kind in ("none", "selective", "full"))
    layer = one_layer(Training(GPT3, Layout(tp=8)), A100, True)
    assert none.breakdown["again"] == 0 < selective.breakdown["again"] < full.breakdown["again"]
    moved = layer.forward["products"] + layer.forward["moved"]
    assert math.isclose(full.breakdown["again"], GPT3.layers * moved)
    assert math.isclose(full.breakdown["tp"] / none.breakdown["tp"], 1.5, rel_tol=0.01)      # 12 instead of 8 b s h


# One product, one group.

def test_products_reach_more_the_larger_they_are_and_wait_for_memory_where_they_are_thin():
    shares = [2 * n**3 / (efficiency.product(A100, "float16", n, n, n) * 312e12) for n in (512, 1024, 4096, 16384)]
    assert shares == sorted(shares) and shares[0] < 0.4 and 0.75 < shares[-1] < efficiency.A100.product
    thin = efficiency.product(A100, "float16", 1, 8192, 8192)
    assert math.isclose(thin, efficiency.moving(A100, 2 * (8192 + 8192**2 + 8192)))
    assert efficiency.product(A100, "float16", 0, 8, 8) == 0.0


def test_a_group_with_more_ranks_on_a_node_leaves_it_through_more_cards():
    one, four = efficiency.way(A100, range(0, 128, 8)), efficiency.way(A100, range(0, 128, 2))
    assert (one.nodes, one.each, four.nodes, four.each) == (16, 1, 16, 4)
    assert math.isclose(one.ring(0, 1e9) / four.ring(0, 1e9), 4)
    assert efficiency.way(A100, range(8)).nodes == 1


def test_unknown_dtypes_of_a_gpu_are_refused():
    with pytest.raises(ValueError, match="no peak for dtype 'float64'|v100"):
        of(gpu=find("v100-32gb"), dtype="bfloat16")


def test_a_contiguous_ring_waits_for_its_last_rank():
    training = Training(models.find("llama3-8b"), Layout(cp=8), 131072)
    ring, zigzag = (layer_seconds(replace(training, cp_kind=kind), H100).core for kind in ("ring", "zigzag"))
    assert math.isclose(ring / zigzag, 15 / 8, rel_tol=0.01)                 # (2P-1)/P: the last rank sees everybody
