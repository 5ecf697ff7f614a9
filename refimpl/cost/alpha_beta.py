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
    return _folded_doubling(P, rounds, alpha, t)


def _folded_doubling(P, rounds, alpha, t):
    """Recursive doubling among 2**rounds ranks, the first `rem` of which first took in the array of a rank below.

    `known`: when each of them has the sum so far. It sends it on at once, its port being free: it had the sum before
    at least t earlier. A partner's array is taken in behind the last one.
    """
    rem = P - 2**rounds
    known = [alpha + t if place < rem else 0.0 for place in range(2**rounds)]
    for bit in range(rounds):
        known = [max(known[place ^ 2**bit] + alpha, known[place]) + t for place in range(2**rounds)]
    return max(known + [time + alpha + t for time in known[:rem]])


def tree_broadcast(P, alpha, t):
    """From rank 0. lg P (alpha + t) for a power of two; else a recursion over blocks: P = 3 takes alpha + 2 t."""
    rounds = P.bit_length() - 1
    return rounds * (alpha + t) if P == 2**rounds else _down_the_tree(P, 0.0, alpha, lambda ranks: t)


def tree_scatter(P, alpha, t):
    """From rank 0, 1/P of the array to each. lg P alpha + t (P-1)/P for a power of two; else the recursion."""
    rounds = P.bit_length() - 1
    if P == 2**rounds:
        return rounds * alpha + t * (P - 1) / P
    return _down_the_tree(P, 0.0, alpha, lambda ranks: t * ranks / P)


def tree_gather(P, alpha, t):
    """To rank 0, 1/P of the array from each. lg P alpha + t (P-1)/P for a power of two; else a recursion over blocks.

    The head of a block takes in the blocks above it, of 1, 2, 4, ... ranks, in this order, one at a time; a later one
    that is there early goes first where it does not hold up those before it.
    """
    rounds = P.bit_length() - 1
    if P == 2**rounds:
        return rounds * alpha + t * (P - 1) / P

    def gathered(size):
        busy = []                                         # (from, until): when the head's port takes a block in
        for upper in (min(2**k, size - 2**k) for k in range((size - 1).bit_length())):
            begins, seconds = gathered(upper) + alpha, t * upper / P
            for other, until in sorted(busy):
                if begins + seconds <= other:
                    break
                begins = max(begins, until)
            busy.append((begins, begins + seconds))
        return max((until for _, until in busy), default=0.0)

    return gathered(P)


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
