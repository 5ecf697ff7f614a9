"""Exercise 03: the ring all-reduce (lesson 01, about 20 minutes, difficulty 2 of 3).

    first lap, P-1 steps:     each chunk collects one addend at every stop, until its owner has the whole sum
    second lap, P-1 steps:    the finished chunks go around, and everybody keeps a copy

It is the reduce-scatter of exercise 01 and the all-gather of exercise 02, one after the other. A rank talks to its
neighbours only, and sends about 2n elements however many ranks there are.

Check it:  python -m refimpl check ring_all_reduce        Stuck:  python -m refimpl hint ring_all_reduce
"""

from refimpl.collectives import bounds


def ring_all_reduce(x, comm):
    """The sum of all ranks' x, on every rank.

    x (n,), the same n on every rank; do not change it    ->  (n,)
    comm    comm.rank, comm.size, comm.send(a, dst), comm.recv(src), comm.sendrecv(a, dst=..., src=...)

    Sends 2n - len(chunk r) - len(chunk r+1) elements in 2(P-1) messages. Chunk k is x[b[k]:b[k + 1]]; send empty ones,
    too.
    """
    P, r = comm.size, comm.rank
    b = bounds(len(x), P)
    # BEGIN SOLUTION
    y = x.copy()
    chunk = lambda k: y[b[k % P]:b[k % P + 1]]
    right, left = (r + 1) % P, (r - 1) % P
    for step in range(P - 1):
        chunk(r - step - 2)[...] += comm.sendrecv(chunk(r - step - 1), dst=right, src=left)
    for step in range(P - 1):
        chunk(r - step - 1)[...] = comm.sendrecv(chunk(r - step), dst=right, src=left)
    return y
    # END SOLUTION
