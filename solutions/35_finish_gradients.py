"""Exercise 35: which gradients are addends (lesson 06, about 15 minutes, difficulty 2 of 3).

    sequence parallel, 4 positions on 2 ranks: each position adds 1, 2, 3, 4 to the gradient of a norm's weight

    rank 0 has seen   1 2      so its own gradient is  3         the model's is 10, on both ranks
    rank 1            3 4                              7

Backward is done, and each rank has four gradients as the operators leave them. Some are whole already, some are a
rank's own part of the weights, and some are addends, because the rank has seen its own positions only. Finish those
that are not finished: Megatron-LM once forgot one (#1446), GPT-NeoX took the mean (#1259).

Check it:  python -m refimpl check finish_gradients        Stuck:  python -m refimpl hint finish_gradients
"""

from refimpl.collectives import all_reduce  # noqa: F401


def finish_gradients(norm, positions, row_bias, column_weight, comm):
    """The four gradients as the optimizer wants them: a tuple, in the same order.

    norm            (h,)        of a norm's weight: the norm has run on the rank's own positions
    positions       (s, h)      of the learned positions: rows of other ranks' positions are 0 here
    row_bias        (h,)        of a row-parallel bias: its sum is over dy, which backward has gathered
    column_weight   (h, f_r)    of a column-parallel weight: the rank's own columns; x was gathered for it
    """
    # BEGIN SOLUTION
    return all_reduce(norm, comm), all_reduce(positions, comm), row_bias, column_weight
    # END SOLUTION
