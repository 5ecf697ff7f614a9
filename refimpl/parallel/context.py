"""Context parallelism: a sequence too long for one rank is dealt out, and only attention has to know.

    tokens, targets --shard--> embed -> norm -> wqkv -> [ core ] -> wo -> MLP -> ... -> total, count --sum over cp-->
                               each of its own positions only          as on one device

    kind        sends, forward                        hides it     needs
    "ring"      keys and values, P-1 blocks           yes          nothing          ring_attention.py
    "gather"    the same, before it computes          no           room for all keys    gather_attention.py
    "ulysses"   q k v out, each rank's share          no           heads for P ranks    ulysses.py
    "hybrid"    Ulysses among `ulysses` neighbours,   the ring     heads for `ulysses` ranks
                a ring over the groups they make

    a core is what model/block.py takes in place of attention:

        place = on_rank(whole_place, cp, core(cp, "ring", "zigzag"), "zigzag")       with tp around it, or without
        total, _, saved = transformer.loss(shard(tokens, ...), shard(targets, ...), parameters, config, place)
        gradients = loss_backward(1 / count, saved)      count: the targets of all ranks of dp_cp, see data.py

Every gradient that a rank computes, of norms, projections, tables, is that of its own positions: an addend over cp, as
over dp, and dp_cp sums both; attention's backward has brought home what other ranks' queries say about its keys. Divide
by the number of targets once, over all ranks: ranks have different numbers of them, and a mean of their means would be
another loss.
"""

import difflib
from dataclasses import replace
from functools import lru_cache, partial

from refimpl.model.blockwise import BLOCK
from refimpl.parallel.context_layout import all_positions, check_layout, positions, together
from refimpl.parallel.context_work import check_tiles, local_core
from refimpl.parallel.gather_attention import gather_attention, gather_attention_backward
from refimpl.parallel.ring_attention import ring_attention, ring_attention_backward
from refimpl.parallel.ulysses import ulysses_attention, ulysses_attention_backward

KINDS = ("ring", "gather", "ulysses", "hybrid")


def core(comm, kind="ring", layout="zigzag", ulysses=None, block=BLOCK):
    """Attention over the keys of all ranks of `comm`, by the signatures of model/attention.py: (forward, backward).

    comm       the cp group; every rank must make the core, as "hybrid" splits it
    kind       "ring" | "gather" | "ulysses" | "hybrid"        layout    "contiguous" | "striped" | "zigzag"
    ulysses    of "hybrid": how many neighbours exchange heads; it divides comm.size
    The forward raises ValueError, before anything is sent, for positions that are not this rank's under the layout, a
    length that the layout cannot cut, or heads that cannot be dealt out.
    """
    check_layout(layout)
    check_tiles(block)
    if kind not in KINDS:
        nearest = difflib.get_close_matches(str(kind), KINDS, n=1, cutoff=0.0)[0]
        raise ValueError(f"kind={kind!r}: expected one of {', '.join(KINDS)}; nearest {nearest!r}")
    if (kind == "hybrid") != (ulysses is not None):
        raise ValueError(f"ulysses={ulysses} with kind={kind!r}: give it with kind='hybrid', and only there")
    ranks_of = lru_cache(partial(all_positions, size=comm.size, layout=layout))
    if kind == "ring":
        operator, backward = partial(ring_attention, block=block), ring_attention_backward
    elif kind == "gather":
        operator, backward = partial(gather_attention, block=block), gather_attention_backward
    elif kind == "ulysses":
        operator, backward = partial(ulysses_attention, inner=local_core(comm, block)), ulysses_attention_backward
    else:
        operator, backward = _hybrid(comm, ulysses, block), ulysses_attention_backward

    def forward(q, k, v, causal, q_positions, kv_positions, dropout):
        everybody = ranks_of(q.shape[1] * comm.size)
        for given in (q_positions, kv_positions):
            if list(given) != list(everybody[comm.rank]):
                raise ValueError(f"rank {comm.rank} of {comm.size} was given positions {_shown(given)}, but has "
                                 f"{_shown(everybody[comm.rank])} of {layout} ones: context.on_rank(place, ...)")
        return operator(q, k, v, comm, everybody, causal, dropout)

    return forward, backward


def check_ulysses(ulysses, size):
    """ValueError unless `size` ranks of cp make groups of `ulysses`; names what works."""
    if ulysses < 1 or size % ulysses:
        works = [str(k) for k in range(1, size + 1) if size % k == 0]
        raise ValueError(f"ulysses={ulysses} does not divide cp={size}; ulysses may be {', '.join(works)}")


def _hybrid(comm, ulysses, block):
    """Ulysses among `ulysses` neighbours; between its all-to-alls a ring over ranks with the same heads."""
    check_ulysses(ulysses, comm.size)
    group, place = comm.rank // ulysses, comm.rank % ulysses
    neighbours = comm.split(group, comm.rank, name=f"{comm.name} ulysses")
    ring = comm.split(place, comm.rank, name=f"{comm.name} ring")

    def forward(q, k, v, comm, everybody, causal, dropout):
        groups = [everybody[k:k + ulysses] for k in range(0, len(everybody), ulysses)]
        of_ring = [together(members) for members in groups]

        def inner(q, k, v, causal, q_positions, kv_positions, dropout):
            return ring_attention(q, k, v, ring, of_ring, causal, dropout, block)

        return ulysses_attention(q, k, v, neighbours, groups[group], causal, dropout, (inner, ring_attention_backward))

    return forward


def on_rank(place, comm, core, layout="zigzag"):
    """A `Place` of whole sequences (model/block.py) as that of this rank: its positions, and attention by `core`.

    ValueError for a length that the layout cannot cut.
    """
    return replace(place, positions=positions(len(place.positions), comm.rank, comm.size, layout), core=core)


def _shown(positions):
    """A few of many numbers."""
    first = ", ".join(map(str, list(positions)[:4]))
    return f"{first}, ..." if len(positions) > 4 else first or "none"
