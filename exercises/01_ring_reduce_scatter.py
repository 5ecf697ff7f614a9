"""Exercise 01: the ring reduce-scatter (lesson 01, about 25 minutes, difficulty 2 of 3).

    0 --c3--> 1        Every rank brings the same n elements; rank r is to get the sum of everybody's chunk r.
    ^         |c0      In each of P-1 steps a rank sends one chunk to its right neighbour and receives another
  c2|         v        from its left, which it adds to its own. No rank ever sends a chunk to anybody else.
    3 <--c1-- 2
                       Step 0 is in the picture: chunk k starts at rank k+1, and reaches its owner, rank k, last.

Check it:  python -m refimpl check ring_reduce_scatter        Stuck:  python -m refimpl hint ring_reduce_scatter
"""

from refimpl.collectives import bounds


def ring_reduce_scatter(x, comm):
    """The sum over the ranks of chunk r of x, on rank r.

    x (n,), the same n on every rank; do not change it    ->  (len(chunk r),)
    comm    comm.rank, comm.size, comm.send(a, dst), comm.recv(src), comm.sendrecv(a, dst=..., src=...)

    Sends n - len(chunk r) elements in P-1 messages. n need not be a multiple of P: chunk k is x[b[k]:b[k + 1]], and
    with fewer elements than ranks some chunks are empty; send them all the same.
    """
    P, r = comm.size, comm.rank
    b = bounds(len(x), P)
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
