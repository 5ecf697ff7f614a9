"""Collectives built from send and receive only: ring, recursive doubling and halving, trees, pairwise exchange."""

from refimpl.collectives.background import (
    all_gather_start,
    all_reduce_start,
    all_to_all_start,
    broadcast_start,
    gather_start,
    reduce_scatter_start,
    scatter_start,
)
from refimpl.collectives.calls import all_gather, all_reduce, all_to_all, broadcast, gather, reduce_scatter, scatter
from refimpl.collectives.chunks import bounds, chunk_sizes

__all__ = [
    "all_gather", "all_gather_start", "all_reduce", "all_reduce_start", "all_to_all", "all_to_all_start", "bounds",
    "broadcast", "broadcast_start", "chunk_sizes", "gather", "gather_start", "reduce_scatter", "reduce_scatter_start",
    "scatter", "scatter_start",
]
