"""Exercise 41: find the bug in an accumulation (lesson 08, about 10 minutes, difficulty 1 of 3).

    every gradient is 1;  two rounds of four micro-batches      their mean is 1, and not 1.25

A pipeline runs a round of micro-batches, and there may be several rounds before the optimizer steps. The gradient of
the step is the mean over all micro-batches. With one round the code below is right. With two it is not (torchtitan
#1733).

Find out what is wrong, and mend it. Delete the line with NotImplementedError once you have read the code.

Check it:  python -m refimpl check accumulated_mean        Stuck:  python -m refimpl hint accumulated_mean
"""


def accumulated_mean(rounds):
    """The mean gradient of a step. rounds: a list of lists of gradients, here numbers; there is at least one in all."""
    # YOUR CODE HERE
    raise NotImplementedError("find the bug below, mend it, and delete this line")
    total = 0.0
    for microbatches in rounds:
        for gradient in microbatches:                                    # as the backwards come
            total += gradient
        total /= len(microbatches)                                       # the pipeline's round is over: its mean
    return total
    # END OF YOUR CODE
