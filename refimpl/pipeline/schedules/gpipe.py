"""GPipe: all forwards, then all backwards.

    rank 0 |F0F1F2F3......B0--B1--B2--B3--|    p=2 m=4: each rank fills, waits, and drains
    rank 1 |..F0F1F2F3B0--B1--B2--B3--....|

Idle per rank (p-1)(F+B), which more micro-batches make small beside m(F+B); but every rank keeps the activations of all
m of them. Messages: m to the next rank, m back. (Huang et al. 2019, section 2.3; backward in the order of PyTorch's
ScheduleGPipe.)
"""

from refimpl.pipeline.action import Action
from refimpl.pipeline.schedules.family import Family


def row(rank, p, m, v):
    """m forwards, m backwards."""
    forwards = [Action(rank, "F", k) for k in range(m)]
    backwards = [Action(rank, "B", k) for k in range(m)]
    return forwards + backwards


GPIPE = Family("gpipe", "all forwards, then all backwards: keeps m activations", row)
