"""Exercise 06: find the bug (lesson 05, about 10 minutes, difficulty 2 of 3).

A row-parallel layer with its backward, much like some that have served real models. On one rank it is right, and every
shape is right on four. Yet a model that was trained on one device answers nonsense on several.

Find out what is wrong, and mend it. Delete the line with NotImplementedError once you have read the code.

Check it:  python -m refimpl check row_parallel_bias        Stuck:  python -m refimpl hint row_parallel_bias
"""

from refimpl.collectives import all_reduce


def row_parallel_bias(x, w, b, dy, comm):
    """A linear layer y = x w + b whose input features are cut over the ranks, and its gradients.

    x (T, I_r)    w (I_r, O)    b (O,) and dy (T, O), the same on every rank
    ->  y (T, O), dx (T, I_r), dw (I_r, O), db (O,)
    """
    # BEGIN SOLUTION
    y = all_reduce(x @ w, comm, algorithm="ring") + b
    dx = dy @ w.T
    dw = x.T @ dy
    db = dy.sum(axis=0)
    return y, dx, dw, db
    # INSTEAD
    # y = x @ w + b
    # y = all_reduce(y, comm, algorithm="ring")
    # dx = dy @ w.T
    # dw = x.T @ dy
    # db = dy.sum(axis=0)
    # return y, dx, dw, db
    # END SOLUTION
