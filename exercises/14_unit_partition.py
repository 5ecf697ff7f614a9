"""Exercise 14: a unit, cut with padding (lesson 04, about 20 minutes, difficulty 2 of 3).

    w 6, b 3, v 4: 13 elements on 4 ranks; the next multiple of 4 is 16, so that a shard has 4

      w w w w | w w b b | b v v v | v . . .          rank 1 has w from 4 to 6 and b from 0 to 2
      rank 0    rank 1    rank 2    rank 3           rank 3 has v from 3 to 4, and padding

Shards must be of equal length, since one message carries each. But padding is no parameter: a norm or a checkpoint that
looked at it would read whatever stands there. So each rank must know which pieces of which parameters are its own.

Check it:  python -m refimpl check unit_partition        Stuck:  python -m refimpl hint unit_partition
"""


def unit_partition(sizes, ranks, alignment):
    """What each rank has of each parameter: a list, by rank, of lists of (name, start, stop).

    sizes        dict {name: elements}, in the order in which the parameters lie in the unit
    alignment    the unit's length is the next multiple of it; a multiple of ranks itself

    A piece is elements start to stop - 1 of its parameter. Pieces are in order, and none is empty. Padding is in none.
    """
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
