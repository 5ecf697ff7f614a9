"""Exercise 36: count what a layer sends (lesson 06, about 15 minutes, difficulty 2 of 3).

    tensor parallel      all-reduce behind each of the two blocks, and one each in backward
    sequence parallel    all-gather before each block, reduce-scatter behind it; backward turns that around, and gathers
                         the block's input once more, as only the rank's positions of it were kept

A ring all-gather or reduce-scatter of n elements sends n (t-1)/t from each rank. Here t divides the sequence.

Check it:  python -m refimpl check layer_elements        Stuck:  python -m refimpl hint layer_elements
"""


def layer_elements(b, s, h, t, sequence_parallel):
    """Elements that each rank sends for one layer and one micro-batch: (in forward, in backward).

    b, s, h    sequences, positions, features    t    tensor-parallel ranks    sequence_parallel    True or False
    The layer is an attention and an MLP. The check runs it on ranks, and a ledger counts.
    """
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
