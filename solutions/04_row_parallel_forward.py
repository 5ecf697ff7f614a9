"""Exercise 04: a row-parallel linear layer, forward (lesson 05, about 10 minutes, difficulty 1 of 3).

    y = x w + b, with w cut by rows:    rank r holds w_r, some rows of w, and x_r, the same columns of x

        [x_0 x_1] [w_0]  =  x_0 w_0 + x_1 w_1
                  [w_1]

Check it:  python -m refimpl check row_parallel_forward        Stuck:  python -m refimpl hint row_parallel_forward
"""

from refimpl.collectives import all_reduce  # the sum of all ranks' arrays: all_reduce(a, comm)


def row_parallel_forward(x, w, b, comm):
    """y = x w + b on every rank.

    x (T, I_r), the rank's own columns    w (I_r, O), its own rows    b (O,), the same on every rank    ->  y (T, O)

    One all-reduce of T O elements, and nothing else.
    """
    # BEGIN SOLUTION
    y = all_reduce(x @ w, comm, algorithm="ring")
    return y + b
    # END SOLUTION
