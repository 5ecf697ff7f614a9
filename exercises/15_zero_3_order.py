"""Exercise 15: when ZeRO-3 gathers and frees (lesson 04, about 25 minutes, difficulty 3 of 3).

    network    gather 0 | gather 1  | gather 2  |
    compute             | forward 0 | forward 1 | forward 2       then backward, from the last unit to the first
    memory     0          0 1         1 2         2

A rank holds 1/N of every unit. The rest of a unit is gathered before it is used, in forward and once more in backward,
and freed after. While one unit computes, the next one that will be used is already on its way. Never more than two
units are whole.

Check it:  python -m refimpl check zero_3_order        Stuck:  python -m refimpl hint zero_3_order
"""


def zero_3_order(units):
    """What every rank does in one step, in order: a list of words such as "gather 0", "forward 0", "free 0".

    units    how many there are; forward uses 0, 1, ..., units - 1

    gather u     start to fetch the unit                forward u    needs it        free u    let it go
    reduce u     start to sum its gradient over ranks; after backward u, once        backward u    needs it, too

    Before each forward or backward, the unit that is used after it has been gathered. At most two are gathered at a
    time, none in the end, and none more often than twice in all.
    """
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
