"""The ring again, at full speed: the steps of `ring.py`, and nothing that memory does not have to do.

    plain       receive a chunk into a buffer, then add the buffer        the chunk goes through memory twice
    streamed    under MPI: receive 512 KiB, add them while they are in the cache, receive the next
                in this process: add straight from the sender's array, which waits until it has been read

and no header where `out` is given, no copy of a reduce-scatter's input. Messages, elements, order of additions, and so
the bits of the result are those of the plain ring.

What no all-reduce in memory can beat: 2 (P-1)/P copies of the array and (P-1)/P additions, on all ranks at once.
"""

from refimpl.arrays import array_namespace
from refimpl.collectives.reduction import ufunc
from refimpl.collectives.ring import all_gather_, chunks_of


def reduce_scatter_(x, comm, op="sum"):
    """Reduce x over the ranks, in place; rank r is left with the finished chunk r: `ring.reduce_scatter_`, streamed.

    x (n, ...), the same shape on every rank    sends n - len(chunk r) rows in P-1 messages
    """
    P, r = comm.size, comm.rank
    right, left = (r + 1) % P, (r - 1) % P
    chunk, combine = chunks_of(x, P), ufunc(op, x)
    for step in range(P - 1):
        target = chunk(r - step - 2)
        comm.sendrecv_reduce(chunk(r - step - 1), right, left, own=target, combine=combine, out=target)
    return chunk(r)


def all_reduce_(x, comm, op="sum"):
    """Reduce x over the ranks, in place, on every rank: `ring.all_reduce_`, streamed.

    x (n, ...)    sends 2n - len(chunk r) - len(chunk r+1) rows in 2(P-1) messages
    """
    reduce_scatter_(x, comm, op)
    return all_gather_(x, comm)


def reduce_scatter(x, comm, op, out):
    """Chunk r of the reduction of x, in `out`; x stays as it is.

    x (n, ...), out (len(chunk r), ...), which share no memory    sends n - len(chunk r) rows in P-1 messages
    """
    P, r = comm.size, comm.rank
    right, left = (r + 1) % P, (r - 1) % P
    chunk, combine = chunks_of(x, P), ufunc(op, x)
    if P == 1:
        out[...] = x
        return out
    rooms = [array_namespace(x).empty_like(chunk(P - 1)) for _ in range(min(2, P - 2))]     # one is sent, one filled
    sending = chunk(r - 1)
    for step in range(P - 1):                                 # what was summed in one step is sent in the next
        own = chunk(r - step - 2)
        target = out if step == P - 2 else rooms[step % 2][:len(own)]
        sending = comm.sendrecv_reduce(sending, right, left, own=own, combine=combine, out=target)
    return out


def all_gather(x, comm, out):
    """Every rank's chunk of `out`, in `out`: rank r brings x, which is chunk r of it.

    x (len(chunk r), ...), out (n, ...)    sends n - len(chunk r+1) rows in P-1 messages
    """
    chunks_of(out, comm.size)(comm.rank)[...] = x
    return all_gather_(out, comm)
