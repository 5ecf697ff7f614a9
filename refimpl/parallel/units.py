"""Flat units: parameters one behind the other, padded, and cut into equal shards, one for each rank.

    w (2, 3), b (3,), v (4,): 13 elements on 4 ranks, 3 of padding

      w w w w | w w b b | b v v v | v . . .        a unit, flat: 16 elements
      rank 0    rank 1    rank 2    rank 3         its shards, 4 each: real elements 4, 4, 4, 1

A shard does not care where a parameter ends. So every rank holds exactly 1/N of each unit, one message carries what
were many parameters, and Adam, which works on each number alone, does not notice (adam.py). What must know parameters
by name, weight decay and checkpoints, asks for the `pieces` of a shard.

The unit's length is the next multiple of `alignment`, the number of ranks unless given. Padding can be longer than a
shard and span several ranks. It is sent, and never computed with: no norm, no update and no checkpoint looks at it.
(Rajbhandari et al. 2020; "FlatParameter" in PyTorch FSDP: Zhao et al. 2023, section 3.2.1.)
"""

import math
from typing import NamedTuple

from refimpl.arrays import array_namespace


class Piece(NamedTuple):
    """What a rank's shard has of one parameter: elements start..stop-1 of it, flattened."""

    name: str
    start: int
    stop: int
    inside: slice                      # where they are in the shard


class Unit:
    """Where everything is in one unit: arithmetic, no arrays.

    shapes       dict by name, in the order in which they lie; each name once
    ranks        N, how many the unit is cut for
    alignment    the padded length is a multiple of it; itself a multiple of N, and N unless given

    size, padded, shard    elements: real ones, with padding, and of each rank's shard, padded / N
    ValueError for an alignment that N does not divide, naming the nearest that it does.
    """

    def __init__(self, shapes, ranks, alignment=None):
        alignment = check_alignment(ranks if alignment is None else alignment, ranks)
        self.shapes, self.slices, self.size = dict(shapes), {}, 0
        for name, shape in self.shapes.items():
            self.slices[name] = slice(self.size, self.size + math.prod(shape))
            self.size = self.slices[name].stop
        self.padded = -(-self.size // alignment) * alignment
        self.shard = self.padded // ranks

    def own(self, rank):
        """Which elements of the flat unit are the shard of `rank`: a slice, with padding."""
        return slice(self.shard * rank, self.shard * (rank + 1))

    def held(self, rank):
        """How many elements of the shard of `rank` are real: the first ones, perhaps none."""
        return min(max(self.size - self.shard * rank, 0), self.shard)

    def pieces(self, rank):
        """What the shard of `rank` has of which parameters: a list of `Piece`, in order; padding is in none."""
        own, found = self.own(rank), []
        for name, lies in self.slices.items():
            start, stop = max(lies.start, own.start), min(lies.stop, own.stop)
            if start < stop:
                inside = slice(start - own.start, stop - own.start)
                found.append(Piece(name, start - lies.start, stop - lies.start, inside))
        return found

    def views(self, flat):
        """The parameters in a flat unit (padded,): dict by name of views in their shapes."""
        return {name: flat[self.slices[name]].reshape(shape) for name, shape in self.shapes.items()}

    def blank(self, dtype, like, rank=None):
        """Zeros for the whole unit (padded,), or for the shard (shard,) of `rank`, in the library of `like`."""
        return array_namespace(like).zeros(self.padded if rank is None else self.shard, dtype)


def check_alignment(alignment, ranks):
    """`alignment`; ValueError unless it is a multiple of the number of ranks."""
    if alignment < 1 or alignment % ranks:
        nearest = max(round(alignment / ranks), 1) * ranks
        raise ValueError(f"alignment={alignment} is no multiple of the {ranks} ranks that share a unit; "
                         f"nearest {nearest}")
    return alignment


def check_key(key, units):
    """ValueError unless it is a unit's; names those that there are."""
    if key not in units:
        raise ValueError(f"{key!r} is no unit; there are {', '.join(map(repr, units))}")


# What to put into one unit


def layers(names):
    """One unit for each end of a transformer and for each layer, as stage 3 gathers them.

    names    of parameters, as in model/config.py    ->  {"embedding": [names], "blocks.0": ..., "head": ...}
    Tied, the output table is the embedding's, and "head" has only the last norm: the unit "embedding" is used twice.
    Buckets, for stages 1 and 2: data.plan(sizes, cap) from its end, since units are listed in the order of their use.
    """
    units = {}
    for name in names:
        first, *rest = name.split(".")
        key = f"blocks.{rest[0]}" if first == "blocks" else "embedding" if first == "embedding" else "head"
        units.setdefault(key, []).append(name)
    return units
