"""Collectives in the background: start one, compute, wait for it.

    request = all_reduce_start(gradient, comm)
    ...                                        # whatever does not need the sum
    total = request.wait()

Works started on one communicator run one after the other, in the order of their start, which must be the same on
every rank. Do not change the array before `wait` returns. In this process the work is a second greenlet of the rank;
under MPI a helper thread. On the virtual clock it begins when it is started, shares the rank's ports with what the rank
itself sends, and `wait` moves the rank's clock to its end: compute T and communication T' take max(T, T').
"""

import inspect
from functools import wraps

from refimpl.collectives import calls


def start(collective):
    """`collective`, with the same arguments, as a function that returns a `Request`; its `wait` gives the result."""
    signature = inspect.signature(collective)

    @wraps(collective)
    def begin(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        return given["comm"].background(lambda twin: collective(**given | {"comm": twin}))

    begin.__name__ = begin.__qualname__ = f"{collective.__name__}_start"
    begin.__doc__ = (f"Start `{collective.__name__}` in the background; "
                     f"the `wait` of the request returned gives its result.\n\n{collective.__doc__}")
    return begin


all_reduce_start = start(calls.all_reduce)
reduce_scatter_start = start(calls.reduce_scatter)
all_gather_start = start(calls.all_gather)
all_to_all_start = start(calls.all_to_all)
broadcast_start = start(calls.broadcast)
gather_start = start(calls.gather)
scatter_start = start(calls.scatter)
