"""What a pipeline schedule costs: bubble, warm-up, activations kept, messages; as formulas.

p ranks, m micro-batches, v chunks of the model on each rank. F, I, W: seconds of a forward, an input gradient and a
weight gradient of all that a rank has of the model, the same on every rank; B = I + W. A message takes no time here.

    schedule         bubble              kept at once on rank r       messages each way
    gpipe            (p-1)(F+B)          m                            (p-1) m
    1f1b             (p-1)(F+B)          p-r                          (p-1) m
    interleaved      (p-1)(F+B)/v        p + (p-1)/v on rank 0        (p v - 1) m
    looped_bfs       (p-1)(F+B)/v        m                            (p v - 1) m
    interleaved_zb   (p-1)(F+I-W)/v      p                            (p v - 1) m
    zb_h1            (p-1)(F+I-W)        p                            (p-1) m
    zb_h2            (p-1)(F+I-2W)       2p-1                         (p-1) m
    zbv              (p-1)(F+I-2W)/2     p                            2 (p-1) m
    dualpipev        (p-1)(F+2I-W)/2     p + 1/2                      2 (p-1) m

The table is for many micro-batches; the functions say what few of them change, and where a formula ends. Nothing here
has seen a schedule: the tests compare with the lists of actions and with the clock of real runs.

Sources: Huang et al. 2019 (gpipe); Narayanan et al. 2021, section 2.2 (1f1b, interleaved); Lamy-Poirier 2022
(looped_bfs); Qi et al. 2023, table 2 and section 6 (zero bubble); DeepSeek-AI 2024, table 2, whose B is our I + W
(dualpipev).
"""

SINGLE = ("gpipe", "1f1b", "zb_h1", "zb_h2")          # one stage on each rank
LOOP = ("interleaved", "looped_bfs", "interleaved_zb") # v of them, in a loop
V = ("zbv", "dualpipev")                              # two, down a V and up again


def bubble(name, p, m, v=1, forward=1.0, input=1.0, weight=1.0):
    """Seconds that the rank with the longest span, from its first action to its last, is idle in it.

    The zero-bubble formulas hold for W <= F, I (zbv and dualpipev: F = I) and m >= p (zb_h2, zbv: 2p-1; dualpipev: 2p);
    ValueError outside of that.
    """
    F, I, W, v = forward, input, weight, chunks(name, v)
    if name in ("gpipe", "1f1b"):
        return (p - 1) * (F + I + W)
    if name in ("interleaved", "looped_bfs"):         # every chunk but the last holds its rank max(m, p) slots, not m
        return ((v - 1) * max(m - p, 0) + m + (v * p - 1)) * (F + I + W) / v - m * (F + I + W)
    least = {"zb_h1": p, "interleaved_zb": p, "zb_h2": 2 * p - 1, "zbv": 2 * p - 1, "dualpipev": 2 * p}[name]
    if m < least or W > min(F, I) or name in V and F != I:
        raise ValueError(f"{name}: no formula for p={p} m={m} forward={F} input={I} weight={W}; there is one for "
                         f"{least} micro-batches or more and weight <= forward, input{' = forward' * (name in V)}")
    return (p - 1) / v * {"zb_h1": F + I - W, "interleaved_zb": F + I - W, "zb_h2": F + I - 2 * W, "zbv": F + I - 2 * W,
                          "dualpipev": F + 2 * I - W}[name]


def step_bubble(name, p, m, v=1, forward=1.0, input=1.0, weight=1.0):
    """Seconds of a whole step that are not its work: makespan - m (F+I+W). Conditions as in `bubble`.

    More than `bubble` for zb_h2 and zbv: a rank that never waits still starts late, the last one by (p-1) F/v.
    """
    late = (p - 1) * forward / chunks(name, v) if name in ("zb_h2", "zbv") else 0.0
    return max(bubble(name, p, m, v, forward, input, weight), late)


def makespan(name, p, m, v=1, forward=1.0, input=1.0, weight=1.0):
    """Seconds of a step: m (F+I+W) and the bubble. For 1F1B (m+p-1)(F+B)."""
    return m * (forward + input + weight) + step_bubble(name, p, m, v, forward, input, weight)


def warm_up(name, p, m, v=1, rank=0):
    """Forwards (of chunks) that `rank` is ahead before its steady state, where forwards and backwards take turns.

    Its first backward comes after one forward more than this, if there are so many.
    """
    ahead, v = p - 1 - rank, chunks(name, v)
    return min(m * v, {
        "gpipe": m, "looped_bfs": m * v,
        "1f1b": ahead, "zb_h1": ahead, "zb_h2": 2 * ahead,
        "interleaved": 2 * ahead + (v - 1) * round_size(p, m),
        "interleaved_zb": ahead + (v - 1) * round_size(p, m),
        "zbv": down_and_up(p, m, rank) - 1, "dualpipev": 2 * p - (ahead > 0),
    }[name])


def in_flight(name, p, m, v=1, rank=0):
    """Micro-batches of which `rank` keeps activations at once, in full-stage units: a chunk counts 1/v.

    An activation is kept from its forward to its backward, or to its weight gradient where that comes by itself.
    """
    v = chunks(name, v)
    chunks_kept = {
        "gpipe": m, "1f1b": p - rank, "zb_h1": p, "zb_h2": 2 * p - 1,
        "looped_bfs": m * v,
        "interleaved": 2 * (p - 1 - rank) + (v - 1) * round_size(p, m) + 1,
        "interleaved_zb": (v - 1) * round_size(p, m) + p,
        "zbv": down_and_up(p, m, rank), "dualpipev": 2 * p + 1,
    }[name]
    return min(m * v, chunks_kept) / v


def messages(name, p, m, v=1):
    """Messages between ranks in one step, each way: one for each micro-batch and boundary between different ranks."""
    if p == 1:
        return 0
    return m * (2 * (p - 1) if name in V else p * chunks(name, v) - 1)


def round_size(p, m):
    """R: micro-batches of a round of an interleaved schedule, m // max(1, m // p); R must divide m."""
    return m // max(1, m // p)


def down_and_up(p, m, rank):
    """Forwards of ZB-V before the first backward: 2p-1-rank on the way down the V, rank+1 on the way up, at most m."""
    return min(m, 2 * p - 1 - rank) + min(m, rank + 1)


def chunks(name, v):
    """Chunks on each rank: 1, 2 in a V, else v. ValueError for a name without formulas."""
    if name not in SINGLE + LOOP + V:
        raise ValueError(f"there are no formulas for {name!r}: there are for {', '.join(SINGLE + LOOP + V)}")
    return v if name in LOOP else 2 if name in V else 1
