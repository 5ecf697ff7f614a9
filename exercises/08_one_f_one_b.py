"""Exercise 08: the warm-up of 1F1B (lesson 08, about 20 minutes, difficulty 2 of 3).

    rank 0 |F0F1....B0--F2B1--F3B2--..B3--|    2 ranks, 4 micro-batches: as soon as a backward can be done, it is,
    rank 1 |..F0B0--F1B1--F2B2--F3B3--....|    so that its activations can go

Warm-up: some forwards. Steady state: one forward, one backward, in turn. Cool-down: the backwards that are left. The
step must take no longer than GPipe's, and rank r must never keep activations of more than p - r micro-batches.

Check it:  python -m refimpl check one_f_one_b        Stuck:  python -m refimpl hint one_f_one_b
"""


def one_f_one_b(rank, p, m):
    """What `rank` of p does with m micro-batches, in order: a list of words such as "0F0". m may be smaller than p."""
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
