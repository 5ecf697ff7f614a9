"""The four all-to-alls of a mixture of experts as a matrix: how many rows each rank sends to each other one.

                  to rank 0    1    2    3         a row: what a rank sends; a column: what one gets. The diagonal stays
    from rank 0   (5)   3    4    4                at home. Column sums are what a rank's experts have to do, and the
    from rank 1    6   (2)   5    3                port with most to carry makes everybody wait.

Nothing is drawn from a formula: parallel/expert.py runs on ranks, and a ledger counts who sent what to whom.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from refimpl.course.widgets.interactive import Explorer, option, stops, whole
from refimpl.course.widgets.svg import bars, box, legend, picture, text
from refimpl.measure.ledger import Ledger
from refimpl.model.config import Config
from refimpl.parallel import dispatch, expert
from refimpl.parallel.expert_groups import Experts
from refimpl.world import run

EXPERTS, HIDDEN = 8, 4
RANKS = (1, 2, 4, 8)
PHASES = {"1 dispatch: tokens to their experts": dispatch.DISPATCH, "2 combine: and back": dispatch.COMBINE,
          "3 backward of combine": dispatch.COMBINE_BACKWARD, "4 backward of dispatch": dispatch.DISPATCH_BACKWARD}
HOMEWARD = (dispatch.COMBINE, dispatch.DISPATCH_BACKWARD)
CELL, LEFT, TOP = 44, 84, 112                                        # pixels


@dataclass(frozen=True)
class Exchange:
    """rows[phase][r][d]: rows that rank r sent to rank d, itself left out    home[r]: of its own experts, not sent

    counts    bytes of the exchange of counts
    """

    rows: dict
    home: tuple
    counts: int


@lru_cache(maxsize=128)
def exchanged(P=4, tokens=16, k=2, skew=1.0):
    """Run the layer on P ranks with so many tokens each, forward and backward: an `Exchange`."""
    config = Config("llama", vocabulary=2, hidden=HIDDEN, layers=1, heads=1, ffn=4, experts=EXPERTS, top_k=k,
                    expert_ffn=4)
    rng = np.random.default_rng(9)
    liked = np.concatenate([rng.normal(size=(HIDDEN - 1, EXPERTS)) / 2, skew * np.linspace(1, -1, EXPERTS)[None]])
    x = np.concatenate([rng.normal(size=(P, 1, tokens, HIDDEN - 1)), np.ones((P, 1, tokens, 1))], axis=-1)
    each = EXPERTS // P
    parameters = {"router": liked, "w1": np.ones((each, HIDDEN, 2, 4)), "w2": np.ones((each, 4, HIDDEN))}

    def program(comm):
        alone = comm.split(comm.rank, name="tp")
        y, saved = expert.forward(x[comm.rank], parameters, config, alone, Experts(comm, alone))
        expert.backward(np.ones_like(y), saved)
        return saved.decided.plan.sent[comm.rank]

    log = Ledger()
    home = run(program, P, ledger=log)
    rows = {phase: tuple(tuple(log.bytes_sent(rank=r, phase=phase, dst=d) // (8 * HIDDEN) for d in range(P))
                         for r in range(P)) for phase in PHASES.values()}
    return Exchange(rows, tuple(home), log.bytes_sent(phase=dispatch.COUNTS))


def draw_exchange(P=4, tokens=16, k=2, skew=1.0, phase=dispatch.DISPATCH):
    """One all-to-all as a matrix, and the work that it makes: a `Picture`.

    P    ranks, which share EXPERTS experts    tokens    of each rank    k    choices    skew    as of the router
    """
    if P not in RANKS or tokens < 1 or not 1 <= k <= EXPERTS:
        raise ValueError(f"{tokens} tokens on {P} ranks, {k} choices: expected {', '.join(map(str, RANKS))} ranks, 1 "
                         f"token or more, and 1 to {EXPERTS} choices")
    ran = exchanged(P, tokens, k, skew)
    rows = ran.rows[phase]
    sent, got = [sum(row) for row in rows], [sum(row[d] for row in rows) for d in range(P)]
    even = tokens * k * (P - 1) / P
    most = max(*sent, *got)
    title = f"{phase}: {sum(sent)} rows travel, {sum(ran.home)} stay at home"
    told = (f"With equal loads each rank would send {tokens} · {k} · {P - 1}/{P} = {even:g} rows; the busiest port "
            f"carries {most}.")
    high = max(max(map(max, rows)), max(ran.home), 1)
    shapes = [text(12, 24, title, 16, bold=True), text(12, 44, told, 13, kind="faint"),
              text(LEFT, TOP - 32, "to rank", 12, kind="faint"), text(12, TOP - 10, "from rank", 12, kind="faint")]
    each = EXPERTS // P
    for d in range(P):
        shapes.append(text(LEFT + (d + 0.5) * CELL, TOP - 10, d, 13, "middle", bold=True))
    for r in range(P):
        y = TOP + r * CELL
        shapes.append(text(LEFT - 12, y + CELL / 2 + 5, r, 13, "end", bold=True))
        for d in range(P):
            shapes.append(cell(rows[r][d] if r != d else ran.home[r], r == d, high, LEFT + d * CELL, y))
    low = TOP + P * CELL
    x = LEFT + P * CELL + 40
    work = [ran.home[r] + (sent[r] if phase in HOMEWARD else got[r]) for r in range(P)]
    shapes.append(text(x, TOP - 32, "rows in each rank's experts", 12, kind="faint"))
    shapes.append(bars(x, TOP - 18, [(f"rank {r}", work[r], f"{work[r]}: e{each * r}"
                                      + (f" to e{each * (r + 1) - 1}" if each > 1 else ""),
                                      "backward" if work[r] == max(work) > min(work) else "forward")
                                     for r in range(P)], 190, longest=P * tokens * min(k, each) or 1, labels=62))
    shapes.append(legend(12, max(low, TOP - 18 + 28 * P) + 24, [
        ("forward", "sent: the bluer, the more"), ("soft", "stays at home"), ("backward", "the rank with most to do")]))
    return picture(max(x + 62 + 190 + 96, 640), max(low, TOP - 18 + 28 * P) + 38, *shapes, title=title,
                   words=f"{told} Sent by ranks: {', '.join(map(str, sent))}. Received: {', '.join(map(str, got))}. "
                         f"Rows in each rank's experts: {', '.join(map(str, work))}.")


def cell(rows, at_home, most, x, y):
    """A number of the matrix."""
    if at_home:
        return box(x, y, CELL - 2, CELL - 2, f"({rows})", "soft", 13)
    share = 0.85 * rows / most
    shade = (f'<rect class="forward" x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" rx="3" '
             f'fill-opacity="{share:.2f}"/>')
    return (box(x, y, CELL - 2, CELL - 2, kind="plain") + shade
            + text(x + CELL / 2 - 1, y + CELL / 2 + 4, rows, 13, "middle", True,
                   "on-forward" if share > 0.5 else "ink"))


def TokenExchange(P=4, tokens=16, k=2, skew=1.0):
    """The widget: ranks, tokens, choices, how uneven the router is, and which of the four all-to-alls."""
    return Explorer(draw_exchange, {
        "phase": option("All-to-all", PHASES), "P": option("Ranks", [(str(P), P) for P in RANKS], P),
        "tokens": whole("Tokens of a rank", tokens, 1, 32), "k": whole("Choices of a token", k, 1, 4),
        "skew": stops("Favourites", skew, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0]),
    }, name="token-exchange")
