"""Exercise 07: the order of GPipe (lesson 08, about 10 minutes, difficulty 1 of 3).

    rank 0 |F0F1F2F3......B0--B1--B2--B3--|    2 ranks, 4 micro-batches: all forwards, then all backwards
    rank 1 |..F0F1F2F3B0--B1--B2--B3--....|

Rank r has stage r of the model. An action is a word: stage, kind, micro-batch. "1F3" is the forward of micro-batch 3
on stage 1, "1B3" its backward.

Check it:  python -m refimpl check gpipe_order        Stuck:  python -m refimpl hint gpipe_order
"""


def gpipe_order(rank, p, m):
    """What `rank` of p does with m micro-batches, in order: a list of words such as "0F0"."""
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
