"""What the exercises of lesson 09 are tried on: sequences that overflow, ranks without tokens, experts without any.

The first case of each is one that a learner can follow by hand.
"""

from functools import partial

import numpy as np

from refimpl.collectives import bounds
from refimpl.cost import traffic
from refimpl.course.exercises import experts_verdict as verdict
from refimpl.course.exercises.cases import Case, Traffic, integers
from refimpl.course.exercises.pipeline_cases import Trial
from refimpl.testing import REPLICATED

# -- without ranks ----------------------------------------------------------------------------------------------------

def expert_capacity():
    """All tokens at one expert (DeepSpeed #1658), a factor beyond the sequence (#8155), and choices drawn."""
    asked = [(np.zeros((5, 1), int), 4, 1, 4), (np.array([[0, 1], [1, 0], [0, 1], [1, 0]]), 2, 4, 0),
             (np.array([[0, 1], [2, 0], [1, 0], [0, 3], [0, 2], [3, 0]]), 4, 1.1, 0), (np.zeros((0, 2), int), 4, 1, 0)]
    rng = np.random.default_rng(2024)
    for s, k, experts, factor in ((8, 1, 3, 1.25), (10, 2, 4, 1), (12, 3, 8, 0.5), (6, 2, 4, 2), (1, 2, 5, 1)):
        popular = rng.random((s, experts)) * np.arange(experts, 0, -1)
        asked.append((np.argsort(-popular, axis=1)[:, :k], experts, factor, 0))
    return [Trial(f"{s} tokens, {k} choices each, {experts} experts, factor {factor}, least {least}",
                  lambda function, args=(choice, experts, factor, least): function(args[0].copy(), *args[1:]),
                  partial(verdict.judge_capacity, choice, experts, factor, least))
            for choice, experts, factor, least in asked for s, k in (choice.shape,)]


def moe_combine():
    """Rows of the file's example, with choices left out, one choice each, and no rows at all."""
    rng, trials = np.random.default_rng(2024), []
    asked = ((2, 2, 3, 3, 0), (6, 2, 4, 4, 3), (5, 1, 2, 3, 0), (4, 3, 5, 6, 1), (3, 2, 4, 4, 6))
    for T, k, h, experts, dropped in asked:
        choice = np.array([[2, 0], [1, 2]]) if T == 2 else np.argsort(rng.random((T, experts)), axis=1)[:, :k]
        taken = choice.reshape(-1).copy()
        taken[rng.permutation(T * k)[:dropped]] = experts
        order = np.argsort(taken, kind="stable")[:T * k - dropped]
        rows, weights = integers(rng, len(order), h), rng.integers(1, 16, (T, k)) / 16
        trials.append(Trial(f"{T} tokens, {k} choice{'s' * (k > 1)} each, {len(order)} rows of {h}",
                            lambda function, args=(rows, order, weights): function(*(a.copy() for a in args)),
                            partial(verdict.judge_combine, rows, order, weights)))
    return trials


TRIALS = {"expert_capacity": expert_capacity, "moe_combine": moe_combine}


# -- on ranks ---------------------------------------------------------------------------------------------------------

def dispatch_counts(rng):
    """The file's example; experts that cannot be dealt out evenly, fewer than ranks; tokens on one rank only."""
    by_hand = [np.array([[0, 1], [1, 3]]), np.array([[2, 3], [3, 0]])]
    drawn = [(P, E, [np.argsort(rng.random((T, E)), axis=1)[:, :k] for T in tokens])
             for P, E, k, tokens in ((4, 8, 2, (6, 6, 6, 6)), (3, 7, 3, (5, 0, 8)), (3, 2, 1, (4, 4, 4)),
                                     (2, 6, 2, (0, 7)), (1, 4, 2, (5,)))]
    return [counts_case(P, E, choices) for P, E, choices in [(2, 4, by_hand), *drawn]]


def counts_case(P, E, choices):
    """The counts, and what known mistakes would make of them."""
    count = lambda chosen: np.bincount(chosen.reshape(-1), minlength=E)
    received, b = np.stack([count(choice) for choice in choices]), bounds(E, P)
    own = [received[rank].reshape(P, -1) if E % P == 0 else received[:0] for rank in range(P)]
    in_turn = [received[:, rank::P] for rank in range(P)]
    first = np.stack([count(choice[:, :1]) for choice in choices])
    there = [np.stack([count(choice) > 0 for choice in choices]).astype(int)[:, b[r]:b[r + 1]] for r in range(P)]
    suspects = [
        ("not exchanged", "these are the rows that the rank itself sends", own),
        ("wrong experts", "experts are dealt out in blocks, b[r] to b[r + 1] - 1, and not in turn", in_turn),
        ("choices missing", "only each token's first choice is counted", [first[:, b[r]:b[r + 1]] for r in range(P)]),
        ("choices missing", "this says whether an expert was chosen, and not how often", there),
    ]
    elsewhere = sum(E - (b[r + 1] - b[r]) for r in range(P))
    given = [{"choice": choice, "experts": np.int64(E)} for choice in choices]
    return Case(P, f"{E} experts, {', '.join(str(len(choice)) for choice in choices)} tokens", given,
                {"received": received}, {"received": 1},
                Traffic((elsewhere,), words=f"the counts of other ranks' experts are {elsewhere} elements in all"),
                suspects=tuple((kind, cause, "received", arrays) for kind, cause, arrays in suspects) if P > 1 else ())


def expert_gradient(rng):
    """DeepSpeed #6545 by hand, as a mean over 4 tokens; then ranks with different numbers of tokens, and with none."""
    x = [np.array([[1.0, 0], [2, 1]]), np.array([[3.0, 2], [5, 1]])]
    by_hand = gradient_case(x, [np.ones(2)] * 2, [np.array([0, 1])] * 2, 1, rng)
    drawn = []
    for each, h, tokens in ((2, 3, (4, 4, 4, 4)), (1, 4, (3, 6)), (3, 2, (5, 1, 0)), (4, 3, (6,))):
        E = each * len(tokens)
        drawn.append(gradient_case([integers(rng, T, h) for T in tokens], [integers(rng, T) for T in tokens],
                                   [rng.integers(0, E, T) for T in tokens], each, rng))
    return [by_hand, *drawn]


def gradient_case(x, dy, choice, each, rng):
    """Both gradients, and what known mistakes would make of them."""
    P, h = len(x), x[0].shape[1]
    counts = np.array([len(tokens) for tokens in x])

    def gradients(of):
        """Both sums, where tokens of rank r count of[r]."""
        dshared, dw = np.zeros(h), np.zeros((each * P, h))
        for rank in range(P):
            dshared += of[rank] * dy[rank] @ x[rank]
            np.add.at(dw, choice[rank], of[rank] * dy[rank][:, None] * x[rank])
        return dshared, dw

    dshared, dw = gradients([1 / counts.sum()] * P)
    suspects = []
    if P > 1 and len(set(counts)) > 1:
        of_means, _ = gradients([1 / max(n, 1) / P for n in counts])
        suspects.append(("mean of means", "each rank's mean counts alike here, however few tokens are in it", "dshared",
                         [of_means] * P))
    rows = sum(int((chosen // each != rank).sum()) for rank, chosen in enumerate(choice))
    reduce = lambda n: {2 * (P - 1) * n, traffic.doubling_all_reduce(n, P)}
    sums = {0, *reduce(1)}
    totals = {rows * width + first + second + third for width in (h + 1, h + 2) for first in reduce(h)
              for second in sums for third in sums} | {rows * width + one for width in (h + 1, h + 2)
                                                       for one in reduce(h + 1)}
    given = [{"x": x[r], "dy": dy[r], "choice": choice[r], "w": integers(rng, each, h)} for r in range(P)]
    return Case(P, f"{', '.join(map(str, counts))} tokens", given, {"dshared": dshared, "dw": dw},
                {"dshared": REPLICATED, "dw": 0},
                Traffic(tuple(totals), words=f"{rows} tokens have their expert elsewhere, and one all-reduce of {h} "
                                             "elements sums dshared: with a count that is enough"),
                suspects=tuple(suspects))


CASES = {"dispatch_counts": dispatch_counts, "expert_gradient": expert_gradient}
