"""Collectives built from send and receive only: ring, recursive doubling, tree, pairwise exchange."""

from refimpl.collectives.calls import all_gather, all_reduce, all_to_all, broadcast, gather, reduce_scatter, scatter
from refimpl.collectives.chunks import bounds, chunk_sizes

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "bounds", "broadcast", "chunk_sizes", "gather", "reduce_scatter",
    "scatter",
]
