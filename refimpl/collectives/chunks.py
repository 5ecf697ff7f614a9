"""How n items are cut for P ranks: chunk k is [n*k//P, n*(k+1)//P).

    n = 10, P = 4      [0 1] [2 3 4] [5 6] [7 8 9]      sizes differ by at most 1; with n < P some are empty
"""

from functools import lru_cache


@lru_cache(maxsize=4096)
def bounds(n, P):
    """The P + 1 limits of the chunks of n items: chunk k is [bounds[k], bounds[k+1])."""
    return tuple(n * k // P for k in range(P + 1))


def chunk_sizes(n, P):
    """Items in each of the P chunks."""
    b = bounds(n, P)
    return tuple(b[k + 1] - b[k] for k in range(P))
