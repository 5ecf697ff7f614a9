"""Exercise 24: find the bug (lesson 09, about 20 minutes, difficulty 3 of 3).

    y = x . (shared + w_e)        a token's number from the vector that all tokens use and that of the expert it chose
    loss = the mean over all tokens of all ranks of their losses

Every rank has tokens and `shared`; expert e is on one rank only. On one rank the gradients below are right, and a test
that looks at those of `shared` passes on two. But on two ranks experts learn as if with twice the rate. This has
happened to more than one library.

Find out what is wrong, and mend it. Delete the line with NotImplementedError once you have read the code.

Check it:  python -m refimpl check expert_gradient        Stuck:  python -m refimpl hint expert_gradient
"""

import numpy as np

from refimpl.collectives import all_reduce, all_to_all


def expert_gradient(x, dy, choice, w, comm):
    """Gradients of the loss by `shared` and by this rank's experts.

    x (T, h), the rank's tokens; T may differ between ranks    choice (T,) integers: the expert of each
    dy (T,), the derivative of each token's own loss by its y    w (E_r, h), the rank's experts, as many on every rank
    ->  dshared (h,), the same on every rank    dw (E_r, h)
    """
    def to_experts(a):                                           # each token's part to the rank that has its expert
        parts = [a[choice // len(w) == rank] for rank in range(comm.size)]
        return np.concatenate(all_to_all(parts, comm))

    # BEGIN SOLUTION
    count = all_reduce(np.array([float(len(x))]), comm)          # of all tokens: divide once, and then only add
    dy = dy / count
    dshared = all_reduce(dy @ x, comm)
    dw = np.zeros_like(w)
    np.add.at(dw, to_experts(choice % len(w)), to_experts(dy[:, None] * x))
    return dshared, dw
    # INSTEAD
    # dy = dy / len(x)                                             # the loss is a mean over tokens
    # dshared = all_reduce(dy @ x, comm) / comm.size               # and a mean over the ranks that have `shared`: all
    # dw = np.zeros_like(w)
    # np.add.at(dw, to_experts(choice % len(w)), to_experts(dy[:, None] * x))
    # return dshared, dw                                           # an expert is on one rank: no mean to take
    # END SOLUTION
