"""Trees: one rank to all or all to one, in ceil(lg P) rounds.

    level 1    [0 1]   [2 3]   [4 5]      Ranks merge into blocks of 2, 4, 8, ...; each block has one head.
    level 2    [0 1 2 3]       [4 5]      Gathering, the head of one half sends the whole half to the other head;
    level 3    [0 1 2 3 4 5]              broadcasting and scattering run the same tree backwards, largest blocks first.

A block holds consecutive ranks, so what its head holds is one consecutive piece of the result. The head is chosen by
the bits of `root`, so that the head of everything is `root` itself. With root 0 this is the binomial tree.

P = 2**k, n elements at the root: broadcast lg P (alpha + n beta), gather and scatter lg P alpha + n (P-1)/P beta
(Thakur, Rabenseifner & Gropp 2005). Messages: P-1, whatever P.
"""

from refimpl.arrays import array_namespace
from refimpl.collectives.chunks import bounds
from refimpl.collectives.reduction import combine_


def all_reduce_(x, comm, op="sum"):
    """Reduce x over the ranks, in place, on every rank: up the tree to rank 0, and back down.

    x (any shape), the same on every rank    2 (P-1) messages of n elements over all ranks; 2 lg P (alpha + n beta)
    """
    room = array_namespace(x).empty_like(x)
    for here, there, _ in merges(comm.rank, comm.size, root=0):
        if comm.rank == there:
            comm.send(x, here)
        else:
            combine_(op, x, comm.recv(there, out=room))
    for here, there, _ in reversed(merges(comm.rank, comm.size, root=0)):
        if comm.rank == here:
            comm.send(x, there)
        else:
            comm.recv(here, out=x)
    return x


def broadcast(x, comm, root):
    """The root's array, on every rank; others may give None.

    x (any shape)    P-1 messages of n elements over all ranks; a rank sends at most ceil(lg P) of them
    """
    for here, there, _ in reversed(merges(comm.rank, comm.size, root)):
        if comm.rank == here:
            comm.send(x, there)
        else:
            x = comm.recv(here)
    return x


def gather(x, comm, root):
    """On the root the ranks' arrays joined along the first axis, in rank order; None elsewhere.

    x (rows, ...), rows may differ    every rank but the root sends once: its block's rows
    """
    for here, there, block in merges(comm.rank, comm.size, root):
        if comm.rank == there:
            comm.send(x, here)
            return None
        other = comm.recv(there)
        x = array_namespace(x).concatenate([x, other] if there in upper(block) else [other, x])
    return x


def scatter(x, comm, root):
    """Each rank's chunk of the root's x along the first axis; others may give None.

    x (n, ...)    every rank but the root receives once: the rows of its block, then sends parts of them on
    """
    start = 0                                                   # row of the whole array at which my x begins
    for here, there, block in reversed(merges(comm.rank, comm.size, root)):
        if comm.rank == there:
            x = comm.recv(here)
            start = bounds(comm.agreed("length"), comm.size)[half_of(there, block)[0]]
        else:
            b = bounds(comm.agreed("length"), comm.size)
            first, last = half_of(there, block)
            comm.send(x[b[first] - start:b[last] - start], there)
            first, last = half_of(here, block)
            x, start = x[b[first] - start:b[last] - start], b[first]
    return x


def merges(rank, P, root):
    """The merges in which `rank` is a head, smallest blocks first, as (head that stays, head that ends, block).

    block: (first, middle, last): the halves are ranks first..middle-1 and middle..last-1
    """
    found = []
    size = 1
    while size < P:
        first = rank // (2 * size) * 2 * size
        middle, last = first + size, min(first + 2 * size, P)
        if middle < last:
            heads = head(first, middle, root), head(middle, last, root)
            stays = head(first, last, root)
            ends = heads[0] if stays == heads[1] else heads[1]
            if rank in heads:
                found.append((stays, ends, (first, middle, last)))
            if rank not in heads or rank == ends:
                break
        size *= 2
    return found


def head(first, last, root):
    """The rank that holds what the block of ranks first..last-1 holds: follow the bits of root, where they lead."""
    rank, size = first, 1
    while size < last - first:
        size *= 2
    while size > 1:
        size //= 2
        if root & size and rank + size < last:
            rank += size
    return rank


def half_of(rank, block):
    """(first, last) of the half of `block` that holds `rank`."""
    first, middle, last = block
    return (first, middle) if rank < middle else (middle, last)


def upper(block):
    """The ranks of the upper half of `block`."""
    return range(block[1], block[2])
