"""Exercise 23: put together what the experts made (lesson 09, about 20 minutes, difficulty 2 of 3).

    token 0 chose e2, e0      choices 0, 1          sorted by expert:   e0 | e1 | e2 | e2
    token 1 chose e1, e2      choices 2, 3          order               1    2    0    3

    rows[0] is what e0 made of token 0, weight weights[0, 1]        rows[3] what e2 made of token 1, weights[1, 1]

Rows come back in the order in which they were sent: sorted by expert. Choice number t k + j is the j-th of token t.
Where an expert had no room the choice is not in `order`, and no row comes back for it.

Check it:  python -m refimpl check moe_combine        Stuck:  python -m refimpl hint moe_combine
"""

import numpy as np


def moe_combine(rows, order, weights):
    """y_t = the sum of weights[t, j] * what the expert made of token t, over the choices of t that count.

    rows (n, h)    order (n,) integers: the number of the choice that each row belongs to, all different
    weights (T, k), of all choices, as the router gave them    ->  y (T, h)
    """
    T, k = weights.shape
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
