"""Recursive doubling: lg P rounds, the whole array in each. Fewest latencies, most bytes: for small messages.

    0 <--> 1   2 <--> 3        round 0: exchange with the rank whose number differs in bit 0, and add
    0 <------> 2               round 1: ... in bit 1. After lg P rounds everybody has everything.
        1 <------> 3

Where P is no power of two, some ranks fold first: see `folding.py`.

P = 2**k: lg P (alpha + n beta); each rank sends n lg P elements (Thakur, Rabenseifner & Gropp 2005).
"""

from refimpl.arrays import array_namespace
from refimpl.collectives.folding import fold_, rank_at, unfold_
from refimpl.collectives.reduction import combine_


def all_reduce_(x, comm, op="sum"):
    """Reduce x over the ranks, in place, on every rank; all ranks end with the same bits.

    x (any shape), the same on every rank    sends n elements in each of lg P messages (P a power of two)
    """
    mine, theirs = x, array_namespace(x).empty_like(x)
    place = fold_(x, comm, op, theirs)
    if place is not None:
        for bit in range(comm.size.bit_length() - 1):
            partner = rank_at(place ^ 2**bit, comm.size)
            comm.sendrecv(mine, dst=partner, src=partner, out=theirs)
            if place & 2**bit:                                # the lower rank's comes first on both sides: the order
                mine, theirs = theirs, mine                   # shows in the sign of a zero, or of a NaN
            combine_(op, mine, theirs)
        if mine is not x:
            x[...] = mine
    unfold_(x, comm)
    return x
