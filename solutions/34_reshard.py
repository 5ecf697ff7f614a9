"""Exercise 34: a checkpoint for another number of ranks (lesson 12, about 25 minutes, difficulty 2 of 3).

    written by 3 ranks, 10 elements     (0, a0 a1 a2)   (3, a3 a4 a5)   (6, a6 a7 a8 a9)     each file: (start, piece)
    read by 2                           a0 a1 a2 a3 a4 | a5 a6 a7 a8 a9

Files come in any order. Ranks that held the same piece may each have written it, and a piece may overlap another one's
end: where elements are there twice they are the same. Where one is missing, nothing may be read at all: a model with a
hole in it trains on, and nobody notices.

Check it:  python -m refimpl check reshard        Stuck:  python -m refimpl hint reshard
"""

import numpy as np  # noqa: F401

from refimpl.collectives import bounds  # noqa: F401


def reshard(files, size, ranks):
    """What each of `ranks` new ranks gets of an array of `size` elements: a list of arrays.

    files    [(start, piece)], piece an array with the elements start, start + 1, ...: do not change it
    size     elements of the whole array    ranks    shard r of them is [bounds(size, ranks)[r], ...[r + 1])

    Raise a ValueError if an element is in no file.
    """
    # BEGIN SOLUTION
    whole, there = np.empty(size, files[0][1].dtype if files else float), np.zeros(size, bool)
    for start, piece in files:
        whole[start:start + len(piece)] = piece
        there[start:start + len(piece)] = True
    if not there.all():
        raise ValueError(f"element {there.argmin()} of {size} is in no file")
    b = bounds(size, ranks)
    return [whole[b[rank]:b[rank + 1]].copy() for rank in range(ranks)]
    # END SOLUTION
