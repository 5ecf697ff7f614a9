"""What the exercises of lessons 02 and 04 are tried on: plans, which need no ranks, and steps, which do.

The first case of each is one that a learner can follow by hand; shards that are not equal, empty ones, padding that
spans ranks and a single rank come after it.
"""

from functools import partial

import numpy as np

from refimpl.collectives import bounds
from refimpl.course.exercises import replicas_verdict as verdict
from refimpl.course.exercises.cases import Case, Traffic, integers, one_all_reduce
from refimpl.course.exercises.pipeline_cases import Trial
from refimpl.model.adam import Adam, Moments, update
from refimpl.testing import REPLICATED, cut

ADAM = Adam(rate=0.1, beta1=0.8, beta2=0.9)                          # as in the file of exercise 13

# -- plans ------------------------------------------------------------------------------------------------------------

MODEL = {"embed": 6, "block 0": 4, "block 1": 4, "head": 2}
TWO = {"w1": 4, "w2": 4}                                             # DeepSpeed #2343


def bucket_plan():
    """Sizes and caps, also smaller than a parameter."""
    asked = [(MODEL, 8), *((TWO, cap) for cap in (1, 4, 6, 8)), (MODEL, 100), ({"a": 9, "b": 1, "c": 1, "d": 9}, 3),
             ({"w": 5}, 5), ({}, 4)]
    return [Trial(f"sizes {sizes}, cap {cap}", lambda function, sizes=sizes, cap=cap: function(dict(sizes), cap),
                  partial(verdict.judge_buckets, sizes, cap)) for sizes, cap in asked]


def unit_partition():
    """Units whose padding is shorter and longer than a shard."""
    asked = [({"w": 6, "b": 3, "v": 4}, 4, 4), ({"w": 6, "b": 3, "v": 4}, 8, 8),            # DeepSpeed #6974, #1422
             ({"w": 57}, 2, 4), ({"w": 5, "b": 1}, 3, 3), ({"w": 2, "b": 1}, 4, 12), ({"w": 7, "b": 2}, 1, 1),
             ({"w": 266000, "b": 240}, 768, 1536)]
    return [Trial(f"sizes {sizes}, {ranks} rank{'s' * (ranks > 1)}, alignment {alignment}",
                  lambda function, args=(sizes, ranks, alignment): function(dict(args[0]), *args[1:]),
                  partial(verdict.judge_partition, sizes, ranks, alignment)) for sizes, ranks, alignment in asked]


def zero_3_order():
    """Some units, two, and one."""
    return [Trial(f"{units} unit{'s' * (units > 1)}", lambda function, units=units: function(units),
                  partial(verdict.judge_order, units)) for units in (3, 2, 5, 1)]


TRIALS = {"bucket_plan": bucket_plan, "unit_partition": unit_partition, "zero_3_order": zero_3_order}


# -- steps on ranks ---------------------------------------------------------------------------------------------------

def zero_1_step(rng):
    """Gradients that differ, moments from steps before."""
    return [adam_case(P, n, step, rng) for P, n, step in ((2, 4, 2), (4, 8, 3), (3, 10, 1), (4, 2, 2), (1, 3, 5))]


def adam_case(P, n, step, rng):
    """One step, and what known mistakes would make of it."""
    gradients, parameter, m = integers(rng, P, n), integers(rng, n), integers(rng, n) if step > 1 else np.zeros(n)
    v = m**2

    def stepped(gradient, step=step):
        new = parameter.copy(), m.copy(), v.copy()
        update(new[0], gradient, Moments(*new[1:]), step, ADAM)
        return new

    new, new_m, new_v = stepped(gradients.sum(axis=0))
    b = bounds(n, P)
    alone, own = parameter.copy(), []
    for rank in range(P):
        part = slice(b[rank], b[rank + 1])
        alone[part] = stepped(gradients[rank])[0][part]
        own.append(parameter.copy())
        own[rank][part] = new[part]
    mean, early = stepped(gradients.mean(axis=0)), stepped(gradients.sum(axis=0), 1)
    suspects = [
        ("missing all-reduce", "each shard was updated with the gradient of its own rank alone", "parameter",
         [alone] * P),
        ("missing all-gather", "only the rank's own shard is new, the others are as they were", "parameter", own),
        ("off by a factor", f"{P} times too small a gradient: this is what Adam does with the mean", "parameter",
         [mean[0]] * P),
        ("wrong values", "this is what Adam does in its first step; this one is another", "parameter", [early[0]] * P),
    ] if P > 1 else []
    given = [{"gradient": gradients[rank], "parameter": parameter, "m": cut(m, 0, rank, P), "v": cut(v, 0, rank, P),
              "step": np.int64(step)} for rank in range(P)]
    return Case(P, f"{n} parameters, step {step}", given, {"parameter": new, "m": new_m, "v": new_v},
                {"parameter": REPLICATED, "m": 0, "v": 0}, Traffic((2 * (P - 1) * n,)), suspects=tuple(suspects))


def clip_norm(rng):
    """13 first, as in torchtitan #596 and NeMo RL #3788; a norm below the limit; no gradients at all."""
    by_hand = clip_case(2, np.array([3.0, 4]), np.array([12.0]), 1.0)
    drawn = [clip_case(P, integers(rng, n), integers(rng, k), most)
             for P, n, k, most in ((4, 10, 3, 2.0), (3, 2, 1, 5.0), (3, 7, 2, 1000.0), (1, 4, 2, 1.0))]
    return [by_hand, *drawn, clip_case(2, np.zeros(4), np.zeros(1), 1.0)]


def clip_case(P, sharded, replicated, most):
    """The clipped gradients, and what known mistakes would make of them."""
    square = lambda x: (x**2).sum()
    shards = [cut(sharded, 0, rank, P) for rank in range(P)]

    def by(norm):
        return sharded * (most / norm if norm > most else 1.0)

    norm = np.sqrt(square(sharded) + square(replicated))
    suspects = [
        ("wrong addends", f"what every rank has counts {P} times in the norm",
         P * square(replicated) + square(sharded)),
        ("wrong addends", "what every rank has does not count in the norm", square(sharded)),
        ("wrong addends", "norms were added up; it is their squares that add up",
         sum(np.sqrt(square(shard) + square(replicated)) for shard in shards) ** 2),
        ("wrong addends", "norms were added up; it is their squares that add up",
         (sum(np.sqrt(square(shard)) for shard in shards) + np.sqrt(square(replicated))) ** 2),
    ]
    suspects = [(kind, cause, "sharded", [cut(by(np.sqrt(squares)), 0, rank, P) for rank in range(P)])
                for kind, cause, squares in suspects]
    local = [cut(by(np.sqrt(square(shard) + square(replicated))), 0, rank, P) for rank, shard in enumerate(shards)]
    suspects.insert(0, ("missing all-reduce", "each rank has taken the norm of what it has itself", "sharded", local))
    factor = most / norm if norm > most else 1.0
    given = [{"sharded": shard, "replicated": replicated, "most": np.float64(most)} for shard in shards]
    return Case(P, f"sharded gradients of {len(sharded)}, replicated of {len(replicated)}, most {most:g}", given,
                {"sharded": sharded * factor, "replicated": replicated * factor},
                {"sharded": 0, "replicated": REPLICATED}, one_all_reduce(1, P),
                suspects=tuple(suspects) if P > 1 and norm > most else ())


CASES = {"zero_1_step": zero_1_step, "clip_norm": clip_norm}
