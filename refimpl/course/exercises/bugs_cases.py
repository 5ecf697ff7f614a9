"""What exercises 37 to 42 are tried on: code with a bug from a real report, beside the numbers that are right.

The first case of each is the report's own, small enough for a pencil; uneven and empty shards, padding and a single
rank come after it. A suspect is what somebody gets who mends the wrong thing.
"""

from functools import partial

import numpy as np

from refimpl.collectives import bounds
from refimpl.cost import traffic
from refimpl.course.exercises.cases import Case, Traffic, integers, one_all_reduce
from refimpl.course.exercises.costs_verdict import judge_numbers
from refimpl.course.exercises.pipeline_cases import Trial
from refimpl.model.activations import swiglu
from refimpl.testing import REPLICATED, cut

# -- 37: a tied table -------------------------------------------------------------------------------------------------


def tied_table(rng):
    """Megatron-LM #844 first: 1 and 3 on one stage, 10 and 20 on the other; then tables that several shards share."""
    by_hand = tied_case(np.array([[[5.0, 1], [7, 3]], [[10, 2], [20, 4]]]), (1, 0), 1)
    return [by_hand, *(tied_case(integers(rng, 2, D, n), starts, size)
                       for D, n, starts, size in ((3, 8, (4, 0), 4), (2, 7, (0, 3), 3), (1, 4, (2, 0), 2)))]


def tied_case(buffers, starts, size):
    """buffers (2, D, n): gradients of each stage and replica."""
    _, D, n = buffers.shape
    b, table = bounds(n, D), [slice(start, start + size) for start in starts]

    def shards(stages):
        """Each rank's shard, from the buffers of (stage, replica)."""
        return [stages[stage][d][b[d]:b[d + 1]] for stage in range(2) for d in range(D)]

    mean = buffers.mean(axis=1)
    whole = mean.copy()
    whole[0, table[0]] = whole[1, table[1]] = mean[0, table[0]] + mean[1, table[1]]
    averaged = mean.copy()
    averaged[0, table[0]] = averaged[1, table[1]] = whole[0, table[0]] / 2
    after = buffers.copy()                                # the shard is the mean, the rest is the replica's own
    for stage in range(2):
        for d in range(D):
            after[stage, d, b[d]:b[d + 1]] = mean[stage, b[d]:b[d + 1]]
    late = after.copy()
    for d in range(D):
        late[0, d, table[0]] = late[1, d, table[1]] = after[0, d, table[0]] + after[1, d, table[1]]
    own = buffers.copy()
    own[0][:, table[0]] = own[1][:, table[1]] = buffers[0][:, table[0]] + buffers[1][:, table[1]]
    every = lambda stages: [[stage] * D for stage in stages]
    suspects = [
        ("missing all-reduce", "each stage has only its own gradient of the table", shards(every(mean))),
        ("wrong addends", "the other stage's replica has the mean of other elements: what was added is a gradient of "
                          "one replica alone", shards(late)),
        ("everything added", "the whole buffers were added over the stages, and only the table is on both",
         shards(every(np.stack([mean.sum(axis=0)] * 2)))),
        ("off by a factor", "the two copies' gradients were averaged; they are addends of one gradient",
         shards(every(averaged))),
        ("missing all-reduce", "each replica has only the gradient of its own sequences", shards(own)),
    ]
    given = [{"buffer": buffers[stage, d], "start": np.int64(starts[stage]), "size": np.int64(size)}
             for stage in range(2) for d in range(D)]
    ways = {2 * D * size + 2 * (D - 1) * n}
    return Case(2 * D, f"{D} replica{'s' * (D > 1)}, {n} elements of which {size} are the table", given,
                {"shard": whole.reshape(-1)}, {"shard": 0},
                Traffic(tuple(ways), words=f"the tables summed over stages, and a reduce-scatter over replicas, are "
                                           f"{min(ways)} elements over all ranks"),
                suspects=tuple((kind, cause, "shard", arrays) for kind, cause, arrays in suspects))


# -- 38: a mean over tokens -------------------------------------------------------------------------------------------

def token_mean(rng):
    """torchtune #1875 first, then transformers #608; then more padding, and a rank without tokens."""
    by_hand = [np.array([[4.0, 0, 0]]), np.array([[1.0, 2, 3]])], [np.array([[1.0, 0, 0]]), np.ones((1, 3))]
    thirteen = [np.arange(1.0, 8)[None], np.append(np.arange(8.0, 14), 0)[None]], [np.ones((1, 7)),
                                                                                   np.array([[1.0] * 6 + [0]])]
    drawn = []
    for s, counts in ((4, ((4, 2), (3, 4, 1))), (5, ((5,), (0,), (2, 3))), (2, ((), (2,), (1,))), (3, ((1, 3),))):
        masks = [np.array([np.arange(s) < n for n in rank], float).reshape(-1, s) for rank in counts]
        drawn.append(([integers(rng, *mask.shape) for mask in masks], masks))
    return [mean_case(*one) for one in (by_hand, thirteen, *drawn)]


def mean_case(losses, masks):
    """The mean, and what known mistakes would make of it."""
    P, tokens = len(losses), sum(mask.sum() for mask in masks)
    each = [(loss * mask).sum() for loss, mask in zip(losses, masks)]
    total = np.float64(sum(each)) / tokens
    share = lambda values, counts: [value / max(count, 1) for value, count in zip(values, counts)]
    rows = [share((loss * mask).sum(axis=1), mask.sum(axis=1)) for loss, mask in zip(losses, masks)]
    positions = sum(mask.size for mask in masks)
    suspects = [
        ("mean of means", "this is the mean of the micro-batches' means, rank by rank",
         [np.mean([np.mean(row) if row else 0.0 for row in rows])] * P),
        ("mean of means", "this is the mean of the ranks' means", [np.mean(share(each, [m.sum() for m in masks]))] * P),
        ("mean of means", "this is the mean of all micro-batches' means", [np.mean(sum(rows, []))] * P),
        ("padding counted", "the sum is divided by all positions, padding included", [sum(each) / positions] * P),
        ("missing all-reduce", "this is the mean over the rank's own tokens", share(each, [m.sum() for m in masks])),
    ]
    two = {2 * (P - 1) * 2, traffic.doubling_all_reduce(2, P), 2 * traffic.doubling_all_reduce(1, P)}
    said = ", ".join(f"{mask.sum():g}" for mask in masks)
    return Case(P, f"{said} tokens", [{"losses": loss, "counts": mask} for loss, mask in zip(losses, masks)],
                {"loss": total, "dlosses": np.concatenate(masks) / tokens}, {"loss": REPLICATED, "dlosses": 0},
                Traffic(tuple(two), words="a sum and a number of tokens are two elements to all-reduce"),
                suspects=tuple((kind, cause, "loss", arrays) for kind, cause, arrays in suspects) if P > 1 else ())


# -- 39: gates and ups ------------------------------------------------------------------------------------------------

def gate_up_shard(rng):
    """NeMo Automodel PR #1324: four gates and four ups on two ranks; then features that do not divide, and one rank."""
    return [gated_case(P, *(integers(rng, *shape) / 8 for shape in ((T, h), (h, 2 * f), (f, h))))
            for P, T, h, f in ((2, 2, 3, 4), (4, 3, 5, 8), (3, 2, 4, 7), (4, 2, 3, 2), (1, 2, 3, 4))]


def gated_case(P, x, fused, down):
    """The output, and what known mistakes would make of it."""
    gated = lambda matrix: swiglu(x @ matrix)[0]
    f, halves = len(down), np.split(fused, 2, axis=1)
    rows = lambda rank: cut(down, 0, rank, P)
    suspects = []
    if P > 1 and f % P == 0:
        naive = sum(gated(cut(fused, 1, rank, P)) @ rows(rank) for rank in range(P))
        swapped = gated(np.concatenate(halves[::-1], axis=1)) @ down
        suspects = [("wrong cut", "neighbouring columns were cut off together: half of the ranks have gates only, the "
                                  "others ups only", naive),
                    ("wrong order", "gates and ups are exchanged", swapped)]
    return Case(P, f"fused {fused.shape}", [{"x": x, "fused": fused, "down": down}] * P, {"y": gated(fused) @ down},
                {"y": REPLICATED}, one_all_reduce(x.size, P),
                suspects=tuple((kind, cause, "y", [array] * P) for kind, cause, array in suspects))


# -- 40: a skipped step -----------------------------------------------------------------------------------------------

RATE = 0.5                                                # as in the file


def overflow_step(rng):
    """pytorch #136009 first: inf on rank 0 of two; then on the last rank, on none, on all, with empty shards, alone."""
    return [overflow_case(integers(rng, n), np.where(np.isin(np.arange(n), bad), np.inf, integers(rng, n)), scale, P)
            for P, n, bad, scale in ((2, 4, (1,), 8.0), (4, 10, (9,), 64.0), (3, 7, (), 2.0), (2, 4, (0, 3), 16.0),
                                     (4, 2, (1,), 4.0), (1, 3, (2,), 8.0), (1, 3, (), 8.0))]


def overflow_case(parameter, gradient, scale, P):
    """What is right, and what known mistakes would make of it."""
    bad = not np.isfinite(gradient).all()
    after = lambda g: parameter - RATE * (g / scale)
    shards = lambda x: [cut(x, 0, rank, P) for rank in range(P)]
    alone = [p if not np.isfinite(g).all() else new
             for p, g, new in zip(shards(parameter), shards(gradient), shards(after(gradient)))]
    zeroed = np.where(np.isfinite(gradient), gradient, 0.0)
    suspects = [("decided alone", "this rank has taken the step that another rank has skipped", "parameter", alone),
                ("not skipped", "elements that overflowed were left out, the others have taken the step", "parameter",
                 shards(after(zeroed)))] if bad else [
                ("off by a factor", "the gradient still has the scale in it", "parameter",
                 shards(parameter - RATE * gradient))]
    words = f"{len(parameter)} parameters, scale {scale:g}, " + ("an overflow" if bad else "no overflow")
    given = [{"parameter": p, "gradient": g, "scale": np.float64(scale)}
             for p, g in zip(shards(parameter), shards(gradient))]
    return Case(P, words, given, {"parameter": parameter if bad else after(gradient),
                                  "scale": np.float64(scale / 2 if bad else scale)},
                {"parameter": 0, "scale": REPLICATED}, one_all_reduce(1, P), suspects=tuple(suspects))


# -- 41: a mean over rounds -------------------------------------------------------------------------------------------

ROUNDS = ([[1.0] * 4] * 2, [[1.0, 2, 6]], [[2.0, 4], [6.0, 8], [1.0, 3]], [[2.0, 4, 9], [7.0]], [[], [3.0, 5]])


def accumulated_mean():
    """torchtitan #1733 first; one round, three, rounds of different length, an empty one."""
    trials = []
    for rounds in ROUNDS:
        everything, count = sum(map(sum, rounds)), sum(map(len, rounds))
        scaled = 0.0
        for microbatches in rounds:
            scaled = (scaled + sum(microbatches)) / max(len(microbatches), 1)
        means = [sum(microbatches) / max(len(microbatches), 1) for microbatches in rounds]
        suspects = [("scaled again", "what earlier rounds had brought was divided again in later ones", (scaled,)),
                    ("mean of means", "each round's mean counts alike, however few micro-batches are in it",
                     (sum(means) / len(rounds),)),
                    ("never divided", "this is the sum of the gradients", (everything,)),
                    ("wrong denominator", "the rounds' means were added up", (sum(means),)),
                    ("wrong denominator", "this was divided by the number of rounds, too: once is enough",
                     (everything / count / len(rounds),))]
        words = f"rounds {rounds}"
        trials.append(Trial(words, lambda function, rounds=rounds: function([list(one) for one in rounds]),
                            partial(judge_numbers, words, ("mean",), (everything / count,), suspects)))
    return trials


# -- 42: a column-parallel backward -----------------------------------------------------------------------------------

def column_backward(rng):
    """Two ranks first; then columns that do not divide, fewer than ranks, one rank."""
    return [column_case(P, *(integers(rng, *shape) for shape in ((T, i), (i, o), (T, o))))
            for P, T, i, o in ((2, 2, 3, 4), (4, 5, 7, 12), (3, 3, 4, 7), (4, 2, 3, 2), (1, 2, 3, 4))]


def column_case(P, x, w, dy):
    """The output and both gradients."""
    given = [{"x": x, "w": cut(w, 1, rank, P), "dy": cut(dy, 1, rank, P)} for rank in range(P)]
    return Case(P, f"x {x.shape} and w {w.shape}", given, {"y": x @ w, "dx": dy @ w.T, "dw": x.T @ dy},
                {"y": 1, "dx": REPLICATED, "dw": 1}, one_all_reduce(x.size, P))


TRIALS = {"accumulated_mean": accumulated_mean}
CASES = {"tied_table": tied_table, "token_mean": token_mean, "gate_up_shard": gate_up_shard,
         "overflow_step": overflow_step, "column_backward": column_backward}
