"""Exercise 30: model FLOPs and hardware FLOPs (lesson 13, about 20 minutes, difficulty 2 of 3).

    a layer's matrices    h x 3h, h x h, h x 4h, 4h x h        2 FLOPs for each element and token
    attention's core      queries times keys, probabilities times values: s x s pairs of h features, none left out
    the output table      h x V, for every token

    a step = forward + backward (+ what recomputation does again: the core, or all layers)

Of the first sum MFU is made, of all of it HFU: "52% of peak" can be either. Norms, softmax and masks are not counted.
(Narayanan et al. 2021, equation 3; Korthikanti et al. 2022, appendix A.)

Check it:  python -m refimpl check step_flops        Stuck:  python -m refimpl hint step_flops
"""


def step_flops(layers, h, s, V, B, recompute):
    """(model FLOPs, hardware FLOPs) of a training step of a GPT over B sequences of s tokens.

    recompute    "none", "selective" (attention's core) or "full" (every layer)
    """
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
