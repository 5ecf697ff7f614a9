"""ZB-H2: so many forwards ahead that no rank ever waits between its first action and its last.

    rank 0 |F0F1F2I0W0F3I1W1I2W2I3W3..|    p=2 m=4: three forwards ahead, rank 0 goes straight
    rank 1 |..F0I0F1I1F2I2W0F3I3W1W2W3|    on to I0; rank r is 2r weight gradients behind

Rank r warms up with 2(p-r)-1 forwards, else as ZB-H1. The longest span's bubble is (p-1)(F+I-2W), none at F = I = W.
The step still lasts longer than a rank, since rank r starts r forwards late: to win that, too, the next step's forwards
must not wait for a barrier of the optimizer. Price: 2p-1 activations. (Qi et al. 2023, section 2.2)
"""

from refimpl.pipeline.action import Action
from refimpl.pipeline.schedules.family import Family
from refimpl.pipeline.schedules.zb_h1 import split_backward


def row(rank, p, m, v):
    """As above, with a warm-up of 2(p-r)-1 and a lag of 2r."""
    F, I, W = ([Action(rank, kind, k) for k in range(m)] for kind in "FIW")
    return split_backward(F, I, W, warm_up=min(m, 2 * (p - rank) - 1), lag=2 * rank)


ZB_H2 = Family("zb_h2", "no bubble on any rank when F = I = W: keeps 2p-1 activations", row)
