"""Making the number of ranks a power of two: some ranks hand their array to a neighbour and sit out.

P ranks, K = 2**k the largest power of two up to P, rem = P - K. Of the first 2 rem ranks the even ones give their array
to the odd rank above, and get the result back at the end; the other K take part, and have the places 0 to K-1.

    P = 6, K = 4, rem = 2        rank     0 -> 1   2 -> 3   4   5
                                 place         0        1   2   3
"""

from refimpl.collectives.reduction import combine_


def fold_(x, comm, op, room):
    """Take in the array of the rank below, or hand x over. Returns this rank's place, or None if it sits out.

    x, room    arrays of one shape; x is changed in place, room is overwritten
    """
    rank, rem = comm.rank, comm.size - 2 ** (comm.size.bit_length() - 1)
    if rank >= 2 * rem:
        return rank - rem
    if rank % 2 == 0:
        comm.send(x, rank + 1)
        return None
    combine_(op, x, comm.recv(rank - 1, out=room))
    return rank // 2


def unfold_(x, comm):
    """Give the result in x to the rank that sat out, or receive it."""
    rank, rem = comm.rank, comm.size - 2 ** (comm.size.bit_length() - 1)
    if rank < 2 * rem:
        if rank % 2:
            comm.send(x, rank - 1)
        else:
            comm.recv(rank + 1, out=x)


def rank_at(place, P):
    """The rank that has `place` among the ranks that take part."""
    rem = P - 2 ** (P.bit_length() - 1)
    return 2 * place + 1 if place < rem else place + rem
