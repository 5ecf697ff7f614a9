"""Exercise 19: which blocks causality leaves (lesson 07, about 15 minutes, difficulty 2 of 3).

             keys 0 1 2 3
    query 2       x x x .        some pairs are seen, some are not: "part", which needs a mask
    query 5       x x x x

A query sees keys at its own position and before. A block that nobody sees need not be computed, one that everybody sees
needs no mask. What counts is the position in the whole sequence, and not the number of the rank or the place in the
block.

Check it:  python -m refimpl check causal_block        Stuck:  python -m refimpl hint causal_block
"""


def causal_block(queries, keys):
    """How much of a block of queries and keys is to be computed: "all", "part" or "none".

    queries, keys    their positions in the sequence: lists of integers, ascending, not empty, with or without gaps
    """
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
