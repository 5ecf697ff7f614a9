"""Exercise 42: find the bug in a backward (lesson 05, about 10 minutes, difficulty 2 of 3).

    y_r = x w_r        every rank has all of x and some columns of w, and makes the same columns of y: nothing is sent

A column-parallel layer with its backward. The forward is right, the loss is that of one device, and it even falls. It
only falls more slowly than on one device, and the more so the more ranks there are.

Find out what is wrong, and mend it. Delete the line with NotImplementedError once you have read the code.

Check it:  python -m refimpl check column_backward        Stuck:  python -m refimpl hint column_backward
"""

from refimpl.collectives import all_reduce  # noqa: F401


def column_backward(x, w, dy, comm):
    """A linear layer y = x w whose output features are cut over the ranks, and its gradients.

    x (T, I), the same on every rank    w (I, O_r), the rank's columns    dy (T, O_r), the gradient of its columns of y
    ->  y (T, O_r), dx (T, I), the same on every rank, dw (I, O_r)
    """
    # BEGIN SOLUTION
    y = x @ w
    dx = all_reduce(dy @ w.T, comm)                                      # each rank's columns add to the same x
    dw = x.T @ dy
    return y, dx, dw
    # INSTEAD
    # y = x @ w                                                            # no message
    # dx = dy @ w.T                                                        # so none in the backward
    # dw = x.T @ dy
    # return y, dx, dw
    # END SOLUTION
