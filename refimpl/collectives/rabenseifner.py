"""Rabenseifner's all-reduce: as few bytes as a ring, in lg P rounds instead of P-1.

    recursive halving     round 0: swap halves with the rank K/2 away, and add: each is left with half of the array
                          round 1: swap quarters with the rank K/4 away, and add     ...     until place k has chunk k
    recursive doubling    the same partners in reverse: give what you have, and have twice as much

    place     0        1        2        3          4 ranks, chunks a b c d
              a b . .  a b . .  . . c d  . . c d    after round 0 (partners 0-2 and 1-3)
              a . . .  . b . .  . . c .  . . . d    after round 1 (partners 0-1 and 2-3): the reduce-scatter is done

P = K = 2**k: 2 lg P alpha + 2 (P-1)/P n beta (Rabenseifner 2004; Thakur, Rabenseifner & Gropp 2005). Other P fold first
(`folding.py`), at the price of up to 2 n more elements for the ranks that do.
"""

from refimpl.arrays import array_namespace
from refimpl.collectives.chunks import bounds
from refimpl.collectives.folding import fold_, rank_at, unfold_
from refimpl.collectives.reduction import ufunc


def all_reduce_(x, comm, op="sum"):
    """Reduce x over the ranks, in place, on every rank; all ranks end with the same bits.

    x (n, ...), the same on every rank    a rank that takes part sends 2n - 2 len(chunk) rows in 2 lg K messages
    """
    place = fold_(x, comm, op, room=array_namespace(x).empty_like(x))
    if place is not None:
        K = 2 ** (comm.size.bit_length() - 1)
        b = bounds(x.shape[0], K)
        block = lambda first, count: x[b[first]:b[first + count]]           # chunks first..first+count-1
        half = K // 2
        while half:                                                         # halving: I keep the half that has my place
            mine = place // half * half
            partner, theirs = rank_at(place ^ half, comm.size), mine ^ half
            kept = block(mine, half)
            comm.sendrecv_reduce(block(theirs, half), partner, partner, own=kept, combine=ufunc(op, x), out=kept)
            half //= 2
        half = 1
        while half < K:                                                     # doubling: I give the half that I have
            mine = place // half * half
            partner, theirs = rank_at(place ^ half, comm.size), mine ^ half
            comm.sendrecv(block(mine, half), dst=partner, src=partner, out=block(theirs, half))
            half *= 2
    unfold_(x, comm)
    return x
