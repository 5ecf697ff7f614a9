"""Exercise 37: find the bug in a tied table (lesson 10, about 25 minutes, difficulty 3 of 3).

    stage 0, two replicas            stage 1, two replicas                    one table, two copies: its gradient is the
      [other  table]  1 and 3          [table  other]  10 and 20              mean over replicas, 2 and 15, summed: 17

A model's embedding and its output layer are the same table. The first stage of a pipeline has one copy, the last stage
the other, and both must take the same step. Each stage's gradients lie in one flat buffer, of which ZeRO-1 leaves each
replica its shard. In Megatron-LM the two copies drifted apart (#844): here one of them gets 16 and the other 22.

Find out what is wrong, and mend it. Delete the line with NotImplementedError once you have read the code.

Check it:  python -m refimpl check tied_table        Stuck:  python -m refimpl hint tied_table
"""

from refimpl.collectives import all_reduce, bounds, reduce_scatter  # noqa: F401


def tied_table(buffer, start, size, comm):
    """This replica's shard of its stage's gradients: the mean over replicas, with both stages' share of the table.

    buffer    (n,) the gradients of the rank's stage, from the sequences of its replica; n is the same on both stages
    start     the table is buffer[start:start + size]: in another place on each stage
    ->        (n_d,) elements b[d] to b[d+1] - 1 of it on replica d, b = bounds(n, D)

    Ranks 0 to D-1 are the D replicas of the first stage, D to 2D-1 those of the last one.
    """
    D = comm.size // 2
    replicas = comm.split(comm.rank // D, comm.rank, name="dp")          # same stage, other sequences
    stages = comm.split(comm.rank % D, comm.rank, name="embedding")      # same sequences, the two stages with a table
    buffer = buffer.copy()
    # BEGIN SOLUTION
    table = slice(start, start + size)
    buffer[table] = all_reduce(buffer[table], stages)                    # while both copies still have all of it
    return reduce_scatter(buffer, replicas) / D
    # INSTEAD
    # b = bounds(len(buffer), D)
    # own = slice(b[replicas.rank], b[replicas.rank + 1])
    # buffer[own] = reduce_scatter(buffer, replicas) / D                   # the shard is all that the optimizer needs
    # table = slice(start, start + size)
    # buffer[table] = all_reduce(buffer[table], stages)                    # both copies take the same step
    # return buffer[own]
    # END SOLUTION
