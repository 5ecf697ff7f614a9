"""What a reduction may do with two numbers, and with two arrays in place.

Addition of floats is not associative, so the order of the ranks shows in the last bits; each algorithm keeps its own
fixed order, and every one of ours leaves the same bits on all ranks.
"""

from difflib import get_close_matches

from refimpl.arrays import array_namespace

UFUNCS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
OPS = tuple(UFUNCS)


def check_op(op, dtype):
    """ValueError unless `op` is one of OPS and means something for `dtype`."""
    if op not in OPS:
        near = repr((get_close_matches(str(op), OPS, n=1, cutoff=0.3) or ["sum"])[0])
        if str(op).startswith(("mean", "av")):
            near = "'sum', then divide by comm.size"
        raise ValueError(f"op={op!r} is not a reduction: one of {', '.join(OPS)} (perhaps {near}?)")
    if dtype.kind == "b" and op in ("sum", "prod"):
        raise ValueError(f"op={op!r} of booleans: send x.astype(int), or use max (any) or min (all)")
    if dtype.kind == "c" and op in ("max", "min"):
        raise ValueError(f"op={op!r} of complex numbers: they have no order; reduce real and imaginary parts apart")


def ufunc(op, x):
    """The elementwise function of `op` in the library of x: ufunc(a, b, out=c). NaN wins in max and min."""
    return getattr(array_namespace(x), UFUNCS[op])


def combine_(op, target, incoming):
    """target = op(target, incoming), in place, elementwise; both of one shape."""
    ufunc(op, target)(target, incoming, out=target)
