"""What the exercises of lesson 07 are tried on: scores that overflow, blocks without keys, uneven shards.

The first case of each is one that a learner can follow by hand.
"""

from functools import partial

import numpy as np

from refimpl.course.exercises import context_verdict as verdict
from refimpl.course.exercises.cases import Case, Traffic
from refimpl.course.exercises.pipeline_cases import Trial
from refimpl.model.attention import attention, attention_backward
from refimpl.parallel.context_layout import all_positions
from refimpl.testing import cut

# -- without ranks ----------------------------------------------------------------------------------------------------

def merge_softmax():
    """Scores of all sizes (EasyContext #14), a block without keys, and neither with any (flash-attention #978)."""
    rng, none = np.random.default_rng(2024), -np.inf
    asked = [(np.array([0.0, np.log(3.0)]), np.array([0.0, 0.0])), (np.array([0.0, 1000]), np.array([1000.0, 0])),
             (np.array([-1000.0, 3]), np.array([-1001.0, -4])), (np.array([none, 2]), np.array([1.0, none])),
             (np.array([none, none]), np.array([none, none])), (rng.normal(size=5), rng.normal(size=5))]
    trials = []
    for lse1, lse2 in asked:
        out1, out2 = (np.where(np.isfinite(lse)[:, None], rng.normal(size=(len(lse), 3)), 0.0) for lse in (lse1, lse2))
        trials.append(Trial(f"lse {lse1.round(2).tolist()} and {lse2.round(2).tolist()}", partial(quietly, args=(
            out1, lse1, out2, lse2)), partial(verdict.judge_merge, out1, lse1, out2, lse2)))
    return trials


def quietly(function, args):
    """Call it with copies; what overflows is told from the numbers."""
    with np.errstate(all="ignore"):
        return function(*(x.copy() for x in args))


def zigzag_owner():
    """All positions of some sequences."""
    return [Trial(f"{length} positions on {P} rank{'s' * (P > 1)}",
                  lambda function, P=P, length=length: [function(p, length, P) for p in range(length)],
                  partial(verdict.judge_owners, length, P)) for P, length in ((4, 16), (4, 8), (2, 12), (3, 6), (1, 4))]


def causal_block():
    """All pairs of blocks of every layout, and blocks that are no layout's."""
    by_hand = [([2, 5], [0, 1, 2, 3]), ([3], [3]), ([4, 9], [8, 12]), ([4, 9], [10]), ([1, 7], [1]),
               ([5, 6], [0, 1, 9])]
    asked = {"some blocks": by_hand}
    for length, P, layout in ((8, 4, "contiguous"), (8, 4, "striped"), (8, 4, "zigzag"), (5, 5, "contiguous")):
        everybody = [list(mine) for mine in all_positions(length, P, layout)]
        words = f"{length} {layout} positions on {P} ranks"
        asked[words] = [(queries, keys) for queries in everybody for keys in everybody]
    return [Trial(words, partial(ask, pairs=pairs), partial(verdict.judge_blocks, pairs))
            for words, pairs in asked.items()]


def ask(function, pairs):
    """The answers to all pairs."""
    return [function(list(queries), list(keys)) for queries, keys in pairs]


TRIALS = {"merge_softmax": merge_softmax, "zigzag_owner": zigzag_owner, "causal_block": causal_block}


# -- on ranks ---------------------------------------------------------------------------------------------------------

def ring_backward(rng):
    """Blocks of one position, of some, and of different lengths."""
    return [ring_case(P, s, d, rng) for P, s, d in ((3, 6, 2), (2, 8, 4), (4, 4, 3), (4, 10, 2), (1, 3, 2))]


def ring_case(P, s, d, rng):
    """The three gradients, and what known mistakes would make of them."""
    q, k, v, dout = rng.normal(size=(4, s, d))
    headed = lambda x, group: x[None, :, None, None] if group else x[None, :, None]
    out, saved = attention(headed(q, True), headed(k, False), headed(v, False), causal=False)
    dq, dk, dv = (x.reshape(s, d) for x in attention_backward(headed(dout, True), saved))
    scores = q @ k.T / d**0.5
    lse = np.log(np.exp(scores).sum(axis=1))
    p = np.exp(scores - lse[:, None])
    out = out.reshape(s, d)
    ds = p * (dout @ v.T - (dout * out).sum(axis=1, keepdims=True)) / d**0.5
    rows = [slice(*np.array([s * r // P, s * (r + 1) // P])) for r in range(P)]
    own = lambda a, b: [a[rows[r]].T @ b[rows[r]] for r in range(P)]                    # by key: of own queries alone
    local = own(ds, q), own(p, dout)
    suspects = [
        ("own block only", "this is what the rank's own keys add", "dq", [ds[rows[r], rows[r]] @ k[rows[r]]
                                                                          for r in range(P)]),
        ("own block only", "this is what the rank's own queries say about its own keys: the other ranks' queries have "
                           "something to say, too", "dk", [whole[rows[r]] for r, whole in enumerate(local[0])]),
        *(("not home", f"these are the gradients of rank {q}'s keys", "dk",
           [dk[rows[(r + turn) % P]] for r in range(P)])
          for turn, q in ((1, "r+1"), (-1, "r-1")) if P > 2),
        ("not with its block", "this sums what the rank's own queries say about all blocks: dk and dv of a block must "
                               "travel with the block", "dk",
         [sum(whole[rows[b]] for b in range(P)) if s % P == 0 else dk[:0] for whole in local[0]]),
    ]
    given = [{name: cut(x, 0, rank, P) for name, x in
              {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}.items()} for rank in range(P)]
    block = 2 * s * d                                                # all keys and values, or their gradients
    fewest, one_more = 2 * (P - 1) * block, (2 * P - 1) * block
    words = (f"keys and values take P-1 steps, their gradients P-1 or P: {fewest} or {one_more} elements over all ranks"
             if P > 1 else "nothing has to be sent")
    return Case(P, f"{s} positions", given, {"dq": dq, "dk": dk, "dv": dv}, {"dq": 0, "dk": 0, "dv": 0},
                Traffic((fewest, one_more) if P > 1 else (0,), ring=True, words=words),
                suspects=tuple(suspects) if P > 1 else ())


CASES = {"ring_backward": ring_backward}
