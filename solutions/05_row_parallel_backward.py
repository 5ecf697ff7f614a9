"""Exercise 05: a row-parallel linear layer, backward (lesson 05, about 20 minutes, difficulty 2 of 3).

    forward     y = sum over r of x_r w_r, by an all-reduce; then + b, once        (exercise 04)
    backward    dy, the gradient of the loss by y, is whole, the same on every rank; wanted: those by x_r, w_r and b

Every gradient is the whole truth about what this rank holds: that of x_r has the shape of x_r, and so on. Before you
write anything, answer: which of the three must travel?

Check it:  python -m refimpl check row_parallel_backward        Stuck:  python -m refimpl hint row_parallel_backward
"""

from refimpl.collectives import all_reduce  # noqa: F401    the sum of all ranks' arrays: all_reduce(a, comm)


def row_parallel_backward(dy, x, w, comm):
    """The gradients dx, dw, db of the layer's inputs, from dy, that of its output.

    dy (T, O), the same on every rank    x (T, I_r), w (I_r, O), as they were in the forward
    ->  dx (T, I_r)    dw (I_r, O)    db (O,), the same on every rank
    """
    # BEGIN SOLUTION
    return dy @ w.T, x.T @ dy, dy.sum(axis=0)
    # END SOLUTION
