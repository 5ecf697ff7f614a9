"""What the exercises on pipelines are tried on: no ranks and no messages, only lists and numbers.

    Trial(words="2 ranks, 4 micro-batches", run=..., judge=...)    run(function) calls it; judge(result) raises `Wrong`

The first case of each is one that a learner can follow by hand; one rank, few micro-batches and what does not divide
come after it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from refimpl.course.exercises import pipeline_verdict as verdict
from refimpl.pipeline import build, happens_before

SIZES = ((2, 4), (4, 8), (4, 2), (3, 3), (1, 3), (5, 7))                    # ranks, micro-batches
LAYERS = ((2, 2, 8), (4, 2, 16), (2, 4, 8), (3, 2, 14), (4, 1, 6), (1, 3, 5))              # ranks, chunks, layers
ASKED = (("1f1b", 3, 3, 1), ("gpipe", 2, 2, 1), ("interleaved", 2, 2, 2), ("1f1b", 4, 8, 1))


class Trial(NamedTuple):
    """One try of a learner's function.

    run      run(function) -> what it returned: the learner's part, in which everything may happen
    judge    judge(what it returned) -> None; raises `Wrong` for what is wrong with it
    """

    words: str
    run: Callable
    judge: Callable


def order(name):
    """Lists of all ranks, to be held against the known schedule of this name."""
    return [Trial(f"{p} rank{'s' * (p > 1)}, {m} micro-batches",
                  lambda function, p=p, m=m: [function(rank, p, m) for rank in range(p)],
                  partial(verdict.judge_order, build(name, p, m))) for p, m in SIZES]


def placement():
    """Layers of all ranks."""
    return [Trial(f"{p} rank{'s' * (p > 1)}, {v} chunk{'s' * (v > 1)} each, {layers} layers",
                  lambda function, p=p, v=v, layers=layers: [function(rank, p, v, layers) for rank in range(p)],
                  partial(verdict.judge_placement, p, v, layers)) for p, v, layers in LAYERS]


def questions():
    """All pairs of actions of some schedules. Arrows themselves first, then ways of several, then no ways."""
    trials = []
    for name, p, m, v in ASKED:
        schedule = build(name, p, m, v)
        actions = [action for row in schedule.ranks for action in row]
        expected = {(a, b): happens_before(schedule, a, b) for a in actions for b in actions}
        pairs = sorted(expected, key=lambda pair: (not verdict.arrow(schedule, *pair), not expected[pair]))
        trials.append(Trial(f"{name}, {p} ranks, {m} micro-batches", partial(ask, rows=schedule.ranks, pairs=pairs),
                            partial(verdict.judge_answers, schedule, pairs, expected)))
    return trials


def ask(function, rows, pairs):
    """The answers to all pairs."""
    return [function(rows, a, b) for a, b in pairs]


def split():
    """A stage of two linear layers, y = (x w1) w2, and the gradient of its output."""
    rng, trials = np.random.default_rng(2024), []
    for T, I, H, O in ((2, 2, 3, 2), (5, 4, 7, 3), (1, 1, 1, 1)):
        x, w1, w2, dy = (rng.integers(1, 10, shape) * rng.choice([-1.0, 1.0], shape)
                         for shape in ((T, I), (I, H), (H, O), (T, O)))
        trials.append(Trial(f"x {x.shape}, w1 {w1.shape}, w2 {w2.shape}",
                            partial(run_split, x=x, w1=w1, w2=w2, dy=dy),
                            partial(verdict.judge_split, x=x, w1=w1, w2=w2, dy=dy)))
    return trials


def run_split(function, x, w1, w2, dy):
    """Call the function, then what it leaves for later; ->  (dx, dw1, dw2 as returned, products now, products later)"""
    counter = Counter()
    x, a, w1, w2, dy = (counter.watch(array) for array in (x, x @ w1, w1, w2, dy))
    result = function(dy, (x, a, w1, w2))
    dx, later = verdict.two_parts(result)
    now, counter.products = counter.products, 0
    return dx, later(), now, counter.products


class Counter:
    """Counts products of matrices that it watches."""

    products = 0

    def watch(self, array):
        """A copy of the array; every product with it counts, and gives an array that is watched, too."""
        watched = array.copy().view(Watched)
        watched.counter = self
        return watched


class Watched(np.ndarray):
    """An array whose matrix products are counted."""

    counter = None

    def __array_finalize__(self, parent):
        self.counter = getattr(parent, "counter", None)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        counter = self._count(ufunc is np.matmul)
        plain = [np.asarray(x) for x in inputs]
        return self._watch(getattr(ufunc, method)(*plain, **options), counter)

    def __array_function__(self, function, types, arguments, options):
        counter = self._count(function in (np.dot, np.einsum, np.tensordot, np.inner, np.outer))
        return self._watch(super().__array_function__(function, types, arguments, options), counter)

    def _count(self, is_product):
        if is_product and self.counter is not None:
            self.counter.products += 1
        return self.counter

    @staticmethod
    def _watch(result, counter):
        if isinstance(result, np.ndarray):
            result = result.view(Watched)
            result.counter = counter
        return result


TRIALS = {"gpipe_order": partial(order, "gpipe"), "one_f_one_b": partial(order, "1f1b"),
          "interleaved_placement": placement, "happens_before": questions, "split_backward": split}
