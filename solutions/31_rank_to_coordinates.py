"""Exercise 31: from a rank to its coordinates (lesson 10, about 10 minutes, difficulty 1 of 3).

    order "tp-cp-dp-pp"      tp changes fastest, pp slowest: a rank is a number, and these are its digits
    sizes tp 2, dp 2, pp 2   rank 5 = 1 + 2 * (0 + 2 * 1)          tp 1, dp 0, pp 1

Check it:  python -m refimpl check rank_to_coordinates        Stuck:  python -m refimpl hint rank_to_coordinates
"""


def rank_to_coordinates(rank, sizes, order):
    """Where a rank is along each axis: a dict {axis: place}.

    rank     0 to the product of all sizes - 1
    sizes    dict {axis: ranks along it}, in any order of its own
    order    all axes, the one that changes fastest first, joined by "-", as in "tp-cp-dp-pp"
    """
    # BEGIN SOLUTION
    place = {}
    for axis in order.split("-"):
        place[axis] = rank % sizes[axis]
        rank //= sizes[axis]
    return place
    # END SOLUTION
