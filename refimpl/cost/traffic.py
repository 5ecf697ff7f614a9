"""What is sent: elements and messages of every collective and operator, as formulas.

n elements over P ranks; chunk k of them is [n*k//P, n*(k+1)//P). All counts are what one rank sends, or, where it says
"over all ranks", the group's sum. Bytes are elements times the size of one. Nothing here has ever seen an array: the
tests compare these numbers with what the ledger counted, and allow no difference.
"""


def chunk(n, P, k):
    """Elements of chunk k (mod P) of n over P ranks."""
    k %= P
    return n * (k + 1) // P - n * k // P


def ring_reduce_scatter(n, P, rank):
    """Elements that `rank` sends: everything but its own chunk. Over all ranks (P-1) n. (Patarasuk & Yuan 2009)"""
    return n - chunk(n, P, rank)


def ring_all_gather(n, P, rank):
    """Elements that `rank` sends: everything but its right neighbour's chunk. Over all ranks (P-1) n."""
    return n - chunk(n, P, rank + 1)


def ring_all_reduce(n, P, rank):
    """Elements that `rank` sends: a reduce-scatter and an all-gather. Over all ranks 2 (P-1) n."""
    return ring_reduce_scatter(n, P, rank) + ring_all_gather(n, P, rank)


def ring_messages(P, passes=1):
    """Messages that one rank sends in a ring of P ranks: P-1 a pass; an all-reduce is two passes."""
    return passes * (P - 1)


def doubling_all_reduce(n, P):
    """Elements sent over all ranks: lg K rounds of K ranks, K the largest power of two up to P, 2 (P-K) n to fold."""
    rounds = P.bit_length() - 1
    K = 2**rounds
    return n * (K * rounds + 2 * (P - K))


def doubling_messages(P):
    """Messages of that all-reduce, over all ranks."""
    return doubling_all_reduce(1, P)


def tree_broadcast(n, P):
    """Elements sent over all ranks: every rank but the root receives all n once."""
    return (P - 1) * n


def tree_gather(n, P):
    """Elements sent over all ranks to gather n to rank 0, or to scatter them from it, chunks as in a ring.

    Rank r > 0 sends the chunks of the block it heads: r to r + (lowest set bit of r) - 1.
    """
    return sum(n * min(r + (r & -r), P) // P - n * r // P for r in range(1, P))


def all_to_all(sizes, rank):
    """Elements that `rank` sends; sizes[k] go to rank k, its own stay."""
    return sum(sizes) - sizes[rank]


def tensor_parallel_mlp(rows, inputs, outputs, P, rank):
    """Elements that `rank` sends for one MLP, one step: {"forward": ..., "backward": ...}.

    Column-parallel, then row-parallel: one ring all-reduce of the output (rows, outputs) in forward and one of the
    input's gradient (rows, inputs) in backward, whatever the hidden size. (Shoeybi et al. 2019, section 3)
    """
    return {
        "forward": ring_all_reduce(rows * outputs, P, rank),
        "backward": ring_all_reduce(rows * inputs, P, rank),
    }
