"""The picture of the README: an idea's three statements, and what the tests hold them together with.

    the truth  ==  the operator  ==  the cost       an MLP with a forward and a backward, cut over 4 ranks by tensor.py

It is no drawing of a promise: the MLP runs, each time, and the picture says what was equal and what was counted.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from refimpl.cost import alpha_beta, traffic
from refimpl.course.widgets.svg import arrow, box, line, picture, text
from refimpl.measure.ledger import Ledger
from refimpl.model import mlp
from refimpl.parallel import tensor
from refimpl.world import run
from refimpl.world.network import Link, Network

P, ROWS, FEATURES, HIDDEN, ITEM = 4, 256, 125, 500, 8                # float64
ALPHA, BETA = 5e-6, 1 / 25e9                                        # seconds a message, seconds a byte


class Proof(NamedTuple):
    """What one forward and backward showed.

    equal      names of what the ranks have as one device has it, to rounding
    counted    (bytes that rank 0 sent, seconds on the clock)        formula    the same, computed
    """

    equal: tuple
    counted: tuple
    formula: tuple


@lru_cache(maxsize=1)
def proof():
    """Run the MLP on one device and on ranks: a `Proof`."""
    rng = np.random.default_rng(0)
    whole = mlp.init(rng, FEATURES, HIDDEN)
    x, dy = rng.standard_normal((2, ROWS, FEATURES))
    y, saved = mlp.forward(x, whole)
    dx, gradients = mlp.backward(dy, saved)

    def program(comm):
        mine, wanted = (tensor.shard_mlp(of_all, comm.rank, P) for of_all in (whole, gradients))
        out, kept = tensor.mlp_forward(x, mine, comm)
        back, found = tensor.mlp_backward(dy, kept)
        pairs = {"y": (out, y), "dx": (back, dx)} | {f"d{name}": (found[name], wanted[name]) for name in found}
        equal = [name for name, (a, b) in pairs.items() if np.linalg.norm(a - b) <= 1e-12 * np.linalg.norm(b)]
        return equal, comm.clock

    ledger = Ledger()
    results = run(program, P, ledger=ledger, network=Network(Link(ALPHA, BETA)))
    equal = tuple(name for name in results[0][0] if all(name in names for names, _ in results))
    sent = sum(traffic.tensor_parallel_mlp(ROWS, FEATURES, FEATURES, P, 0).values()) * ITEM
    seconds = 2 * alpha_beta.ring_all_reduce(P, ALPHA, ROWS * FEATURES * ITEM * BETA)
    return Proof(equal, (ledger.bytes_sent(rank=0), max(clock for _, clock in results)), (sent, seconds))


def draw_statements():
    """Three boxes, and what ties them: a `Picture`."""
    shown = proof()
    ties = (f"{', '.join(shown.equal)} equal", f"{in_words(shown.counted)} == {in_words(shown.formula)}")
    shapes = [*statement(20, "the truth", "on one device, plainly", "refimpl/model/"),
              *code(130, 168, "h = gelu(x @ w1 + b1)", "y = h @ w2 + b2"),
              *statement(330, "the operator", "on many ranks", "refimpl/parallel/"), *ring(440, 186),
              *statement(640, "the cost", "a formula, without arrays", "refimpl/cost/"),
              *code(750, 168, "bytes = 2 (P-1)/P n", "time = 2 (P-1)(α + n/P β)")]
    for left, heading, found in zip((240, 550), ("values and every gradient", "counted == formula"), ties):
        shapes += [line([(left, 180), (left + 90, 180)], "weight", 4),
                   line([(left + 45, 58), (left + 45, 178)], "weight", dash="3 4"),
                   text(left + 45, 26, heading, 14, "middle", bold=True), text(left + 45, 48, found, 13, "middle")]
    shapes += [text(20, 26, f"an MLP on {P} ranks,", 13, kind="faint"),
               text(20, 48, "there and back:", 13, kind="faint"),
               text(440, 304, "the same operator code runs on", 13, "middle", kind="faint"),
               text(440, 330, "ranks inside a notebook  ·  processes under mpirun  ·  CuPy arrays", 15, "middle", True)]
    words = ("The truth on one device, the operator on many ranks, and the cost as a formula. An MLP, forward and "
             f"backward on {P} ranks, shows it: {', '.join(shown.equal)} are equal to one device's, and what a rank "
             f"sends and how long it takes, counted and by the formula, is {ties[1]}.")
    return picture(880, 350, *shapes, title="Every idea is stated three times, and tests tie the three", words=words)


def in_words(cost):
    """(bytes, seconds) as text."""
    nbytes, seconds = cost
    return f"{nbytes:,} bytes, {seconds * 1e6:.2f} µs"


def statement(x, name, what, where):
    """One of the three boxes."""
    return [box(x, 80, 220, 200, round=8), text(x + 110, 108, name, 17, "middle", bold=True),
            text(x + 110, 130, what, 13, "middle", kind="faint"),
            text(x + 110, 264, where, 13, "middle", kind="ink mono")]


def code(x, y, *lines):
    """Lines of code, one below the other."""
    return [text(x, y + 24 * k, words, 12.5, "middle", kind="ink mono") for k, words in enumerate(lines)]


def ring(x, y):
    """Four ranks around (x, y), each with an arrow to its right neighbour."""
    places = [(x - 57, y - 24), (x + 57, y - 24), (x + 57, y + 24), (x - 57, y + 24)]
    ranks = [box(a - 27, b - 15, 54, 30, f"rank {k}", "forward", 12) for k, (a, b) in enumerate(places)]
    ways = ((-28, -24, 28, -24), (57, -8, 57, 8), (28, 24, -28, 24), (-57, 8, -57, -8))
    return [*ranks, *(arrow(x + a, y + b, x + c, y + d, kind="backward") for a, b, c, d in ways)]
