"""DualPipeV: a V of two chunks a rank, where a forward of one and a backward of the other run as one action.

    rank 0 |F0-F1-F2-F0-I0-W0-F1-F3&B1----...F2&B0----B2----...F3&B1----B3----I2-W2-I3-W3-|    p=2 m=4 v=2
    rank 1 |...F0-F0-F1-F1-F2-B0----F2&B0----F3&B1----F3&B1----B2----B2----...I3-I3-W3-W3-|

In a pair, such as F3&B1, computing of either half hides the messages of the other: in DeepSeek-V3 the all-to-alls of
its experts. Bubble (p-1)(F&B + B - 3W)/2, with the times of all that a rank has, F&B that of a pair; keeps p + 1/2
activations; needs m >= 2p. DualPipe itself runs two copies of the model through the ranks, from either end; its V holds
every parameter once. (DeepSeek-AI 2024, section 3.2.1; the DualPipe repository's README)
"""

from collections import deque

from refimpl.pipeline.action import Pair
from refimpl.pipeline.schedules.family import Family, Lane


def limits(p, m, v):
    """ValueError for fewer micro-batches than stages."""
    if m < 2 * p:
        raise ValueError(f"microbatches={m} with stages={p}: dualpipev must fill its {2 * p} stages first; "
                         f"{2 * p} micro-batches or more work")


def row(rank, p, m, v):
    """Warm-up, steady state of pairs, cool-down."""
    down, up = Lane(rank), Lane(2 * p - 1 - rank)
    below = p - 1 - rank                                 # ranks between this one and the bottom of the V
    row, late = [], deque()                              # late: lanes whose weight gradients are still to come

    def input_gradient(lane):
        late.append(lane)
        return lane.next("I")

    for _ in range(2 * below):                           # warm-up: down, both, and the first backwards
        row.append(down.next("F"))
    for _ in range(rank + 1):
        row += down.next("F"), up.next("F")
    for _ in range(below):
        row += input_gradient(up), late.popleft().next("W"), up.next("F")

    for turn in range(m - 2 * p + rank + 1):             # steady: F down with B up, F up with B down
        first = down.next("F"), up.next("B")
        row += first if turn == 0 and below == 0 else [Pair(*first)]    # the last rank's first: no pair, to start early
        row.append(Pair(up.next("F"), down.next("B")))

    for _ in range(below):                               # cool-down: nothing left to send down, then no forwards at all
        row += up.next("B"), Pair(up.next("F"), down.next("B"))
    left = [lane for _ in range(rank + 1) for lane in (up, down)]
    for lane in left[:rank + 1]:
        row.append(lane.next("B"))
    for lane in left[rank + 1:]:                         # from here on the ranks above wait: weight gradients later
        row.append(input_gradient(lane))
    for _ in range(below):
        row += late.popleft().next("W"), input_gradient(down)
    while late:
        row.append(late.popleft().next("W"))
    return row


DUALPIPEV = Family("dualpipev", "a V of two chunks, a forward and a backward as one: keeps p + 1/2", row,
                   placement="v", chunks=2, limits=limits)
