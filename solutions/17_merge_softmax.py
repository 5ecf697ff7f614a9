"""Exercise 17: merge two partial softmaxes (lesson 07, about 20 minutes, difficulty 2 of 3).

    keys      0   1   2   3   |   4   5   6        one query, its scores S with seven keys, seen in two blocks
    found     out1, lse1      |   out2, lse2       of each block: softmax over its keys alone, times their values

    lse1 = log(e^S0 + e^S1 + e^S2 + e^S3)          what the block weighs, as a logarithm

Whoever saw only four keys has divided by too little. From out and lse of both blocks comes the softmax over all keys,
exactly, whatever the scores were. No other number is needed.

Check it:  python -m refimpl check merge_softmax        Stuck:  python -m refimpl hint merge_softmax
"""

import numpy as np


def merge_softmax(out1, lse1, out2, lse2):
    """The softmax over the keys of both blocks.

    out1, out2 (s, d)    lse1, lse2 (s,): -inf for a query that saw no key in the block, and then its out is 0
    ->  out (s, d), lse (s,)        scores may be as large as 1000; a query without keys keeps out 0 and lse -inf
    """
    # BEGIN SOLUTION
    largest = np.maximum(lse1, lse2)
    safe = np.where(np.isfinite(largest), largest, 0.0)
    weight1, weight2 = np.exp(lse1 - safe)[:, None], np.exp(lse2 - safe)[:, None]        # never above 1
    total = weight1 + weight2
    seen = np.where(total > 0, total, 1.0)
    lse = np.where(total > 0, safe[:, None] + np.log(seen), -np.inf)[:, 0]
    return (weight1 * out1 + weight2 * out2) / seen, lse
    # END SOLUTION
