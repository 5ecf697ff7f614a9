"""What the split explorer draws: y = relu(x w1) w2 on ranks, with each matrix cut by columns or by rows.

    w1 by columns, w2 by rows       x  w1_r  h_r              w2_r  y_r  all-reduce  y      nothing in the middle
    w1 by columns, w2 by columns    x  w1_r  h_r  all-gather  w2_r  y_r  all-gather  y      and so on, four ways

x and dy are whole on every rank, and y and dx shall be. The layers are those of parallel/tensor.py; every matrix on the
way is noted, and a ledger counts what is sent.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from refimpl.collectives import all_gather, bounds
from refimpl.measure.ledger import Ledger
from refimpl.model.activations import relu, relu_backward
from refimpl.parallel import tensor
from refimpl.world import run

CUTS = ("columns", "rows")
PASSES = ("forward", "backward")
TOKENS, INPUTS, HIDDEN, OUTPUTS = 3, 4, 6, 4


@dataclass
class Matrix:
    """A matrix as one rank has it: its name, its numbers, a kind of colour for each column."""

    name: str
    numbers: np.ndarray
    kinds: list


@dataclass
class Message:
    """A collective, and the elements that a rank sends in it."""

    words: str
    elements: int = 0


class Notes:
    """What a rank notes in one pass, from left to right: `found`, a list of `Matrix` and `Message`."""

    def __init__(self, comm, direction):
        self.comm, self.direction, self.found = comm, direction, []

    def matrix(self, name, numbers, kind, own=None):
        """Note a matrix; own: a slice, the columns that this rank goes on with where it has all of them."""
        kinds = np.full(numbers.shape[1], kind, dtype=object)
        if own is not None:
            kinds[own] = "forward"
        self.found.append(Matrix(name, numbers.copy(), kinds.tolist()))

    @contextmanager
    def message(self, words):
        """What is sent inside belongs to this message."""
        with self.comm.phase(f"{self.direction}: {words}"):
            yield
        self.found.append(Message(words))

    def own(self, n):
        """The rank's own of n rows or columns, as a slice."""
        b = bounds(n, self.comm.size)
        return slice(b[self.comm.rank], b[self.comm.rank + 1])


@dataclass(frozen=True)
class Split:
    """How one way of cutting ran.

    passes    {"forward": a list of `Matrix` and `Message` for each rank, "backward": ...}
    sent      {"forward": elements that each rank sent, "backward": ...}
    """

    passes: dict
    sent: dict


@lru_cache(maxsize=1)
def matrices():
    """x (T, I), w1 (I, H), w2 (H, O), dy (T, O): small whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(5)
    shapes = (TOKENS, INPUTS), (INPUTS, HIDDEN), (HIDDEN, OUTPUTS), (TOKENS, OUTPUTS)
    return tuple(rng.integers(-2, 4, shape).astype(float) for shape in shapes)


@lru_cache(maxsize=16)
def run_split(first, second, P):
    """Run both passes with w1 by `first` and w2 by `second`: a `Split`. ValueError for a cut that there is not."""
    for name, cut in (("w1", first), ("w2", second)):
        if cut not in CUTS:
            raise ValueError(f"{name} by {cut!r}: a matrix is cut by columns or by rows")
    ledger = Ledger()
    by_rank = run(program, P, first, second, ledger=ledger)
    passes = {direction: [notes[k] for notes in by_rank] for k, direction in enumerate(PASSES)}
    for direction, ranks in passes.items():
        for rank, found in enumerate(ranks):
            for step in messages(found):
                step.elements = ledger.bytes_sent(rank=rank, phase=f"{direction}: {step.words}") // 8
    return Split(passes, {direction: [sum(step.elements for step in messages(found)) for found in ranks]
                          for direction, ranks in passes.items()})


def messages(found):
    """The messages of a rank's notes."""
    return [step for step in found if isinstance(step, Message)]


def program(comm, first, second):
    """One rank, forward and backward; ->  its notes of the two passes"""
    x, w1, w2, dy = matrices()
    layer = {"columns": by_columns, "rows": by_rows}
    layer_backward = {"columns": by_columns_backward, "rows": by_rows_backward}

    notes = Notes(comm, "forward")
    notes.matrix("x", x, "soft", notes.own(INPUTS) if first == "rows" else None)
    a, saved1 = layer[first](x, w1, "w1", "a", notes)
    h, saved_relu = relu(a)
    if first == "columns":                                              # every rank has some hidden features, finished
        notes.matrix("relu(a_r)", h, "forward")
    if (first, second) == ("columns", "columns"):
        with notes.message("all-gather of h"):
            h = all_gather(h, comm, axis=1)
    if (first, second) != ("columns", "rows"):
        notes.matrix("h", h, "weight", notes.own(HIDDEN) if second == "rows" else None)
    y, saved2 = layer[second](h, w2, "w2", "y", notes)
    if second == "columns":
        notes.matrix("y_r", y, "forward")
        with notes.message("all-gather of y"):
            y = all_gather(y, comm, axis=1)
    notes.matrix("y", y, "weight")

    back = Notes(comm, "backward")
    back.matrix("dy", dy, "soft", back.own(OUTPUTS) if second == "columns" else None)
    dh = layer_backward[second](dy, saved2, "w2", "dh", back)
    if (first, second) == ("rows", "rows"):
        back.matrix("dh_r", dh, "forward")
        with back.message("all-gather of dh"):
            dh = all_gather(dh, comm, axis=1)
    if first == "columns":
        dh = part(dh, HIDDEN, back)
    da = relu_backward(dh, saved_relu)
    back.matrix("da_r" if first == "columns" else "da", da, "forward" if first == "columns" else "weight")
    dx = layer_backward[first](da, saved1, "w1", "dx", back)
    if first == "rows":
        back.matrix("dx_r", dx, "forward")
        with back.message("all-gather of dx"):
            dx = all_gather(dx, comm, axis=1)
    back.matrix("dx", dx, "weight")
    return notes.found, back.found


def part(x, n, notes):
    """The rank's own of the n columns, if x still has all of them."""
    return x[:, notes.own(n)].copy() if x.shape[1] == n else x


def by_columns(x, w, name, out, notes):
    """x whole  ->  the rank's own columns of x w, saved"""
    mine = w[:, notes.own(w.shape[1])].copy()
    notes.matrix(f"{name}_r", mine, "forward")
    return tensor.column_parallel(x, mine, None, notes.comm)


def by_columns_backward(dy, saved, name, out, notes):
    """dy, whole or the rank's own columns  ->  dx, whole: a sum over ranks"""
    w = saved[0][1]
    dy = part(dy, OUTPUTS if name == "w2" else HIDDEN, notes)
    notes.matrix(f"{name}_rᵀ", w.T, "forward")
    notes.matrix(f"{out}_r", dy @ w.T, "backward")
    with notes.message(f"all-reduce of {out}"):
        dx, _, _ = tensor.column_parallel_backward(dy, saved)
    return dx


def by_rows(x, w, name, out, notes):
    """x, whole or the rank's own columns  ->  x w, whole: a sum over ranks; saved"""
    x, mine = part(x, w.shape[0], notes), w[notes.own(w.shape[0])].copy()
    notes.matrix(f"{name}_r", mine, "forward")
    notes.matrix(f"{out}_r", x @ mine, "backward")
    with notes.message(f"all-reduce of {out}"):
        return tensor.row_parallel(x, mine, None, notes.comm)


def by_rows_backward(dy, saved, name, out, notes):
    """dy whole  ->  the rank's own columns of dx"""
    notes.matrix(f"{name}_rᵀ", saved[1].T, "forward")
    dx, _, _ = tensor.row_parallel_backward(dy, saved)
    return dx
