"""What the exercises of lessons 06, 10 and 12 are tried on: meshes, files of a checkpoint, gradients on ranks.

The first case of each is one that a learner can follow by hand; orders of all kinds, nodes that do not divide, files
that overlap, empty shards and a single rank come after it.
"""

from functools import partial

import numpy as np

from refimpl.collectives import bounds
from refimpl.cost import traffic
from refimpl.course.exercises import composing_verdict as verdict
from refimpl.course.exercises.cases import Case, Traffic, integers
from refimpl.course.exercises.pipeline_cases import Trial
from refimpl.testing import REPLICATED, cut

# -- the mesh ---------------------------------------------------------------------------------------------------------

DEFAULT, DP_LAST = "tp-cp-dp-pp", "tp-cp-pp-dp"
MESHES = (                                                           # tp, cp, dp, pp, order
    (2, 1, 2, 2, DEFAULT), (2, 2, 2, 2, DP_LAST), (2, 3, 2, 2, "pp-dp-cp-tp"), (4, 1, 3, 2, "dp-tp-pp-cp"),
    (1, 1, 1, 5, DEFAULT), (1, 1, 1, 1, DEFAULT))
NODES = (                                                            # with a node's size: picotron #17 is the second
    (2, 1, 2, 2, DEFAULT, 4), (2, 2, 2, 2, DEFAULT, 8), (2, 2, 2, 2, DP_LAST, 8), (16, 1, 2, 1, DEFAULT, 8),
    (3, 1, 4, 1, DEFAULT, 8), (2, 1, 2, 2, "pp-dp-cp-tp", 4), (2, 1, 1, 2, DEFAULT, 1), (8, 1, 1, 2, DEFAULT, 8),
    (1, 1, 1, 1, DEFAULT, 8))


def named(tp, cp, dp, pp):
    """Sizes by axis; not in the default order, so that nobody can rely on the dict's."""
    return {"pp": pp, "tp": tp, "dp": dp, "cp": cp}


def words_of(sizes, order):
    """A mesh in words: "tp 2, dp 2, pp 2, order tp-cp-dp-pp"."""
    larger = [f"{axis} {sizes[axis]}" for axis in ("tp", "cp", "dp", "pp") if sizes[axis] > 1]
    return f"{', '.join(larger) or 'one rank'}, order {order}"


def rank_to_coordinates():
    """All ranks of some meshes."""
    trials = []
    for *four, order in MESHES:
        sizes, world = named(*four), four[0] * four[1] * four[2] * four[3]
        run = lambda function, sizes=sizes, order=order, world=world: [function(rank, dict(sizes), order)
                                                                       for rank in range(world)]
        trials.append(Trial(words_of(sizes, order), run, partial(verdict.judge_coordinates, sizes, order)))
    return trials


def axis_groups():
    """All axes of the same meshes."""
    return [Trial(f"{words_of(sizes, order)}, groups along {axis}",
                  lambda function, args=(axis, sizes, order): function(args[0], dict(args[1]), args[2]),
                  partial(verdict.judge_groups, axis, sizes, order))
            for *four, order in MESHES for sizes in [named(*four)] for axis in ("tp", "dp", "pp", "cp")]


def crossing_axes():
    """Nodes that fit, nodes that do not, and one GPU a node."""
    return [Trial(f"{words_of(sizes, order)}, nodes of {node_size}",
                  lambda function, args=(sizes, order, node_size): function(dict(args[0]), *args[1:]),
                  partial(verdict.judge_crossing, sizes, order, node_size))
            for *four, order, node_size in NODES for sizes in [named(*four)]]


# -- checkpoints ------------------------------------------------------------------------------------------------------

FILES = (                                                            # size, [(start, stop)] of the files, new ranks
    (10, [(0, 3), (3, 6), (6, 10)], 2), (10, [(6, 10), (0, 3), (3, 6)], 3), (10, [(0, 5), (0, 5), (5, 10), (5, 10)], 4),
    (7, [(0, 4), (2, 7)], 2), (3, [(0, 1), (1, 2), (2, 2), (2, 3)], 5), (10, [(0, 3), (6, 10)], 2),
    (10, [(0, 3), (3, 9)], 2), (6, [(1, 6)], 1))


def reshard():
    """Files of whole arrays, in any order and more than once; and of arrays with a hole."""
    trials = []
    for size, spans, ranks in FILES:
        said = ", ".join(f"{start}..{stop - 1}" if stop > start else "none" for start, stop in spans)
        words = f"{size} elements, files with {said}, {ranks} new rank{'s' * (ranks > 1)}"
        trials.append(Trial(words, partial(run_reshard, size=size, spans=spans, ranks=ranks),
                            partial(verdict.judge_reshard, size, spans, ranks, words)))
    return trials


def run_reshard(function, size, spans, ranks):
    """(what it returned, the files after it); a ValueError is an answer, too."""
    whole = np.arange(size) + 100.0
    files = [(start, whole[start:stop].copy()) for start, stop in spans]
    try:
        returned = function(files, size, ranks)
    except ValueError as error:
        returned = error
    return returned, files


# -- sequence parallelism ---------------------------------------------------------------------------------------------

LAYERS = ((1, 4, 8, 4, True), (1, 4, 8, 4, False), (2, 8, 16, 2, True), (2, 8, 16, 2, False), (1, 8, 16, 8, True),
          (1, 3, 8, 1, True), (3, 4, 8, 1, False))                   # b, s, h, t, with sequence parallelism


def layer_elements():
    """A layer with and without, on some ranks and on one."""
    return [Trial(f"b {b}, s {s}, h {h}, {t} rank{'s' * (t > 1)}, {'with' if cut_too else 'without'} SP",
                  lambda function, sizes=(b, s, h, t, cut_too): function(*sizes),
                  partial(verdict.judge_elements, b, s, h, t, cut_too)) for b, s, h, t, cut_too in LAYERS]


def finish_gradients(rng):
    """Gradients as the operators leave them; the first as in Megatron-LM #1446: positions that add 1, 2, 3, 4."""
    by_hand = gradients(2, np.array([[1.0], [2], [3], [4]]), 2, rng)
    sizes = (4, 8, 3, 8), (3, 7, 2, 4), (4, 2, 1, 3), (1, 3, 2, 2)
    return [by_hand, *(gradients(P, integers(rng, s, h), f, rng) for P, s, h, f in sizes)]


def gradients(P, contributions, f, rng):
    """contributions (s, h): what each position adds to a norm's gradient and to its own row of the positions' table."""
    s, h = contributions.shape
    bias, weight, b = integers(rng, h), integers(rng, h, f), bounds(s, P)
    norms = [contributions[b[r]:b[r + 1]].sum(axis=0) for r in range(P)]
    number = np.arange(s)[:, None]
    tables = [np.where((b[r] <= number) & (number < b[r + 1]), contributions, 0.0) for r in range(P)]
    given = [{"norm": norms[r], "positions": tables[r], "row_bias": bias, "column_weight": cut(weight, 1, r, P)}
             for r in range(P)]
    whole = {"norm": contributions.sum(axis=0), "positions": contributions, "row_bias": bias, "column_weight": weight}
    suspects = [
        ("missing all-reduce", "this is the sum over the rank's own positions", "norm", norms),
        ("missing all-reduce", "this has rows of the rank's own positions and zeros elsewhere", "positions", tables),
        ("off by a factor", f"{P} times too small: the mean over the ranks, where the sum is wanted", "norm",
         [whole["norm"] / P] * P),
        ("off by a factor", f"{P} times too small: the mean over the ranks, where the sum is wanted", "positions",
         [whole["positions"] / P] * P),
        ("off by a factor", f"{P} times too large: it was whole on every rank already", "row_bias", [bias * P] * P),
    ]
    if f % P == 0:
        total = sum(cut(weight, 1, r, P) for r in range(P))
        suspects.append(("wrong addends", "other ranks' columns were added to the rank's own", "column_weight",
                         [total] * P))
    shard = {"norm": REPLICATED, "positions": REPLICATED, "row_bias": REPLICATED, "column_weight": 1}
    return Case(P, f"{s} positions, {h} features", given, whole, shard, two_all_reduces(h, s * h, P),
                suspects=tuple(suspects) if P > 1 else ())


def two_all_reduces(n, k, P):
    """Those of n and of k elements, by whichever algorithms, or of both as one."""
    ways = [(2 * (P - 1) * size, traffic.doubling_all_reduce(size, P)) for size in (n, k, n + k)]
    totals = {a + b for a in ways[0] for b in ways[1]} | set(ways[2])
    return Traffic(tuple(sorted(totals)), words=f"summing two of the four gradients sends {ways[2][0]} over all ranks")


TRIALS = {"rank_to_coordinates": rank_to_coordinates, "axis_groups": axis_groups, "crossing_axes": crossing_axes,
          "reshard": reshard, "layer_elements": layer_elements}
CASES = {"finish_gradients": finish_gradients}
