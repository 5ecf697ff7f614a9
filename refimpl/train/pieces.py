"""From what the ranks hold to whole arrays: a model is put together from its pieces, whatever cut it.

    whole array         w
    tp (heads, ...)     w_0               w_1                    shards.unshard: as each kind of parameter was cut
    dp, cp (ZeRO)       flat piece, flat piece    flat ...       elements start..stop-1 of w_t, flattened
    pp                  one of the stages has it; of a tied table both ends have the same bits

A rank describes what it holds by name as (start, flat array); padding is in none. The other way is to cut the whole
arrays as a new layout says, so any layout goes on from any other, bit by bit.
"""

import math

import numpy as np

from refimpl.model.config import shapes
from refimpl.parallel import shards
from refimpl.parallel.expert_groups import Share, is_expert


def whole(config, layout, held):
    """The whole model's arrays of one kind (parameters, a moment, gradients): dict by name, in the model's order.

    config, layout    of the run that they come from
    held     for every rank of the world {name: (start, flat host array)}; replicas may leave out what others have
    ValueError for an element that no rank has.
    """
    dtypes = {name: piece.dtype for mine in held for name, (_, piece) in mine.items()}
    names = [name for name in shapes(config) if name in dtypes]
    places = [(layout.coordinates(rank)["tp"], share_of(layout, rank)) for rank in range(layout.world)]
    dense, experts = ([name for name in names if is_expert(name) == kind] for kind in (False, True))
    put = lambda names, tp, share, ranks: _put_together(local_shapes(config, tp, layout.tp, names, share), dtypes,
                                                        ranks)
    cut = [put(dense, tp, None, [mine for mine, place in zip(held, places) if place[0] == tp])
           for tp in range(layout.tp)]
    of_share = {share: put(experts, 0, share, [mine for mine, place in zip(held, places) if place[1] == share])
                for share in {place[1] for place in places}} if experts else None
    for mine in cut if experts else ():
        mine |= dict.fromkeys(experts)                                  # unshard takes these from the shares
    found = shards.unshard(cut, config, of_share)
    return {name: found[name] for name in names}


def share_of(layout, rank):
    """Which of the experts a rank has: `Share`."""
    ep, expert_tp = layout.group("ep", rank), layout.group("expert_tp", rank)
    return Share(ep.index(rank), len(ep), expert_tp.index(rank), len(expert_tp))


def _put_together(local, dtypes, ranks):
    """Parameters of these local shapes as the ranks at one place hold them, from the pieces of all of those."""
    return {name: joined(name, shape, dtypes[name], [mine[name] for mine in ranks if name in mine])
            for name, shape in local.items()}


def local_shapes(config, rank, size, names, share=None):
    """The shapes of these parameters on tensor-parallel `rank` of `size`, and, for experts, on a `Share`: by name."""
    like = {name: np.broadcast_to(np.int8(0), shape) for name, shape in shapes(config).items() if name in names}
    return {name: p.shape for name, p in shards.shard(like, config, rank, size, share=share).items()}


def joined(name, shape, dtype, pieces):
    """One array of this shape from [(start, flat array)], which cover it; where they overlap, they are replicas."""
    found = np.empty(math.prod(shape), dtype)
    reached = 0
    for start, piece in sorted(pieces, key=lambda one: one[0]):
        if start > reached:
            break
        found[start:start + piece.size] = piece
        reached = max(reached, start + piece.size)
    if reached < found.size:
        raise ValueError(f"{name} {shape}: no rank has element {reached} of {found.size}")
    return found.reshape(shape)
