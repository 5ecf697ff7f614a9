"""Exercise 12: which gradients travel together (lesson 02, about 15 minutes, difficulty 1 of 3).

    forward uses       embed 6 | block 0: 4 | block 1: 4 | head 2          elements, a bucket holds 8
    backward finishes  head 2, block 1: 4 | block 0: 4 | embed 6           three buckets, in the order of their start

Every rank makes this plan for itself, from the names and sizes alone, and all must come to the same one: what is summed
is the first bucket of all ranks, then the second, whichever gradients happen to be ready first.

Check it:  python -m refimpl check bucket_plan        Stuck:  python -m refimpl hint bucket_plan
"""


def bucket_plan(sizes, cap):
    """The buckets, in the order in which they are started: a list of lists of names.

    sizes    dict {name: elements}, in the order in which forward uses the parameters
    cap      how many elements a bucket may hold; a parameter that is larger has a bucket of its own

    Gradients are taken in the order in which backward finishes them. Each goes into the last bucket if it fits, and
    else into a new one.
    """
    # BEGIN SOLUTION
    buckets, filled = [], 0
    for name, size in reversed(sizes.items()):
        if not buckets or filled + size > cap:
            buckets.append([])
            filled = 0
        buckets[-1].append(name)
        filled += size
    return buckets
    # END SOLUTION
