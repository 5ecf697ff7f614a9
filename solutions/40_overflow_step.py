"""Exercise 40: find the bug in a skipped step (lesson 04, about 15 minutes, difficulty 2 of 3).

    scale 8        rank 0: its shard has inf        both skip the step, and both go on with scale 4
                   rank 1: its shard is finite

float16 gradients are computed from a loss that was multiplied by a scale. Where they overflow, the step is skipped and
the scale is halved. With ZeRO each rank has a shard of the gradient. The run below goes on without an error, and after
the first overflow the ranks have parameters of different steps (pytorch #136009, fairscale PR #179).

Find out what is wrong, and mend it. Delete the line with NotImplementedError once you have read the code.

Check it:  python -m refimpl check overflow_step        Stuck:  python -m refimpl hint overflow_step
"""

import numpy as np

from refimpl.collectives import all_reduce  # noqa: F401

RATE = 0.5


def overflow_step(parameter, gradient, scale, comm):
    """One step of gradient descent on the rank's shard, skipped where any gradient of the model overflowed.

    parameter (n_r,) and gradient (n_r,), the rank's shards; the gradient is `scale` times too large; n_r may be 0
    scale     a number, the same on every rank
    ->  parameter (n_r,) after the step, or as it was    scale, a number: as it was, or half of it after a skipped step
    """
    # BEGIN SOLUTION
    here = not np.isfinite(gradient).all()
    overflow = all_reduce(np.float64(here), comm) > 0
    # INSTEAD
    # overflow = not np.isfinite(gradient).all()
    # END SOLUTION
    if overflow:
        return parameter.copy(), scale / 2
    return parameter - RATE * (gradient / scale), scale
