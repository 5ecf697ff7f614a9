"""Wrong counts of bytes and FLOPs, and layouts that do not work: each gets the diagnosis meant for it."""

import math

import pytest
from diagnoses import assert_diagnosed, assert_solution_passes_and_stub_is_not_implemented

from refimpl import Link, Network, run
from refimpl.cost.footprint import footprint
from refimpl.cost.hardware import find as gpu
from refimpl.cost.models import of_transformer
from refimpl.cost.step import step
from refimpl.course.exercises import costs_cases, design_verdict
from refimpl.course.exercises.checks import examine
from refimpl.model import text
from refimpl.model.config import Config
from refimpl.train.setup import Setup
from refimpl.train.trainer import Trainer

# model states


def states_right(psi, zero, ranks, gradient, weight=2, optimizer=12, begins=(3, 2, 1)):
    items = weight, gradient, optimizer
    return [psi * item / (ranks if zero >= first else 1) for item, first in zip(items, begins)]


def states_as_whole_numbers(psi, zero, ranks, gradient):
    return tuple(map(int, states_right(psi, zero, ranks, gradient)))


def states_without_the_copy(psi, zero, ranks, gradient):
    return states_right(psi, zero, ranks, gradient, optimizer=8)


def states_with_the_papers_gradients(psi, zero, ranks, gradient):
    return states_right(psi, zero, ranks, 2)


def states_all_cut(psi, zero, ranks, gradient):
    return states_right(psi, 3, ranks, gradient)


def states_never_cut(psi, zero, ranks, gradient):
    return states_right(psi, 0, ranks, gradient)


def states_gradients_cut_in_stage_1(psi, zero, ranks, gradient):
    return states_right(psi, zero, ranks, gradient, begins=(3, 1, 1))


def states_other_way_round(psi, zero, ranks, gradient):
    return states_right(psi, zero, ranks, gradient, begins=(1, 2, 3))


def states_each_stage_alone(psi, zero, ranks, gradient):
    """What a stage adds is cut, what the ones before it cut is not."""
    return [psi * item / (ranks if zero == first else 1) for item, first in ((2, 3), (gradient, 2), (12, 1))]


def states_of_all_ranks(psi, zero, ranks, gradient):
    return [psi * item for item in (2, gradient, 12)] if ranks == 1 else [
        ranks * held for held in states_right(psi, zero, ranks, gradient)]


def states_in_elements(psi, zero, ranks, gradient):
    return states_right(psi, zero, ranks, gradient / gradient, 1, 3)


def states_in_one_sum(psi, zero, ranks, gradient):
    return sum(states_right(psi, zero, ranks, gradient))


# what a layer keeps

def keeps_right(s, b, h, a, t, sequence_parallel, recompute, around=10, inside=24, scores=5, core_t=None):
    outside = t if sequence_parallel else 1
    if recompute == "full":
        return 2 * s * b * h / outside
    core = scores * a * s * s * b / (core_t or t) if recompute == "none" else 0
    return s * b * h * (around / outside + inside / t) + core


def keeps_all_cut(s, b, h, a, t, sequence_parallel, recompute):
    return keeps_right(s, b, h, a, t, True, recompute)


def keeps_without_sequence_parallelism(s, b, h, a, t, sequence_parallel, recompute):
    return keeps_right(s, b, h, a, t, False, recompute)


def keeps_no_scores(s, b, h, a, t, sequence_parallel, recompute):
    return keeps_right(s, b, h, a, t, sequence_parallel, "full" if recompute == "full" else "selective")


def keeps_scores_once(s, b, h, a, t, sequence_parallel, recompute):
    return keeps_right(s, b, h, a, t, sequence_parallel, recompute, scores=2)


def keeps_scores_whole(s, b, h, a, t, sequence_parallel, recompute):
    return keeps_right(s, b, h, a, t, sequence_parallel, recompute, core_t=1)


def keeps_scores_though_selective(s, b, h, a, t, sequence_parallel, recompute):
    return keeps_right(s, b, h, a, t, sequence_parallel, "full" if recompute == "full" else "none")


def keeps_the_layer_though_full(s, b, h, a, t, sequence_parallel, recompute):
    return keeps_right(s, b, h, a, t, sequence_parallel, "none" if recompute == "full" else recompute)


def keeps_wide_masks(s, b, h, a, t, sequence_parallel, recompute):
    return keeps_right(s, b, h, a, t, sequence_parallel, recompute, around=12, scores=6)


def keeps_hidden_once(*case):
    return keeps_right(*case, inside=16)


def keeps_narrow_hidden(*case):
    return keeps_right(*case, inside=12)


def keeps_queries_alone(*case):
    return keeps_right(*case, inside=20)


def keeps_no_masks(*case):
    return keeps_right(*case, around=8, scores=4)


def keeps_no_masks_behind_blocks(*case):
    return keeps_right(*case, around=8)


def keeps_half(*case):
    return keeps_right(*case) / 2


def keeps_a_little_less(*case):
    return 0.9 * keeps_right(*case)


def keeps_nothing(*case):
    return 0


def keeps_less_than_nothing(*case):
    return -keeps_right(*case)


def keeps_no_number(*case):
    return math.nan


def keeps_without_end(*case):
    return math.inf


def keeps_words(*case):
    return "34 s b h"


# layouts

GPT3 = {"tp": 4, "pp": 8, "zero": 1, "chunks": 3, "recompute": "selective", "sequence_parallel": True}
MOE = {"tp": 2, "pp": 16, "ep": 8, "expert_tp": 1, "zero": 1, "chunks": 5, "sequence_parallel": True}


def layout(choice, **changes):
    """A learner's function: this layout with changes, dp what is left."""
    merged = choice | changes
    return lambda gpus: {"dp": gpus // (merged["tp"] * merged["pp"])} | merged


def gpt3_right(gpus):
    return layout(GPT3)(gpus)


def gpt3_of_the_cheat_sheet(gpus):
    """DP 64 x TP 8 x PP 2."""
    return {"dp": gpus // 16, "tp": 8, "pp": 2}


def gpt3_as_the_papers_did(gpus):
    return layout(GPT3, tp=8)(gpus)


def gpt3_with_dp_alone(gpus):
    return {"dp": gpus // 2, "tp": 2}


def gpt3_with_full_recomputation(gpus):
    return layout(GPT3, recompute="full")(gpus)


def gpt3_in_one_chunk_over_16(gpus):
    return layout(GPT3, tp=8, pp=16, chunks=1)(gpus)


def gpt3_always_for_1024(gpus):
    return layout(GPT3)(1024)


def gpt3_five_at_once(gpus):
    return {"dp": gpus // 4, "pp": 4, "micro_batch": 5}


def gpt3_misspelt(gpus):
    return layout(GPT3, micro_batches=1)(gpus)


def gpt3_as_numbers(gpus):
    return 32, 4, 8


def gpt3_too_many_chunks(gpus):
    return layout(GPT3, chunks=16)(gpus)


def moe_right(gpus):
    return layout(MOE)(gpus)


def moe_of_the_cheat_sheet(gpus):
    """TP 8 x PP 8 x EP 8 x DP 2, multiplied."""
    return {"dp": gpus // 512, "tp": 8, "pp": 8, "ep": 8, "zero": 1, "sequence_parallel": True}


def moe_with_shared_experts(gpus):
    return layout(MOE, tp=8, pp=8, expert_tp=8)(gpus)


def moe_over_nodes(gpus):
    return layout(MOE, ep=16)(gpus)


def moe_without_ep(gpus):
    return layout(MOE, ep=1)(gpus)


def moe_tp_eight(gpus):
    return layout(MOE, tp=8, pp=8)(gpus)


def moe_seven_experts(gpus):
    return layout(MOE, ep=7)(gpus)


# bubbles

def bubble_right(p, m, v):
    idle = (p - 1) / v
    return idle / m, idle / (m + idle)


def bubble_swapped(p, m, v):
    return bubble_right(p, m, v)[::-1]


def bubble_ideal_twice(p, m, v):
    return (bubble_right(p, m, v)[0],) * 2


def bubble_total_twice(p, m, v):
    return (bubble_right(p, m, v)[1],) * 2


def bubble_without_chunks(p, m, v):
    return bubble_right(p, m, 1)


def bubble_p_stages(p, m, v):
    return p / (v * m), p / (v * m + p)


def bubble_a_slot_more(p, m, v):
    return bubble_right(p, m, v)[0], (p - 1) / (v * m + p)


def bubble_in_percent(p, m, v):
    return [100 * share for share in bubble_right(p, m, v)]


def bubble_one_number(p, m, v):
    return (p - 1) / m


# FLOPs

def flops_right(layers, h, s, V, B, recompute, backward=2, core=4, matrices=24, head=2):
    matrices, core, head = matrices * layers * B * s * h * h, core * layers * B * s * s * h, head * B * s * h * V
    again = {"none": 0, "selective": core, "full": matrices + core}[recompute]
    model = (1 + backward) * (matrices + core + head)
    return model, model + again


def flops_backward_once(*case):
    return flops_right(*case, backward=1)


def flops_of_multiplications(*case):
    return [number / 2 for number in flops_right(*case)]


def flops_without_core(*case):
    return flops_right(*case, core=0)


def flops_scores_alone(*case):
    return flops_right(*case, core=2)


def flops_without_head(*case):
    return flops_right(*case, head=0)


def flops_recomputing_the_head(layers, h, s, V, B, recompute):
    model, hardware = flops_right(layers, h, s, V, B, recompute)
    return model, hardware if recompute != "full" else 4 * model / 3


def flops_nothing_again(*case):
    return (flops_right(*case)[0],) * 2


def flops_all_in_the_model(*case):
    return (flops_right(*case)[1],) * 2


def flops_selective_as_full(layers, h, s, V, B, recompute):
    return flops_right(layers, h, s, V, B, "full" if recompute == "selective" else recompute)


def flops_six_times_parameters(layers, h, s, V, B, recompute):
    return (6 * B * s * (12 * layers * h * h),) * 2


def flops_by_guess(layers, h, s, V, B, recompute):
    return layers * h, s * V


WRONG = [
    (states_right, "passed", []), (states_as_whole_numbers, "passed", []),
    (states_without_the_copy, "copy forgotten", ["no float32 copy", "yours 8,000, counted 12,000"]),
    (states_with_the_papers_gradients, "wrong dtype", ["gradients of 4 bytes", "yours 1,920, counted 3,840"]),
    (states_all_cut, "wrong cut", ["this is what a rank holds under ZeRO 3", "ZeRO 1 on 4 ranks"]),
    (states_never_cut, "wrong cut", ["this is what a rank holds under ZeRO 0"]),
    (states_gradients_cut_in_stage_1, "wrong cut", ["this is what a rank holds under ZeRO 2"]),
    (states_other_way_round, "wrong cut", ["wrong order", "ZeRO 1 on 4 ranks"]),
    (states_each_stage_alone, "wrong cut", ["only one kind is cut; ZeRO 2 also cuts"]),
    (states_of_all_ranks, "off by a factor", ["4 times too large", "those of one rank"]),
    (states_in_elements, "wrong values", ["weights: yours 1,000, counted 2,000"]),
    (states_in_one_sum, "wrong shape", ["expected 3 numbers, (weights, gradients, optimizer)"]),
    (keeps_right, "passed", []),
    (keeps_all_cut, "wrong cut", ["without sequence parallelism", "s=8, b=2, h=16, a=4, t=2, recompute none"]),
    (keeps_without_sequence_parallelism, "wrong cut", ["sequence parallelism cuts what lies outside"]),
    (keeps_no_scores, "probabilities", ["are missing", "five bytes"]),
    (keeps_scores_once, "probabilities", ["only one copy"]),
    (keeps_scores_whole, "probabilities", ["are not cut", "t=2"]),
    (keeps_scores_though_selective, "recomputation", ["computed again", "recompute selective"]),
    (keeps_the_layer_though_full, "recomputation", ["only the layer's input", "recompute full"]),
    (keeps_wide_masks, "wrong dtype", ["masks", "one byte"]),
    (keeps_hidden_once, "copy forgotten", ["before GELU and after it", "4 h hidden features"]),
    (keeps_narrow_hidden, "copy forgotten", ["four times as wide"]),
    (keeps_queries_alone, "copy forgotten", ["three arrays"]),
    (keeps_no_masks, "copy forgotten", ["masks of dropout"]),
    (keeps_no_masks_behind_blocks, "copy forgotten", ["two masks behind the blocks"]),
    (keeps_half, "off by a factor", ["2 times too small"]),
    (keeps_a_little_less, "wrong values", ["the number is not the one", "yours 7,171.2, counted 7,968"]),
    (keeps_nothing, "wrong values", ["yours 0, counted"]), (keeps_less_than_nothing, "wrong values", ["yours -"]),
    (keeps_no_number, "wrong values", ["yours nan, counted"]), (keeps_without_end, "wrong values", ["yours inf"]),
    (keeps_words, "wrong shape", ["expected a number, the bytes"]),
    (gpt3_right, "passed", []),
    (gpt3_of_the_cheat_sheet, "does not fit", ["of 85.2", "optimizer 131.8 GB", "ZeRO 1 the optimizer"]),
    (gpt3_with_dp_alone, "does not fit", ["optimizer 1047.9 GB", "gradients 349.3 GB"]),
    (gpt3_with_full_recomputation, "too slow", ["par is", "again", "MFU"]),
    (gpt3_in_one_chunk_over_16, "too slow", ["bubble 1.50 s", "chunks shorten `bubble`"]),
    (gpt3_always_for_1024, "wrong product", ["1024 ranks, there are 512 GPUs", "dp = gpus // (tp * pp)"]),
    (gpt3_five_at_once, "does not divide", ["micro-batches of 5 on dp=256"]),
    (gpt3_too_many_chunks, "does not divide", ["stages"]),
    (gpt3_misspelt, "wrong shape", ["no choice 'micro_batches'", "nearest 'micro_batch'"]),
    (gpt3_as_numbers, "wrong shape", ["expected a dict"]),
    (moe_right, "passed", []),
    (moe_of_the_cheat_sheet, "ep multiplied", ["= 128; with ep 8 it would be 1024", "the same ranks anew"]),
    (moe_with_shared_experts, "across nodes", ["on 8 nodes", "[0, 8, 16, ..., 56], and a node has 8 GPUs",
                                               "expert_tp=1"]),
    (moe_over_nodes, "across nodes", ["on 2 nodes", "[0, 1, 2, ..., 15]"]),
    (moe_without_ep, "does not fit", ["weights", "ep, pp and ZeRO 1"]),
    (moe_tp_eight, "too slow", ["par is", "tp "]),
    (moe_seven_experts, "does not divide", ["ep"]),
    (bubble_right, "passed", []),
    (bubble_swapped, "wrong denominator", ["the other way round"]),
    (bubble_ideal_twice, "wrong denominator", ["both are shares of the ideal time"]),
    (bubble_total_twice, "wrong denominator", ["both are shares of the total time"]),
    (bubble_without_chunks, "wrong addends", ["the chunks are forgotten", "p=4, m=8, v=2"]),
    (bubble_p_stages, "wrong addends", ["each waits for the p-1 others"]),
    (bubble_a_slot_more, "wrong denominator", ["one slot too long"]),
    (bubble_in_percent, "off by a factor", ["100 times too large"]),
    (bubble_one_number, "wrong shape", ["expected 2 numbers"]),
    (flops_right, "passed", []),
    (flops_backward_once, "wrong addends", ["backward takes twice the forward"]),
    (flops_of_multiplications, "off by a factor", ["2 times too small", "two operations"]),
    (flops_without_core, "core forgotten", ["s by s"]),
    (flops_scores_alone, "core forgotten", ["two products"]),
    (flops_without_head, "head forgotten", ["output table is missing"]),
    (flops_recomputing_the_head, "recomputation", ["head is not computed again", "recompute full"]),
    (flops_nothing_again, "recomputation", ["missing from the second number"]),
    (flops_all_in_the_model, "recomputation", ["counts as the model's own"]),
    (flops_selective_as_full, "recomputation", ["the core once more, not the whole layer"]),
    (flops_six_times_parameters, "core forgotten", ["6 FLOPs a parameter and token"]),
    (flops_by_guess, "wrong values", ["model FLOPs: yours"]),
]
EXERCISE = {"states": "model_states", "keeps": "layer_keeps", "gpt3": "gpt3_layout", "moe": "moe_layout",
            "bubble": "bubble_shares", "flops": "step_flops"}


@pytest.mark.parametrize("function, diagnosis, says", WRONG, ids=[row[0].__name__ for row in WRONG])
def test_each_version_gets_its_diagnosis(function, diagnosis, says):
    verdict = examine(function, EXERCISE[function.__name__.partition("_")[0]])
    assert_diagnosed(verdict, diagnosis, says)


@pytest.mark.parametrize("name", EXERCISE.values())
def test_the_solution_passes_and_the_stub_is_not_implemented(name):
    assert_solution_passes_and_stub_is_not_implemented(name)


# -- what the counts are held against ---------------------------------------------------------------------------------

@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_flops_of_the_exercise_are_those_that_a_training_step_declares(recompute):
    """A processor of one FLOP per second: its clock counts them."""
    layers, h, s, V, B = 2, 64, 8, 256, 3
    config = Config("gpt2", V, h, layers, 1, context=s, recompute=recompute)

    def program(comm):
        trainer = Trainer(comm, Setup(config, sequence=s, global_batch=B, micro_batch=1), text.load(None))
        before = comm.clock
        trainer.gradients()
        return comm.clock - before

    counted, = run(program, 1, network=Network(Link(0.0, 0.0), flops=1.0))
    assert counted == flops_right(layers, h, s, V, B, recompute)[1] == of_transformer(config).flops(B, s, recompute)


@pytest.mark.parametrize("task", costs_cases.GPT3 + costs_cases.MOE, ids=lambda task: task.words)
def test_par_fits_and_is_no_slower_than_a_layout_that_people_use(task):
    best = design_verdict.training_of(task, **design_verdict.fastest(task))
    card = gpu(task.gpu)
    assert footprint(best, card).total() <= card.memory
    usual = layout(MOE if task.local_experts else GPT3 | {"tp": 8})(task.gpus)
    seconds = step(design_verdict.training_of(task, **usual), card).seconds
    assert design_verdict.par(task) == step(best, card).seconds <= seconds
