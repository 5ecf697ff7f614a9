"""Exercise 26: what a layer keeps (lesson 03, about 25 minutes, difficulty 3 of 3).

    norm 1: input 2    attention: input 2    queries, keys, values 6    scores (below)    output 2    mask 1
    norm 2: input 2    MLP: input 2          hidden, before and after GELU 8 + 8                       mask 1

                       all in bytes, times s b h      scores: softmax 2, mask 1, dropped 2, times a s s b

Tensor parallelism cuts what lies inside attention and MLP: heads and hidden features, the scores among them. The
blocks' inputs, the norms' and the two masks stay whole, unless sequence parallelism cuts them, too. Recomputing
"selective" does not keep the scores; "full" keeps the layer's input alone. Your number is held against what a meter
counts on ranks that have run a layer in float16. (Korthikanti et al. 2022, section 4.)

Check it:  python -m refimpl check layer_keeps        Stuck:  python -m refimpl hint layer_keeps
"""


def layer_keeps(s, b, h, a, t, sequence_parallel, recompute):
    """Bytes that a layer of a GPT keeps on one of t ranks, from its forward to its backward.

    s positions, b sequences, h features, a heads    recompute    "none", "selective" or "full"
    The means and scales of the norms are not counted.
    """
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
