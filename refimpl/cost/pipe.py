"""A pipeline as the planner sees it: its ranks that matter, and its bubble, whatever tp, cp and dp are.

Of ranks with equal numbers of layers, and with the same ends, the first has most in flight; all are as slow.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from refimpl.cost import pipeline
from refimpl.cost.step import fullest
from refimpl.cost.training import Training
from refimpl.layout import Layout


def dense_layers(model):
    """Layers with an MLP."""
    return model.dense_layers if model.experts else model.layers


@dataclass(frozen=True)
class Held:
    """What one pipeline rank has: layers of both kinds, and how many of each, and of all, are kept at once."""

    number: int
    dense: int
    mixtures: int
    first: bool
    last: bool
    held: tuple

    @property
    def kind(self):
        """What ranks have in common that are alike."""
        return self.dense, self.mixtures, self.first, self.last


class Pipe:
    """A pipeline's share of a combination.

    candidates    [Held] of the ranks that may be the slowest or the fullest: the first of those alike
    largest       of the rank with most parameters        bubble    in micro-batches of the mean rank
    flying        micro-batches of which embedding and head keep something
    """

    def __init__(self, training):
        self.p, self.m, self.chunks = training.layout.pp, training.microbatches, training.chunks
        self.flying = training.in_flight_embedding(), training.in_flight_head()
        self.dense = dense_layers(training.model)
        self.mixtures = training.model.layers - self.dense
        kinds = {}
        for rank in range(self.p):
            held = self._held(training, rank)
            kinds.setdefault(held.kind, held)
        self.candidates = list(kinds.values())
        self.largest = self._held(training, fullest(training))
        self.bubble = pipeline.bubble(training.schedule, self.p, self.m, self.chunks, 1.0, 0.0, 0.0)

    def _held(self, training, rank):
        held, flying = training.held[rank], training.in_flight(rank)
        layers = sum(len(chunk) for chunk in held)
        dense = sum(max(min(chunk.stop, self.dense) - chunk.start, 0) for chunk in held)
        counts = dense, layers - dense, layers
        return Held(rank, dense, layers - dense, training.first(rank), training.last(rank),
                    tuple(ceil(round(flying * count, 9)) for count in counts))


@lru_cache(maxsize=4096)
def pipe_of(model, p, m, chunks):
    """The `Pipe` of a model on p ranks, interleaved where there are chunks. Other questions find it made."""
    schedule = "interleaved" if chunks > 1 else "1f1b"
    return Pipe(Training(model, Layout(pp=p), microbatches=m, schedule=schedule, chunks=chunks))
