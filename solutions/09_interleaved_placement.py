"""Exercise 09: which layers an interleaved rank has (lesson 08, about 10 minutes, difficulty 1 of 3).

    8 layers on 2 ranks, 2 chunks each        rank 0    0 1        4 5
                                              rank 1        2 3        6 7

The model is cut into p v stages, and a micro-batch goes round: after the last rank comes the first one again. Stage s
of S has the layers from L s // S up to, not with, L (s + 1) // S, of L in all, so that any number can be cut.

Check it:  python -m refimpl check interleaved_placement        Stuck:  python -m refimpl hint interleaved_placement
"""


def interleaved_placement(rank, p, v, layers):
    """The layers that `rank` of p has: a list with a list of layer numbers for each of its v chunks."""
    # BEGIN SOLUTION
    S = p * v
    return [list(range(layers * s // S, layers * (s + 1) // S)) for s in range(rank, S, p)]
    # END SOLUTION
