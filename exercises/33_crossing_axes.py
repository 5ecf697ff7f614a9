"""Exercise 33: which axes leave a node (lesson 10, about 15 minutes, difficulty 2 of 3).

    16 ranks, all sizes 2, nodes of 8        order "tp-cp-dp-pp"    pp crosses: [0, 8], [1, 9], ...
                                             order "tp-cp-pp-dp"    dp crosses

What crosses takes the slow link, whatever it sends. Nodes need not have as many GPUs as an axis has ranks, nor a
multiple: with three ranks along tp and nodes of 8, the third group is [6, 7, 8].

Check it:  python -m refimpl check crossing_axes        Stuck:  python -m refimpl hint crossing_axes
"""


def crossing_axes(sizes, order, node_size):
    """The axes of which at least one group has ranks on more than one node: a list of their names, in any order.

    sizes    dict {axis: ranks along it}    order    fastest first    node_size    rank r is on node r // node_size
    """
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
