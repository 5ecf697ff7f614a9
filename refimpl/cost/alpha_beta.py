"""How long a collective takes on free links: the alpha-beta model, as formulas.

alpha seconds latency a message, t = bytes * beta seconds to push the whole array through a port, P ranks. A port
carries one message at a time each way, and sending does not hold up the sender. Where P is no power of two, messages
queue at ports, and a textbook formula no longer fits; then the same question is asked of a recursion that knows only
when each message may leave and when its port is free. Sources of the formulas: Thakur, Rabenseifner & Gropp 2005;
Patarasuk & Yuan 2009.

The tests compare these seconds with the virtual clock of the algorithms as they run.
"""


def ring_pass(P, alpha, t):
    """A ring reduce-scatter, or all-gather: P-1 steps of 1/P of the array each. Exact where P divides its length."""
    return (P - 1) * (alpha + t / P)


def ring_all_reduce(P, alpha, t):
    """2 (P-1) (alpha + t/P): one pass to reduce, one to gather."""
    return 2 * ring_pass(P, alpha, t)


def doubling_all_reduce(P, alpha, t):
    """lg P (alpha + t) for a power of two; else the recursion below: P = 3 takes 2 alpha + 3 t."""
    rounds = P.bit_length() - 1
    if P == 2**rounds:
        return rounds * (alpha + t)
    return _folded(P, alpha, t, [(bit, t) for bit in range(rounds)])


def rabenseifner_all_reduce(P, alpha, t):
    """2 lg P alpha + 2 t (P-1)/P for a power of two; else the recursion below, on chunks of equal size."""
    rounds = P.bit_length() - 1
    if P == 2**rounds:
        return 2 * rounds * alpha + 2 * t * (P - 1) / P
    halving = [(bit, t * 2**bit / 2**rounds) for bit in reversed(range(rounds))]
    return _folded(P, alpha, t, halving + halving[::-1])


def _folded(P, alpha, t, exchanges):
    """Exchanges among K = 2**k ranks, the first `rem` of which first took in the array of a rank below, and return it.

    exchanges    (bit in which the partners differ, seconds that a message takes to leave), in order
    Per rank: `known`, when it has all that the next message needs; `sent`, `taken`: when its port out, in, is free.
    """
    K = 2 ** (P.bit_length() - 1)
    rem = P - K
    known = [alpha + t if place < rem else 0.0 for place in range(K)]
    taken = list(known)
    sent = [0.0] * K
    for bit, seconds in exchanges:
        leaves = [max(known[place], sent[place]) for place in range(K)]
        sent = [time + seconds for time in leaves]
        taken = [max(leaves[place ^ 2**bit] + alpha, taken[place]) + seconds for place in range(K)]
        known = list(taken)
    back = [max(known[place], sent[place]) + alpha + t for place in range(rem)]
    return max(known + back)


def hierarchical_all_reduce(N, M, t, intra, inter):
    """N ranks a node, M nodes, a NIC for every rank: 2 (N-1)(alpha + t/N) inside, 2 (M-1)(alpha' + t'/(N M)) between.

    t       seconds per beta of the whole array: its bytes        intra, inter    (alpha, beta) of the two links
    """
    (a, b), (a2, b2) = intra, inter
    return ring_all_reduce(N, a, t * b) + ring_all_reduce(M, a2, t * b2 / N)


def direct_all_gather(P, alpha, t):
    """Everybody sends its 1/P to everybody at once: alpha + t (P-1)/P."""
    return (alpha if P > 1 else 0.0) + t * (P - 1) / P


def tree_broadcast(P, alpha, t):
    """From rank 0. lg P (alpha + t) for a power of two; else a recursion over blocks: P = 3 takes alpha + 2 t."""
    rounds = P.bit_length() - 1
    return rounds * (alpha + t) if P == 2**rounds else _down_the_tree(P, 0.0, alpha, lambda ranks: t)


def tree_all_reduce(P, alpha, t):
    """Up to rank 0 and down again. 2 lg P (alpha + t) for a power of two; else recursions over blocks."""
    rounds = P.bit_length() - 1
    if P == 2**rounds:
        return 2 * rounds * (alpha + t)
    return _down_the_tree(P, _up_the_tree(P, alpha, lambda ranks: t), alpha, lambda ranks: t)


def tree_scatter(P, alpha, t):
    """From rank 0, 1/P of the array to each. lg P alpha + t (P-1)/P for a power of two; else the recursion."""
    rounds = P.bit_length() - 1
    if P == 2**rounds:
        return rounds * alpha + t * (P - 1) / P
    return _down_the_tree(P, 0.0, alpha, lambda ranks: t * ranks / P)


def tree_gather(P, alpha, t):
    """To rank 0, 1/P of the array from each. lg P alpha + t (P-1)/P for a power of two; else the recursion."""
    rounds = P.bit_length() - 1
    if P == 2**rounds:
        return rounds * alpha + t * (P - 1) / P
    return _up_the_tree(P, alpha, lambda ranks: t * ranks / P)


def _up_the_tree(size, alpha, seconds):
    """When the head of a block of `size` ranks has everything.

    It takes in the blocks above it, of 1, 2, 4, ... ranks, in this order, one at a time; a later one that is there
    early goes first where it does not hold up those before it. `seconds(ranks)`: how long a message for so many takes.
    """
    busy = []                                             # (from, until): when the head's port takes a block in
    for upper in (min(2**k, size - 2**k) for k in range((size - 1).bit_length())):
        begins = _up_the_tree(upper, alpha, seconds) + alpha
        for other, until in sorted(busy):
            if begins + seconds(upper) <= other:
                break
            begins = max(begins, until)
        busy.append((begins, begins + seconds(upper)))
    return max((until for _, until in busy), default=0.0)


def _down_the_tree(size, known, alpha, seconds):
    """When the last rank of a block of `size` has its part, if the block's head has everything at `known`.

    The head sends to the head of the upper half, which begins at a power of two, then to the next smaller one, each
    message leaving when the last has left; `seconds(ranks)` is how long a message for so many ranks takes to leave.
    """
    latest = known
    while size > 1:
        half = 2 ** ((size - 1).bit_length() - 1)
        known += seconds(size - half)
        latest = max(latest, _down_the_tree(size - half, known + alpha, alpha, seconds))
        size = half
    return latest


def all_to_all(P, alpha, t):
    """P-1 exchanges of t/P each: every rank sends 1/P of its array to every other."""
    return (P - 1) * (alpha + t / P)


def barrier(P, alpha):
    """ceil(lg P) rounds of messages without payload."""
    return (P - 1).bit_length() * alpha
