"""Recursive doubling: lg P rounds, the whole array in each. Fewest latencies, most bytes: for small messages.

    0 <--> 1   2 <--> 3        round 0: exchange with the rank whose number differs in bit 0, and add
    0 <------> 2               round 1: ... in bit 1. After lg P rounds everybody has everything.
        1 <------> 3

P ranks that are no power of two: with 2**k <= P and rem = P - 2**k, the even ones of the first 2*rem ranks first give
their array to the odd rank above them, sit out, and get the result at the end.

P = 2**k: lg P (alpha + n beta); each rank sends n lg P elements (Thakur, Rabenseifner & Gropp 2005).
"""

from refimpl.arrays import array_namespace
from refimpl.collectives.reduction import combine_


def all_reduce_(x, comm, op="sum"):
    """Reduce x over the ranks, in place, on every rank; all ranks end with the same bits.

    x (any shape), the same on every rank    sends n elements in each of lg P messages (P a power of two)
    """
    rank = comm.rank
    rounds = comm.size.bit_length() - 1
    rem = comm.size - 2**rounds
    folded = rank < 2 * rem
    room = array_namespace(x).empty_like(x)
    if folded and rank % 2 == 0:
        comm.send(x, rank + 1)
        comm.recv(rank + 1, out=x)
        return x
    if folded:
        combine_(op, x, comm.recv(rank - 1, out=room))
    place = rank // 2 if folded else rank - rem               # my number among the 2**k that take part
    mine, theirs = x, room
    for bit in range(rounds):
        partner = place ^ 2**bit
        partner = 2 * partner + 1 if partner < rem else partner + rem
        comm.sendrecv(mine, dst=partner, src=partner, out=theirs)
        if place & 2**bit:                                    # the lower rank's comes first on both sides: the order
            mine, theirs = theirs, mine                       # shows in the sign of a zero, or of a NaN
        combine_(op, mine, theirs)
    if mine is not x:
        x[...] = mine
    if folded:
        comm.send(x, rank - 1)
    return x
