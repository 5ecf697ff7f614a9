"""Exercise 22: how many rows will come (lesson 09, about 15 minutes, difficulty 2 of 3).

    4 experts on 2 ranks: e0 e1 | e2 e3

    rank 0 chose   e0 e1   e1 e3          it has for e0 1, e1 2 | e2 0, e3 1
    rank 1 chose   e2 e3   e3 e0          it has for e0 1, e1 0 | e2 1, e3 2

    rank 0 gets [[1, 2], [1, 0]]          rank 1 gets [[0, 1], [1, 2]]          a row for each rank that sends

Before tokens can travel a rank must know how many will come, for each of its experts and from each rank. Nobody else
knows that: the counts travel first.

Check it:  python -m refimpl check dispatch_counts        Stuck:  python -m refimpl hint dispatch_counts
"""

import numpy as np

from refimpl.collectives import all_to_all, bounds


def dispatch_counts(choice, experts, comm):
    """Rows that this rank's experts will get, from each rank.

    choice (T, k) integers, what this rank's tokens chose; T may be 0    experts    on all ranks together
    ->  received (P, E_r) int64: from rank p for the rank's own expert number e

    Rank r has experts b[r] to b[r + 1] - 1, perhaps none. all_to_all(parts, comm) sends parts[r], an array, to rank r
    and returns a list: what came from each rank. Send each rank its own counts, and nothing else.
    """
    b = bounds(experts, comm.size)
    # BEGIN SOLUTION
    counts = np.bincount(choice.reshape(-1), minlength=experts)
    return np.stack(all_to_all([counts[b[r]:b[r + 1]] for r in range(comm.size)], comm))
    # END SOLUTION
