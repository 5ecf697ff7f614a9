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
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
