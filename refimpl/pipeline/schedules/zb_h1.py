"""ZB-H1: the backward in two halves, and the half that nobody waits for fills the bubble.

    rank 0 |F0F1..I0W0F2I1W1F3I2W2I3W3|    p=2 m=4: after I_k follows W_(k-r),
    rank 1 |..F0I0F1I1W0F2I2W1F3I3W2W3|    so rank r is r weight gradients behind

Rank r warms up with p-r forwards; then I and F take turns while forwards last. Bubble (p-1)(F+I-W) while F, I >= W, a
third of 1F1B's when all three take the same time, with 1F1B's memory: p activations, here on every rank, since an
activation must now be kept until its W. (Qi et al. 2023, section 2.1)
"""

from refimpl.pipeline.action import Action
from refimpl.pipeline.schedules.family import Family


def split_backward(forwards, input_gradients, weight_gradients, warm_up, lag):
    """Warm-up of forwards; I and F in turn; the Is that are left; each I but the first `lag` followed by a W; more Ws.

    forwards, ...    a rank's actions of each kind, in order      ->  its row
    """
    steady = len(forwards) - warm_up
    row = forwards[:warm_up]
    for k in range(steady):
        row.append(input_gradients[k])
        row += weight_gradients[k - lag:k - lag + 1] if k >= lag else ()
        row.append(forwards[warm_up + k])
    for k in range(steady, len(forwards)):
        row.append(input_gradients[k])
        row += weight_gradients[k - lag:k - lag + 1] if k >= lag else ()
    return row + weight_gradients[max(len(forwards) - lag, 0):]


def row(rank, p, m, v):
    """As above, with a warm-up of p-r and a lag of r."""
    F, I, W = ([Action(rank, kind, k) for k in range(m)] for kind in "FIW")
    return split_backward(F, I, W, warm_up=min(m, p - rank), lag=rank)


ZB_H1 = Family("zb_h1", "weight gradients fill the bubble: a third of 1F1B's, keeps p activations", row)
