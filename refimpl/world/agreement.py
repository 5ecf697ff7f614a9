"""What the ranks of a collective must agree on, carried by its messages: (name, number of the call, {key: value}).

    rank 0   all_reduce call 3 (op=sum, shape=(4,))     the same on all ranks, or CollectiveMismatchError
    rank 1   all_reduce call 3 (op=max, shape=(4,))     rather than a sum that is wrong, or a wait that never ends

A value None agrees with anything: broadcast's receivers need not know the shape.
"""

import os


class Collective:
    """The block of one collective call on one rank; a collective inside it, on the same group, is a part of it."""

    def __init__(self, comm, name, bare, agree):
        self.comm, self.outermost = comm, comm.agreement is None
        self.entered = (name, comm.calls, agree | {"out": True} if bare else agree)
        self.bare = bare and os.environ.get("REFIMPL_CHECK") != "1"

    def __enter__(self):
        if self.outermost:
            self.comm.calls += 1
            self.comm.agreement, self.comm.bare = self.comm._agree(self.entered), self.bare

    def __exit__(self, *_):
        if self.outermost:
            self.comm.agreement, self.comm.bare = None, False


def common(mine, theirs):
    """What two agreements say together; None when they contradict each other."""
    if mine[:2] != theirs[:2] or mine[2].keys() != theirs[2].keys():
        return None
    known = {key: theirs[2][key] if value is None else value for key, value in mine[2].items()}
    if any(known[key] != value for key, value in theirs[2].items() if value is not None):
        return None
    return mine if known == mine[2] else (*mine[:2], known)


def describe(agreement):
    """Words for an agreement: `all_reduce call 3 (op=sum, shape=(4,))`."""
    name, number, agree = agreement
    details = ", ".join(f"{key}={value}" for key, value in agree.items() if value is not None)
    return f"{name} call {number}" + (f" ({details})" if details else "")
