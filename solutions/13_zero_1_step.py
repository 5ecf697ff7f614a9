"""Exercise 13: a step of ZeRO-1 (lesson 04, about 20 minutes, difficulty 2 of 3).

    rank 0   gradient g    -- reduce-scatter -->  G . . .   Adam on shard 0   w . . .   -- all-gather -->  w w w w
    rank 1   gradient g'                          . G . .   Adam on shard 1   . w . .                      w w w w

Each rank has all parameters and the gradients of its own sequences, but m and v of one shard only. The losses were
divided by the tokens of all ranks already, so that gradients are summed, not averaged.

Check it:  python -m refimpl check zero_1_step        Stuck:  python -m refimpl hint zero_1_step
"""

from refimpl.collectives import all_gather, bounds, reduce_scatter  # noqa: F401
from refimpl.model.adam import Adam, Moments, update  # noqa: F401

ADAM = Adam(rate=0.1, beta1=0.8, beta2=0.9)


def zero_1_step(gradient, parameter, m, v, step, comm):
    """One step of Adam, of which each rank does its part.

    gradient (n,), this rank's    parameter (n,), the same on every rank    m, v (shard,)    step 1, 2, ...
    ->  parameter (n,), the same on every rank    m, v (shard,)             do not change the arguments

    Shard r is [b[r]:b[r + 1]]. `reduce_scatter(x, comm)` cuts in the same way, `all_gather(shard, comm)` puts together.
    `update(parameter, gradient, Moments(m, v), step, ADAM)` changes parameter, m and v in place, whatever their shape.
    """
    b = bounds(len(parameter), comm.size)
    # BEGIN SOLUTION
    mine, m, v = parameter[b[comm.rank]:b[comm.rank + 1]].copy(), m.copy(), v.copy()
    update(mine, reduce_scatter(gradient, comm), Moments(m, v), step, ADAM)
    return all_gather(mine, comm), m, v
    # END SOLUTION
