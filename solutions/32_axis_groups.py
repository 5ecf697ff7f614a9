"""Exercise 32: the groups of an axis (lesson 10, about 15 minutes, difficulty 2 of 3).

    tp 2, dp 2, pp 2, order "tp-cp-dp-pp"        tp    [0, 1] [2, 3] [4, 5] [6, 7]
                                                 dp    [0, 2] [1, 3] [4, 6] [5, 7]
    rank = tp + 2 * (dp + 2 * pp)                pp    [0, 4] [1, 5] [2, 6] [3, 7]

A group has the ranks that differ along this axis and nowhere else. A library whose groups were not those of its own
documentation summed gradients of different parts of a model (fairscale #1189).

Check it:  python -m refimpl check axis_groups        Stuck:  python -m refimpl hint axis_groups
"""


def axis_groups(axis, sizes, order):
    """All groups along an axis: a list of lists of ranks.

    axis     one of the axes    sizes    dict {axis: ranks along it}    order    as in exercise 31: fastest first

    In each group ranks stand in the order of their place along the axis; groups in the order of their first ranks.
    """
    # BEGIN SOLUTION
    stride, world = 1, 1
    for name in order.split("-"):
        if name == axis:
            stride = world
        world *= sizes[name]
    starts = [rank for rank in range(world) if rank // stride % sizes[axis] == 0]
    return [[start + k * stride for k in range(sizes[axis])] for start in starts]
    # END SOLUTION
