"""Ring collectives: every rank talks only to its neighbours, and no byte is sent twice.

    0 --c3--> 1        step 0 of P-1: each rank sends one chunk to its right.
    ^         |c0      Chunk k starts at rank k+1 and collects one addend at every stop,
  c2|         v        so that after P-1 stops its owner, rank k, holds the whole sum.
    3 <--c1-- 2        Step s: rank r sends chunk r-1-s and adds to chunk r-2-s.

Sent by rank r, n elements in all: reduce-scatter n - len(chunk r), all-gather n - len(chunk r+1);
(P-1) n each over the ring. On free links each takes (P-1) (alpha + n/P beta). Bandwidth-optimal (Patarasuk & Yuan
2009), at the price of P-1 latencies each.
"""

from refimpl.arrays import array_namespace
from refimpl.collectives.chunks import bounds
from refimpl.collectives.reduction import combine_


def reduce_scatter_(x, comm, op="sum"):
    """Reduce x over the ranks, in place; rank r is left with the finished chunk r, which is returned.

    x (n, ...), the same shape on every rank    sends n - len(chunk r) rows in P-1 messages
    """
    P, r = comm.size, comm.rank
    right, left = (r + 1) % P, (r - 1) % P
    chunk = chunks_of(x, P)
    room = array_namespace(x).empty_like(chunk(P - 1))        # the last chunk is a largest one
    for step in range(P - 1):                                 # chunk k reaches its owner, rank k, last
        target = chunk(r - step - 2)
        incoming = comm.sendrecv(chunk(r - step - 1), dst=right, src=left, out=room[:len(target)])
        combine_(op, target, incoming)
    return chunk(r)


def all_gather_(x, comm):
    """Give every rank all chunks, in place: rank r brings chunk r of x, and the others are overwritten.

    x (n, ...), the same shape on every rank    sends n - len(chunk r+1) rows in P-1 messages
    """
    P, r = comm.size, comm.rank
    right, left = (r + 1) % P, (r - 1) % P
    chunk = chunks_of(x, P)
    for step in range(P - 1):                                 # pass on what came last; chunk r+1 is the last to come
        comm.sendrecv(chunk(r - step), dst=right, src=left, out=chunk(r - step - 1))
    return x


def all_reduce_(x, comm, op="sum"):
    """Reduce x over the ranks, in place, on every rank: reduce-scatter, then all-gather.

    x (n, ...)    sends 2n - len(chunk r) - len(chunk r+1) rows in 2(P-1) messages    2(P-1)(alpha + n/P beta)
    """
    reduce_scatter_(x, comm, op)
    return all_gather_(x, comm)


def all_gather_blocks(block, comm):
    """Every rank's block, as a list in rank order; blocks may differ in size, each message says its own.

    block: any array, the rank's own    sends every block but that of rank r+1, in P-1 messages
    """
    P, r = comm.size, comm.rank
    blocks = [None] * P
    blocks[r] = block
    for step in range(P - 1):
        blocks[(r - step - 1) % P] = comm.sendrecv(blocks[(r - step) % P], dst=(r + 1) % P, src=(r - 1) % P)
    return blocks


def chunks_of(x, P):
    """A function from k, any whole number, to the view of chunk k mod P of x along its first axis."""
    b = bounds(x.shape[0], P)
    return lambda k: x[b[k % P]:b[k % P + 1]]
