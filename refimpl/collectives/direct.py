"""Direct all-gather: everybody sends its block to everybody, all at once. One latency instead of P-1.

    rank r, all posted together:    to r+1, r+2, ...    from r-1, r-2, ...

Rank r sends (P-1) len(chunk r) elements, over all ranks (P-1) n, as a ring does; alpha + n (P-1)/P beta where every
pair of ranks has a path of its own. A ring asks less of the network: only neighbours talk. On one machine, where a
message is a copy, nobody waits for a neighbour that has to wait for its own.
"""

from refimpl.collectives.ring import chunks_of


def all_gather(x, comm, out):
    """Every rank's chunk of `out`, in `out`: rank r brings x, which is chunk r of it.

    x (len(chunk r), ...), out (n, ...)    sends (P-1) len(chunk r) rows in P-1 messages
    """
    P, r = comm.size, comm.rank
    chunk = chunks_of(out, P)
    chunk(r)[...] = x                                          # first: x may be a part of `out` that is about to change
    receives = [comm.irecv((r - step) % P, out=chunk(r - step)) for step in range(1, P)]
    sends = [comm.isend(chunk(r), (r + step) % P) for step in range(1, P)]
    for request in receives + sends:
        request.wait()
    return out
