"""Exercise 38: find the bug in a mean (lesson 02, about 15 minutes, difficulty 2 of 3).

    rank 0: one token, loss 4            the loss is their mean, 10/4 = 2.5
    rank 1: three tokens, 1, 2, 3        not the mean of 4 and 2

Sequences have different lengths, so micro-batches have padding and ranks have different numbers of tokens. The loss is
a mean over tokens, however they are spread. The function below says 3, and its gradients are as wrong. So it was in
more than one training library (huggingface/transformers #608, torchtune #1875).

Find out what is wrong, and mend it. Delete the line with NotImplementedError once you have read the code.

Check it:  python -m refimpl check token_mean        Stuck:  python -m refimpl hint token_mean
"""

import numpy as np

from refimpl.collectives import all_reduce


def token_mean(losses, counts, comm):
    """The mean loss over all tokens of all ranks, and its derivative by each token's own loss.

    losses (k, s), of the rank's k micro-batches; k may differ between ranks, and be 0
    counts (k, s), 1.0 where there is a token and 0.0 where there is padding; a micro-batch may be all padding
    ->  loss, a number, the same on every rank    dlosses (k, s)
    """
    # BEGIN SOLUTION
    sums = np.array([(losses * counts).sum(), counts.sum()])
    total, tokens = all_reduce(sums, comm)
    return total / tokens, counts / tokens
    # INSTEAD
    # tokens = counts.sum(axis=1, keepdims=True)                           # of each micro-batch
    # means = (losses * counts).sum(axis=1, keepdims=True) / tokens
    # loss = all_reduce(means.mean(), comm) / comm.size
    # return loss, counts / tokens / len(losses) / comm.size
    # END SOLUTION
