"""What the exercises of lessons 03, 11 and 13 are tried on: numbers that were counted, and layouts that are weighed.

Model states are counted on ranks that hold them, activations on ranks that have run a layer, bubbles in lists of
actions; the first case of each is one to follow by hand. FLOPs are those of cost/sizes.py, which a test holds against
the virtual clock of a training step.
"""

from functools import cache, partial

import numpy as np

from refimpl.cost.models import custom
from refimpl.course.exercises.costs_verdict import judge_numbers
from refimpl.course.exercises.design_verdict import Task, judge_design
from refimpl.course.exercises.pipeline_cases import Trial
from refimpl.measure.meter import held_bytes
from refimpl.model.adam import Adam
from refimpl.model.config import Config, block_shapes
from refimpl.parallel import block, shards
from refimpl.parallel.zero import Zero
from refimpl.pipeline import build, simulate
from refimpl.precision import Precision
from refimpl.world.local import run_local

# -- lesson 03: model states ------------------------------------------------------------------------------------------

STATES = ((1000, 0, 1, 2), (1000, 1, 4, 2), (1200, 2, 4, 2), (1200, 3, 4, 2), (960, 1, 8, 4), (960, 2, 8, 4),
          (840, 3, 3, 4), (840, 0, 3, 4))                       # parameters, stage, ranks, bytes of a gradient


@cache
def states_counted(psi, zero, ranks, gradient):
    """(weights, gradients, optimizer) that a rank holds at rest, counted by the meter."""
    def program(comm):
        parameters = {"w": np.zeros(psi, np.float32)}
        precision = Precision("bfloat16", {2: "bfloat16", 4: "float32"}[gradient])
        held = Zero(parameters, [["w"]], comm, zero, Adam(), precision)
        found = held_bytes(**held.resident)
        return found["parameters"], found["gradients"], found["optimizer"]

    return run_local(program, ranks)[0]


def states_suspects(psi, zero, ranks, gradient):
    """What known mistakes come to."""
    def cut(stage, gradient=gradient, optimizer=12, begins=(3, 2, 1), alone=False):
        return tuple(psi * item / (ranks if stage == first or stage > first and not alone else 1)
                     for item, first in zip((2, gradient, optimizer), begins, strict=True))

    return [("copy forgotten", "the optimizer has two moments, but no float32 copy of the weights",
             cut(zero, optimizer=8)),
            ("wrong dtype", "gradients are counted in another dtype than they have", cut(zero, gradient=6 - gradient)),
            ("wrong cut", "the stages are in the wrong order: the optimizer is cut first, the weights last",
             cut(zero, begins=(1, 2, 3))),
            ("wrong cut", f"only one kind is cut; ZeRO {zero} also cuts what the stages before it do",
             cut(zero, alone=True)),
            *[("wrong cut", f"this is what a rank holds under ZeRO {stage}", cut(stage))
              for stage in range(4) if stage != zero]]


def model_states():
    """All four stages, both conventions."""
    found = []
    for case in STATES:
        psi, zero, ranks, gradient = case
        words = f"{psi} parameters, ZeRO {zero} on {ranks} rank{'s' * (ranks > 1)}, gradients of {gradient} bytes"
        found.append(Trial(words, lambda function, case=case: function(*case),
                           partial(judge_numbers, words, ("weights", "gradients", "optimizer"),
                                   states_counted(*case), states_suspects(*case))))
    return found


# -- lesson 03: what a layer keeps ------------------------------------------------------------------------------------

KEPT = ((12, 1, 16, 2, 1, False, "none"), (8, 2, 16, 4, 2, False, "none"), (8, 2, 16, 4, 4, True, "none"),
        (16, 1, 32, 4, 2, False, "selective"), (16, 3, 32, 4, 2, True, "selective"), (8, 2, 16, 4, 2, False, "full"),
        (8, 2, 16, 4, 2, True, "full"))                          # s b h a t, sequence-parallel, recompute
# In the first a s is not h: else no masks at all would be as much too little as one copy of the probabilities.


@cache
def kept_counted(s, b, h, a, t, sequence_parallel, recompute):
    """Bytes that a layer keeps on rank 0 of t, counted after its forward in float16; statistics of norms apart."""
    config = Config("gpt2", 16, h, 1, a, context=s, dropout=0.1, recompute=recompute)
    whole = {name: np.zeros(shape, np.float16) for name, shape in block_shapes(config).items()}

    def program(comm):
        mine = shards.shard(whole, config, comm.rank, comm.size)
        x = np.ones((b, s // comm.size if sequence_parallel else s, h), np.float16)
        _, saved = block.forward(x, mine, config, comm, sequence_parallel=sequence_parallel)
        return held_bytes(parameters=mine, saved=saved)["saved"]

    return run_local(program, t)[0]


def kept_formula(s, b, h, a, t, sequence_parallel, recompute, around=10, inside=24, core=5):
    """Bytes by the formula, with numbers to get wrong."""
    sbh, outside = s * b * h, t if sequence_parallel else 1
    if recompute == "full":
        return 2 * sbh / outside
    return sbh * (around / outside + inside / t + (core * a * s / (h * t) if recompute == "none" else 0))


def kept_suspects(*case):
    """What known mistakes come to."""
    *sizes, t, sequence_parallel, recompute = case
    wrong = lambda sequence_parallel=sequence_parallel, recompute=recompute, **numbers: (
        kept_formula(*sizes, t, sequence_parallel, recompute, **numbers),)
    s, b, h, a = sizes
    whole_core = (wrong()[0] + (5 * a * s * s * b * (1 - 1 / t) if recompute == "none" else 0),)
    return [("wrong cut", "all is divided by t, but without sequence parallelism norms, inputs and masks are whole"
             if not sequence_parallel else "sequence parallelism cuts what lies outside the two blocks, too",
             wrong(not sequence_parallel)),
            ("wrong cut", "nothing is divided by t", (kept_formula(*sizes, 1, False, recompute),)),
            ("probabilities", "the probabilities are missing", wrong(recompute="selective")
             if recompute == "none" else (-1.0,)),
            ("probabilities", "of the probabilities only one copy is counted, 2 bytes each", wrong(core=2)),
            ("probabilities", "the probabilities are not cut, though the heads are", whole_core),
            ("recomputation", "the probabilities are kept, though they are computed again", wrong(recompute="none")
             if recompute == "selective" else (-1.0,)),
            ("recomputation", "with full recomputation only the layer's input is kept", wrong(recompute="none")
             if recompute == "full" else (-1.0,)),
            ("recomputation", "with full recomputation only the layer's input is kept", wrong(recompute="selective")
             if recompute == "full" else (-1.0,)),
            ("wrong dtype", "the masks are counted with 2 bytes an element; they have 1", wrong(around=12, core=6)),
            ("copy forgotten", "hidden features are counted once; they are kept before GELU and after it",
             wrong(inside=16)),
            ("copy forgotten", "hidden features are counted as h wide; they are four times as wide", wrong(inside=12)),
            ("copy forgotten", "queries, keys and values are three arrays; one is counted", wrong(inside=20)),
            ("copy forgotten", "the masks of dropout are missing", wrong(around=8, core=4)),
            ("copy forgotten", "the two masks behind the blocks are missing", wrong(around=8))]


def layer_keeps():
    """With and without tensor and sequence parallelism, all three ways to recompute."""
    found = []
    for case in KEPT:
        s, b, h, a, t, sequence_parallel, recompute = case
        words = (f"s={s}, b={b}, h={h}, a={a}, t={t}{', sequence-parallel' * sequence_parallel}, recompute {recompute}")
        found.append(Trial(words, lambda function, case=case: function(*case),
                           partial(judge_numbers, words, ("bytes",), (kept_counted(*case),), kept_suspects(*case))))
    return found


# -- lesson 11: layouts -----------------------------------------------------------------------------------------------

GPT3 = [Task("gpt3-175b", "a100-80gb", gpus, 1536, 2048) for gpus in (1024, 512)]
MOE = [Task("moe-409b", "h100-sxm", gpus, 1024, 4096, flash=True, local_experts=True) for gpus in (1024, 512)]


def designs(tasks):
    """A layout for each number of GPUs."""
    return [Trial(task.words, lambda function, gpus=task.gpus: function(gpus), partial(judge_design, task))
            for task in tasks]


# -- lesson 13: bubbles and FLOPs -------------------------------------------------------------------------------------

BUBBLES = ((4, 8, 1), (8, 64, 1), (4, 8, 2), (8, 32, 4), (2, 6, 3), (1, 4, 1))


def bubble_shares():
    """Counted in the timeline of the list of actions."""
    found = []
    for p, m, v in BUBBLES:
        t = simulate(build("interleaved", p, m, v) if v > 1 else build("1f1b", p, m))
        idle = t.makespan - t.ideal
        expected = idle / t.ideal, idle / t.makespan
        x = (p - 1) / m
        suspects = [("wrong denominator", "the two shares are the other way round", expected[::-1]),
                    ("wrong denominator", "both are shares of the ideal time", (expected[0],) * 2),
                    ("wrong denominator", "both are shares of the total time", (expected[1],) * 2),
                    ("wrong denominator", "the total is one slot too long: each stage waits for the p-1 others",
                     (expected[0], (p - 1) / (v * m + p))),
                    ("wrong addends", "p stages are taken to wait; each waits for the p-1 others",
                     (p / (v * m), p / (v * m + p))),
                    ("wrong addends", "the chunks are forgotten", (x, x / (1 + x)))]
        words = f"p={p}, m={m}, v={v}"
        found.append(Trial(words, lambda function, case=(p, m, v): function(*case),
                           partial(judge_numbers, words, ("share of the ideal time", "share of the total time"),
                                   expected, suspects)))
    return found


FLOPS = ((2, 16, 8, 64, 1, "none"), (2, 16, 8, 64, 3, "full"), (2, 16, 8, 64, 3, "selective"),
         (96, 12288, 2048, 51200, 1536, "full"), (48, 6144, 2048, 51200, 4, "selective"),
         (96, 12288, 2048, 51200, 1536, "none"))               # layers, hidden, sequence, vocabulary, batch, recompute


def step_flops():
    """Small ones, which a clock counted, and those of published runs."""
    found = []
    for layers, h, s, V, B, recompute in FLOPS:
        model = custom(layers, h, max(h // 64, 1), V, tied=True, sequence=s)
        expected = model.flops(B, s), model.flops(B, s, recompute)
        matrices, core, head = 24 * B * layers * s * h * h, 4 * B * layers * s * s * h, 2 * B * s * h * V
        again = {"none": 0, "selective": core, "full": matrices + core}[recompute]
        once = matrices + core + head
        suspects = [
            ("recomputation", "what is computed again counts as the model's own", (expected[1], expected[1])),
            ("recomputation", "what is computed again is missing from the second number", (expected[0], expected[0])),
            ("recomputation", "the head is not computed again, only layers are", (3 * once, 4 * once)),
            ("recomputation", "selective recomputation does the core once more, not the whole layer",
             (3 * once, 3 * once + matrices + core)),
            ("wrong addends", "backward takes twice the forward: it has two products for each of forward's",
             (2 * once, 2 * once + again)),
            ("core forgotten", "attention's core, s by s, is missing",
             (3 * (once - core), 3 * (once - core) + max(again - core, 0))),
            ("core forgotten", "attention's core has two products, scores and their sum of values",
             (3 * (once - core / 2), 3 * (once - core / 2) + max(again - core / 2, 0))),
            ("core forgotten", "6 FLOPs a parameter and token leave out attention's core, and here the output table",
             (3 * matrices, 3 * matrices)),
            ("head forgotten", "the output table is missing", (3 * (once - head), 3 * (once - head) + again)),
        ]
        words = f"{layers} layers, h={h}, s={s}, V={V}, B={B}, recompute {recompute}"
        found.append(Trial(words, lambda function, case=(layers, h, s, V, B, recompute): function(*case),
                           partial(judge_numbers, words, ("model FLOPs", "hardware FLOPs"), expected, suspects)))
    return found


TRIALS = {"model_states": model_states, "layer_keeps": layer_keeps, "gpt3_layout": partial(designs, GPT3),
          "moe_layout": partial(designs, MOE), "bubble_shares": bubble_shares, "step_flops": step_flops}
