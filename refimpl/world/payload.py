"""What can be sent, and where it can be received: the same answers in both worlds, before anything is on its way.

A network moves memory, not meaning. So a payload is numbers in this machine's byte order: Python objects, strings and
dates are refused, lists and single numbers become arrays, subclasses of NumPy's array travel as plain ones.
"""

import numpy as np

from refimpl.arrays import is_device


def payload(x):
    """`x` as an array that can be sent, NumPy's or the device's own; ValueError that says why it cannot.

    x    an array, or anything that NumPy makes one of
    """
    if type(x) is not np.ndarray:
        try:
            on_device = is_device(x)
        except TypeError:                             # a list, a number, an array of some other library
            on_device = False
        x = x if on_device else np.asarray(x)
    dtype = x.dtype
    if dtype.kind not in "biufc":
        raise ValueError(f"an array of dtype {dtype} cannot be sent: "
                         "only booleans, integers, floats and complex numbers")
    if not dtype.isnative:
        raise ValueError(f"an array of dtype {dtype} has the other byte order: "
                         "send x.astype(x.dtype.newbyteorder('='))")
    return x


def library(x):
    """Name of the array library that the array `x` belongs to: "numpy", "cupy"."""
    return "numpy" if isinstance(x, np.ndarray) else type(x).__module__.partition(".")[0]


def misfit(out, shape, dtype, kind, src, group):
    """Why a message cannot be received into `out`, in words; None when it can.

    shape, dtype, kind    of the message's array, and its library    src, group    the sender, and the group's name
    """
    if out.shape != shape or out.dtype != dtype:
        return (f"the message of rank {src} of {group} has shape {shape} and dtype {dtype}, "
                f"but out has shape {out.shape} and dtype {out.dtype}")
    if library(out) != kind:
        return (f"the message of rank {src} of {group} is an array of {kind}, but out is one of {library(out)}: "
                "receive it without out, then move it")
    return None
