"""Exercise 44: count what interleaving buys and costs (lesson 08, about 20 minutes, difficulty 2 of 3).

    p ranks, m micro-batches, v chunks on each rank      v = 1 is plain 1F1B
    a rank's forward of one micro-batch takes 1, through all its chunks; its backward 2

Return three numbers: how long a step takes; how many activations are sent forward, from rank to rank, in the whole
step; how much rank 0 keeps at most, in activations of all of a rank's layers (a chunk's are 1/v of that). They are held
against a schedule that is timed action by action.

Check it:  python -m refimpl check schedule_price        Stuck:  python -m refimpl hint schedule_price
"""


def schedule_price(p, m, v):
    """(time of a step, messages forward, most that rank 0 keeps). m is a multiple of p, and at least 2p."""
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
