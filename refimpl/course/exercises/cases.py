"""What an exercise is tried on: for several numbers of ranks, what each is given, what is right, and what it may send.

    Case(size=4, words="100 elements", given=[{"x": ...}, ...], expected={"sum": ...}, shard={"sum": 0}, traffic=...)

Numbers are whole, so that every sum is exact in any order, and drawn with a fixed seed. The first case of each exercise
is the one that a learner can follow by hand; uneven shards, empty ones and a single rank come after it.
"""

from typing import NamedTuple

import numpy as np

from refimpl.collectives import bounds
from refimpl.cost import traffic
from refimpl.testing import REPLICATED, cut


class Traffic(NamedTuple):
    """What the ranks may send, in elements.

    totals      numbers of elements, over all ranks, that are right
    elements    of each rank, or None where only the total is told
    messages    of each rank, or None where any number is right
    ring        whether a rank may talk to one neighbour only, and with send and recv alone
    words       what should be sent, where it is neither a ring's nor one all-reduce's
    """

    totals: tuple
    elements: list | None = None
    messages: int | None = None
    ring: bool = False
    words: str = ""


class Case(NamedTuple):
    """One run of a learner's function: function(*given[rank].values(), comm) on each rank.

    expected    whole arrays by name: one, or as many as the function returns; d + the name of an input is a gradient
    shard       how each of them is cut, as in `refimpl.testing`
    addends     where the first of them is a sum over the ranks: each rank's whole addend
    suspects    what known mistakes return: (diagnosis, a sentence, name of an output, its array on each rank)
    """

    size: int
    words: str
    given: list
    expected: dict
    shard: dict
    traffic: Traffic
    addends: list | None = None
    suspects: tuple = ()


def cases(name):
    """The cases of the exercise of this name."""
    rng = np.random.default_rng(2024)
    if name in RINGS:
        sizes = ((4, 100), (2, 10), (3, 100), (4, 10), (4, 2), (4, 0), (7, 101), (1, 5))
        return [RINGS[name](n, P, rng) for P, n in sizes]
    return [LINEAR[name](*a09(), 2)] + [LINEAR[name](*matrices(rng, *sizes), P)
                                        for *sizes, P in ((5, 12, 7, 4), (3, 7, 10, 3), (4, 3, 5, 4), (2, 3, 2, 1))]


# rings

def reduce_scatter(n, P, rng):
    """Rank r gets chunk r of the sum."""
    x = integers(rng, P, n)
    return Case(P, f"{n} elements", [{"x": row} for row in x], {"sum": x.sum(axis=0)}, {"sum": 0},
                ring_traffic(n, P, traffic.ring_reduce_scatter, 1), list(x))


def all_reduce(n, P, rng):
    """Every rank gets the whole sum."""
    x = integers(rng, P, n)
    return Case(P, f"{n} elements", [{"x": row} for row in x], {"sum": x.sum(axis=0)}, {"sum": REPLICATED},
                ring_traffic(n, P, traffic.ring_all_reduce, 2), list(x))


def all_gather(n, P, rng):
    """Every rank gets all blocks."""
    x = integers(rng, n)
    return Case(P, f"{n} elements in all", [{"block": cut(x, 0, rank, P)} for rank in range(P)], {"all": x},
                {"all": REPLICATED}, ring_traffic(n, P, traffic.ring_all_gather, 1))


def ring_traffic(n, P, formula, laps):
    """That of a ring. Where chunks differ in size there are other ways to cut, and to turn: only the sum is told."""
    elements = [formula(n, P, rank) for rank in range(P)]
    return Traffic((sum(elements),), elements if n % P == 0 else None, laps * (P - 1) if n >= P else None, ring=True)


# row-parallel layers

def a09():
    """x, w, b of a bug that was met in real models (huggingface/text-generation-inference #1036), and a dy."""
    return (np.array([[1., 2, 3, 4], [2, 0, 1, 1]]), np.arange(12.).reshape(4, 3), np.array([100., 200, 300]),
            np.array([[1., -2, 3], [2, 5, -1]]))


def matrices(rng, T, I, O):
    """x (T, I), w (I, O), b (O,), dy (T, O)"""
    return tuple(integers(rng, *shape) for shape in ((T, I), (I, O), (O,), (T, O)))


def forward(x, w, b, dy, P):
    """y from the rank's columns of x and rows of w."""
    given = [{"x": cut(x, 1, rank, P), "w": cut(w, 0, rank, P), "b": b} for rank in range(P)]
    return Case(P, shapes(x, w), given, {"y": x @ w + b}, {"y": REPLICATED}, one_all_reduce(dy.size, P),
                products(given))


def backward(x, w, b, dy, P):
    """The three gradients from dy."""
    given = [{"dy": dy, "x": cut(x, 1, rank, P), "w": cut(w, 0, rank, P)} for rank in range(P)]
    return Case(P, shapes(x, w), given, gradients(x, w, dy), {"dx": 1, "dw": 0, "db": REPLICATED}, Traffic((0,)))


def layer(x, w, b, dy, P):
    """y and the three gradients."""
    given = [{"x": cut(x, 1, rank, P), "w": cut(w, 0, rank, P), "b": b, "dy": dy} for rank in range(P)]
    return Case(P, shapes(x, w), given, {"y": x @ w + b, **gradients(x, w, dy)},
                {"y": REPLICATED, "dx": 1, "dw": 0, "db": REPLICATED}, one_all_reduce(dy.size, P), products(given))


def products(given):
    """Each rank's part of x w."""
    return [local["x"] @ local["w"] for local in given]


def gradients(x, w, dy):
    """Those of y = x w + b on one device."""
    return {"dx": dy @ w.T, "dw": x.T @ dy, "db": dy.sum(axis=0)}


def one_all_reduce(n, P):
    """That of one all-reduce, by whichever algorithm."""
    return Traffic((2 * (P - 1) * n, traffic.doubling_all_reduce(n, P)))


def shapes(x, w):
    """The shapes in words."""
    return f"x {x.shape} and w {w.shape}"


def chunks(x, P):
    """The P chunks of x, as lists of their own."""
    b = bounds(len(x), P)
    return [x[b[k]:b[k + 1]] for k in range(P)]


def integers(rng, *shape):
    """Whole numbers from -9 to 9 but 0, in float64: sums and products of them are exact."""
    return rng.integers(1, 10, shape) * rng.choice([-1.0, 1.0], shape)


RINGS = {"ring_reduce_scatter": reduce_scatter, "ring_all_gather": all_gather, "ring_all_reduce": all_reduce}
LINEAR = {"row_parallel_forward": forward, "row_parallel_backward": backward, "row_parallel_bias": layer}
