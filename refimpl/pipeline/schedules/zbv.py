"""ZB-V: two chunks a rank in a V, so that the last stage sits on rank 0, and its backward can begin at once.

    rank 0 |F0-F1-F2-F0-I0-W0-F1-I1-W1-F3-I0-W0-F2-I2-W2-I1-W1-F3-I3-W3-I2-W2-I3-W3-...|    p=2 m=4 v=2
    rank 1 |...F0-F0-F1-F1-I0-W0-F2-I0-W0-F2-I1-W1-F3-I1-W1-F3-I2-W2-I2-I3-I3-W2-W3-W3-|

Stages 0 3 on rank 0, 1 2 on rank 1. No rank waits between its first action and its last when F = I = W, as in ZB-H2,
but with p activations, the same on every rank. Messages: 2(p-1) m each way, twice 1F1B's; none between the two stages
at the bottom of the V.
(Qi et al. 2023, in the order of PyTorch's ScheduleZBVZeroBubble)
"""

from refimpl.pipeline.schedules.family import Family, Lane


def row(rank, p, m, v):
    """Warm-up, steady state, cool-down; fewer than 2p-1 micro-batches run as 2p-1 of which some are left out."""
    down, up = Lane(rank), Lane(2 * p - 1 - rank)        # the stage on the way down the V, and the one on the way up
    n = max(m, 2 * p - 1)
    row = []

    for _ in range(2 * (p - rank) - 1):                  # until the first micro-batch comes back up
        row.append(down.next("F"))
    for _ in range(rank):
        row += up.next("F"), down.next("F")
    for _ in range(p - rank):
        row += up.next("F"), up.next("I"), up.next("W")

    for _ in range(n - p):
        if down.done["F"] < n:
            row.append(down.next("F"))
        row += down.next("I"), down.next("W"), up.next("F"), up.next("I"), up.next("W")

    for _ in range(rank):                                # the ranks above wait for these: no W in between
        row += down.next("I"), up.next("I")
    for _ in range(p - rank):
        row += down.next("I"), down.next("W")
    for lane in (up, down):
        for _ in range(n - lane.done["W"]):
            row.append(lane.next("W"))
    return [action for action in row if action.microbatch < m]


ZBV = Family("zbv", "a V of two chunks a rank: ZB-H2's bubble with p activations", row, placement="v", chunks=2)
