"""Looped breadth-first: chunk by chunk, all micro-batches of a chunk at once; backward in exactly the reverse order.

    rank 0 |0F0-0F1-2F0-2F1-............2B1-----2B0-----0B1-----0B0-----|    p=2 m=2 v=2: chunk by chunk, and
    rank 1 |....1F0-1F1-3F0-3F1-3B1-----3B0-----1B1-----1B0-----........|    backwards in the reverse order

Bubble (p-1)(F+B)/v as in interleaved 1F1B, for any m >= p; but like GPipe it keeps the activations of all m. It is
meant for sharded weights: each chunk's weights are wanted in one stretch, once forward and once backward.
(Lamy-Poirier 2022; backward in the order of PyTorch's ScheduleLoopedBFS.)
"""

from refimpl.pipeline.action import Action
from refimpl.pipeline.schedules.family import Family


def row(rank, p, m, v):
    """All forwards, then all backwards in reverse."""
    stages = [chunk * p + rank for chunk in range(v)]
    forwards = [Action(stage, "F", k) for stage in stages for k in range(m)]
    backwards = [Action(stage, "B", k) for stage in reversed(stages) for k in reversed(range(m))]
    return forwards + backwards


LOOPED_BFS = Family("looped_bfs", "GPipe with v chunks a rank: bubble / v, keeps m activations", row,
                    chunks=2, any_chunks=True)
