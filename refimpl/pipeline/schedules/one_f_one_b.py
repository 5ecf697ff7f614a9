"""1F1B: as soon as a backward can be done, it is, so that its activations can go.

    rank 0 |F0F1....B0--F2B1--F3B2--..B3--|    p=2 m=4: the same waits, but after F1 each forward
    rank 1 |..F0B0--F1B1--F2B2--F3B3--....|    has its backward beside it

Warm-up of rank r: min(m, p-1-r) forwards; then one forward, one backward; then the backwards that are left. The idle
time is GPipe's, (p-1)(F+B). What it buys is memory: min(m, p-r) activations at once, however many micro-batches.
(PipeDream-Flush: Narayanan et al. 2021, section 2.2.1)
"""

from refimpl.pipeline.action import Action
from refimpl.pipeline.schedules.family import Family


def row(rank, p, m, v):
    """Warm-up, steady state, cool-down."""
    warm_up = min(m, p - 1 - rank)
    steady = m - warm_up
    row = []
    for k in range(warm_up):
        row.append(Action(rank, "F", k))
    for k in range(steady):
        row += Action(rank, "F", warm_up + k), Action(rank, "B", k)
    for k in range(steady, m):
        row.append(Action(rank, "B", k))
    return row


ONE_F_ONE_B = Family("1f1b", "GPipe's bubble, but keeps at most p activations", row)
