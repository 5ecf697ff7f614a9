"""Exercise 25: model states under ZeRO (lesson 03, about 15 minutes, difficulty 1 of 3).

    one parameter    weight 2 | gradient 2 or 4 | float32 copy 4, momentum 4, variance 4        bytes
    ZeRO             3          2                 1                 the stage from which on the ranks share it

Your numbers are held against what a meter counts on ranks that hold a model.

Check it:  python -m refimpl check model_states        Stuck:  python -m refimpl hint model_states
"""


def model_states(psi, zero, ranks, gradient):
    """Bytes that one of `ranks` data-parallel ranks holds at rest: (weights, gradients, optimizer).

    psi    parameters, a multiple of ranks    zero    stage 0 to 3    gradient    bytes of a gradient
    Weights are bfloat16; the optimizer is Adam in mixed precision.
    """
    # BEGIN SOLUTION
    share = lambda begins: psi / ranks if zero >= begins else psi
    return 2 * share(3), gradient * share(2), 12 * share(1)
    # END SOLUTION
