"""Exercise 11: a backward in two halves (lesson 08, about 15 minutes, difficulty 2 of 3).

    x --w1--> a --w2--> y        two linear layers, a = x w1 and y = a w2: one stage of a pipeline

    now      dy  ->  dx          the stage before waits for it                    (action I)
    later    ->  dw1, dw2        nobody waits, and it fits into the bubble        (action W)

Four products of matrices in all, two of them now. What is needed again is kept, not computed twice.

Check it:  python -m refimpl check split_backward        Stuck:  python -m refimpl hint split_backward
"""


def split_backward(dy, saved):
    """dx at once, and a function that gives the weight gradients when it is called.

    dy (T, O)    saved: x (T, I), a (T, H), w1 (I, H), w2 (H, O)
    ->  dx (T, I), weight_gradients        weight_gradients()  ->  dw1 (I, H), dw2 (H, O)
    """
    x, a, w1, w2 = saved
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
