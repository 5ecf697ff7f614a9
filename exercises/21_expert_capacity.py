"""Exercise 21: who has room (lesson 09, about 20 minutes, difficulty 2 of 3).

    5 tokens, 1 choice each, 4 experts, factor 1, least 4        everybody chooses expert 0

    token      0    1    2    3    4
    expert 0   yes  yes  yes  yes  no        room is ceil(1 * 5 / 4 * 1) = 2, but at least 4

An expert takes so many tokens of a sequence and no more. Who comes first stays: the sequence is gone through token by
token, each token's choices in their order, and an expert that is full drops what comes later. Other experts go on.

Check it:  python -m refimpl check expert_capacity        Stuck:  python -m refimpl hint expert_capacity
"""

import math  # noqa: F401

import numpy as np


def expert_capacity(choice, experts, factor, least):
    """How many tokens an expert takes, and which choices stay.

    choice (s, k) integers, the experts that each token chose, all different    factor    of the mean load
    ->  room, a whole number: factor times the mean load, rounded up, at least `least`, at most s
        kept (s, k) booleans
    """
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
