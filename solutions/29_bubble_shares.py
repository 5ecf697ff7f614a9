"""Exercise 29: the bubble, over two denominators (lesson 13, about 10 minutes, difficulty 1 of 3).

    |  m micro-batches: the ideal time  | idle |       one slot: a micro-batch through the whole of a rank's layers
    |          the total time                  |

The same bubble is two percentages. Megatron's papers divide by the ideal time, GPipe's and the zero-bubble paper by
the total. Return both, for 1F1B (v = 1) and interleaved 1F1B (v chunks on each of p ranks). They are held against a
schedule that is timed action by action.

Check it:  python -m refimpl check bubble_shares        Stuck:  python -m refimpl hint bubble_shares
"""


def bubble_shares(p, m, v):
    """Idle time of a rank: (as a share of the ideal time, as a share of the total time). p ranks, m micro-batches."""
    # BEGIN SOLUTION
    idle = (p - 1) / v
    return idle / m, idle / (m + idle)
    # END SOLUTION
