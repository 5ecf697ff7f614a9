"""Exercise 18: who has which position (lesson 07, about 10 minutes, difficulty 1 of 3).

    16 positions on 4 ranks: 8 chunks of 2

    chunk      0    1    2    3    4    5    6    7
    rank       0    1    2    3    3    2    1    0        there and back: each rank has an early and a late chunk

A causal query sees all that comes before it, so late positions cost most. Zigzag gives every rank two chunks whose
costs add up to the same.

Check it:  python -m refimpl check zigzag_owner        Stuck:  python -m refimpl hint zigzag_owner
"""


def zigzag_owner(position, length, ranks):
    """Who has a position, and where.

    position 0 .. length - 1    length    a multiple of 2 * ranks
    ->  rank, and the place among the rank's own positions, which are in ascending order: 0, 1, ...
    """
    # BEGIN SOLUTION
    size = length // (2 * ranks)
    chunk, inside = divmod(position, size)
    if chunk < ranks:
        return chunk, inside
    return 2 * ranks - 1 - chunk, size + inside
    # END SOLUTION
