"""Exercise 43: count the bytes of a step (lesson 04, about 20 minutes, difficulty 2 of 3).

    stage    in a step of k micro-batches
    0        one all-reduce of the gradients
    1        one reduce-scatter of the gradients, one all-gather of the parameters
    2        a reduce-scatter for each micro-batch, one all-gather of the parameters
    3        a reduce-scatter for each micro-batch, and two all-gathers: for forward and for backward

How many bytes does one rank send? Gradients and parameters may have different dtypes. Your number is held against what
a ledger counts while `parallel/zero.py` runs.

Check it:  python -m refimpl check zero_bytes        Stuck:  python -m refimpl hint zero_bytes
"""


def zero_bytes(psi, ranks, stage, k, gradient, parameter):
    """Bytes that one rank sends in a step, all collectives by the ring.

    psi parameters, a multiple of `ranks`    stage 0 to 3    k micro-batches    gradient, parameter: bytes of each
    """
    # BEGIN SOLUTION
    lap = psi * (ranks - 1) // ranks                                     # elements of a reduce-scatter or all-gather
    gradients = {0: 2, 1: 1, 2: k, 3: k}[stage]
    parameters = {0: 0, 1: 1, 2: 1, 3: 2 * k}[stage]
    return lap * (gradients * gradient + parameters * parameter)
    # END SOLUTION
