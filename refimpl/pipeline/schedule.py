"""A schedule: for every rank of a pipeline, the list of what it does, in this order; and which rank has which stage.

p ranks, v chunks of the model on each, so p v stages in all; a micro-batch goes through the stages 0, 1, 2, ...

    loop, p=4 v=2      rank 0: 0 4    1: 1 5    2: 2 6    3: 3 7        from the last rank back to the first
    V,    p=4 v=2      rank 0: 0 7    1: 1 6    2: 2 5    3: 3 4        down, then up again: 3 to 4 sends nothing

(Narayanan et al. 2021, section 2.2.2, for the loop; Qi et al. 2023 and 2024 for the V.)
"""

import operator
from dataclasses import dataclass
from functools import cached_property

from refimpl.pipeline.action import Action, Pair, parts


def loop(p, v):
    """The rank of each of the p v stages: stage s on rank s mod p."""
    return tuple(stage % p for stage in range(p * v))


def v_shape(p, v=2):
    """The rank of each of the 2p stages: down the ranks, and back up."""
    return (*range(p), *reversed(range(p)))


PLACEMENTS = {"loop": loop, "v": v_shape}


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """Who does what, in which order.

    name            of the family it comes from
    stages          p: pipeline ranks
    microbatches    m
    chunks          v: stages of the model on each rank
    placement       rank of each of the p v stages
    ranks           per rank a tuple of `Action` and `Pair`
    ValueError when the parts do not fit together. Whether the lists make sense is for `check` to say.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int
    placement: tuple
    ranks: tuple

    def __post_init__(self):
        p, v = whole("stages", self.stages), whole("chunks", self.chunks)
        whole("microbatches", self.microbatches)
        placement, ranks = tuple(self.placement), tuple(map(tuple, self.ranks))
        object.__setattr__(self, "placement", placement)
        object.__setattr__(self, "ranks", ranks)
        if sorted(placement) != [rank for rank in range(p) for _ in range(v)]:
            raise ValueError(f"placement={placement}: must name, for each of the {p * v} stages, a rank from 0 to "
                             f"{p - 1}, each {v} time{'s' * (v > 1)}; {loop(p, v)} works")
        if len(ranks) != p:
            raise ValueError(f"{len(ranks)} lists of actions for stages={p}: give one for every rank")
        for rank, row in enumerate(ranks):
            for action in row:
                if type(action) is not Action and type(action) is not Pair:
                    raise ValueError(f"rank {rank}: {action!r} is no Action and no Pair of two; "
                                     "build('custom', ranks=...) takes strings such as '0F3'")
                if type(action) is Pair and ("F" in action.first) + ("F" in action.second) != 1:
                    raise ValueError(f"rank {rank}: {action} is no pair of a forward and a backward")

    @cached_property
    def where(self):
        """Where each simple action is done: {action: (rank, position in the rank's list)}."""
        return {part: (rank, position) for rank, row in enumerate(self.ranks)
                for position, action in enumerate(row) for part in parts(action)}

    def stages_of(self, rank):
        """The stages that `rank` has, first to last: its chunk 0, 1, ..."""
        return [stage for stage, owner in enumerate(self.placement) if owner == rank]

    def __str__(self):
        return "\n".join(" ".join([f"rank{rank}:", *map(str, row)]) for rank, row in enumerate(self.ranks))

    def __repr__(self):
        return f"<{self.name}: stages={self.stages} microbatches={self.microbatches} chunks={self.chunks}>"


def whole(name, value, least=1):
    """`value` as an int; ValueError unless it is a whole number, `least` or more."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"{name}={value!r}: must be a whole number, {least} or more")
    return number


def layers_of(layers, stages, chunks=1, placement="loop"):
    """Which layers each rank holds: per rank a list with one range of layers for each of its chunks.

    layers        of the model; stage s of S = stages*chunks has layers [layers*s//S, layers*(s+1)//S)
    placement     "loop" or "v"
    ValueError when there are fewer layers than stages.
    """
    p, v = whole("stages", stages), whole("chunks", chunks)
    owners = place(placement, p, v)
    S = p * v
    if whole("layers", layers) < S:
        raise ValueError(f"layers={layers}: {p} ranks with {v} chunk{'s' * (v > 1)} each need a layer for every stage, "
                         f"{S} or more; with stages={p} chunks may be up to {max(layers // p, 1)}"
                         + ("" if layers >= p else f", and stages up to {layers}"))
    held = [[] for _ in range(p)]
    for stage, rank in enumerate(owners):
        held[rank].append(range(layers * stage // S, layers * (stage + 1) // S))
    return held


def place(placement, p, v):
    """The rank of each stage: of a placement's name, or of a list that says so itself. ValueError for anything else."""
    if not isinstance(placement, str):
        return tuple(placement)
    if placement not in PLACEMENTS or placement == "v" and v != 2:
        raise ValueError(f"placement={placement!r} with {v} chunks: must be 'loop', or 'v' with 2 chunks on every rank")
    return PLACEMENTS[placement](p, v)
