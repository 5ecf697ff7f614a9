"""Interleaved zero bubble: v chunks on every rank, and weight gradients in the gaps.

    rank 0 |0F0-0F1-2F0-2F1-....2I0-2W0-2I1-2W1-0I0-0W0-0I1-0W1-|    p=2 m=2 v=2
    rank 1 |....1F0-1F1-3F0-3I0-3F1-3I1-3W0-1I0-3W1-1I1-1W0-1W1-|

Rank r warms up with (v-1)R + p-1-r chunks, half of interleaved 1F1B's distance between ranks; then one F, one I, and
the W of r chunks ago; then I and W; then the Ws that are left. Bubble (p-1)(F+I-W)/v; keeps ((v-1)R + p)/v activations,
p when rounds are R = p. Rounds as in `interleaved`.
(PyTorch's ScheduleInterleavedZeroBubble: Qi et al. 2023 with the loop of Narayanan et al. 2021)
"""

from refimpl.pipeline.schedules.family import Family
from refimpl.pipeline.schedules.interleaved import backwards, forwards, limits, round_size
from refimpl.pipeline.schedules.zb_h1 import split_backward


def row(rank, p, m, v):
    """As above. One F more in the warm-up, and I before F, is the same order as F before I."""
    F, I, W = forwards(rank, p, m, v), backwards(rank, p, m, v, "I"), backwards(rank, p, m, v, "W")
    warm_up = min((v - 1) * round_size(p, m) + p - rank, m * v)
    return split_backward(F, I, W, warm_up, lag=rank)


INTERLEAVED_ZB = Family("interleaved_zb", "interleaved, with weight gradients in the bubble", row,
                        chunks=2, any_chunks=True, limits=limits)
