"""Exercise 10: what comes before what (lesson 08, about 25 minutes, difficulty 3 of 3).

    rank 0    0F0 -> 0F1 -> 0B0 -> 0B1        a rank does its list in order
    rank 1    1F0 -> 1B0 -> 1F1 -> 1B1

    0F0 -> 1F0    0F1 -> 1F1                  F needs what F of the stage before puts out
    1B0 -> 0B0    1B1 -> 0B1                  B needs the gradient from B of the stage behind
    0F0 -> 0B0    1F1 -> 1B1  and so on       and what its own F has kept

a happens before b if there is a way of arrows from a to b, however long. A schedule in which an action would have to
happen before itself can never run: this predicate is what finds deadlocks without running anything.

Check it:  python -m refimpl check happens_before        Stuck:  python -m refimpl hint happens_before
"""


def happens_before(ranks, a, b):
    """Whether action a must have ended before action b can start: True or False.

    ranks    per rank its actions in order, with F and B only; each is a tuple (stage, kind, microbatch), and its parts
             have these names: a.stage, a.kind, a.microbatch. A rank may have several stages.
    a, b     two of them; nothing happens before itself
    """
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE
