"""Which library an array belongs to, and the way between host and device.

    x on the host    array_namespace(x) is numpy     to_host(x) is x
    x on a GPU       array_namespace(x) is cupy      to_host(x) copies: the only way back, always spelled out

Operators are written once against `xp = array_namespace(x)`, use only names that both libraries share, and never mix
arrays of the two. The library is found by the arrays' own type, so CuPy need not be installed, let alone imported.
"""

import importlib.util
import sys

import numpy as np


def array_namespace(*arrays):
    """Return the module (numpy, cupy or one that acts like it) that all the arrays belong to.

    arrays  any shapes and dtypes; None is passed over, so that an optional bias needs no special care
    NumPy scalars count as numpy's. Raises TypeError if the arrays belong to several libraries, or to none.
    """
    found = {_module(a) for a in arrays if a is not None}
    if len(found) == 1:
        return sys.modules[found.pop()]
    if not found:
        raise TypeError("array_namespace was given no array; expected at least one")
    raise TypeError(f"arrays of different libraries: {' and '.join(sorted(found))}; expected all of one: "
                    "bring the others over with to_device(x, like), or fetch with to_host(x)")


def _module(x):
    if isinstance(x, np.ndarray | np.generic):                 # subclasses defined elsewhere included
        return "numpy"
    name = type(x).__module__.partition(".")[0]
    if not isinstance(x, getattr(sys.modules.get(name), "ndarray", ())):
        raise TypeError(f"{type(x).__module__}.{type(x).__name__} is not an array; expected a NumPy or CuPy array: "
                        "numpy.asarray(x) makes one")
    return name


def is_device(x):
    """True if the array x lives on a device, False if it lives in host memory."""
    return array_namespace(x) is not np


def to_host(x):
    """The array x as a NumPy array of the same shape and dtype; x itself if it is one, else a copy (waits for it)."""
    xp = array_namespace(x)
    return x if xp is np else xp.asnumpy(x)


def to_device(x, like):
    """The host array x in the library of the array `like`; x itself if that is NumPy, else a copy on like's device."""
    if is_device(x):
        raise TypeError("to_device takes a host array; x is on a device already")
    return array_namespace(like).asarray(x)


def synchronize(x):
    """Wait until the device has finished all work queued on its current stream. Nothing to do for a host array.

    Kernels are only queued when a CuPy call returns: wait before MPI, or a clock, looks at x.
    """
    if is_device(x):
        array_namespace(x).cuda.get_current_stream().synchronize()


def allocation(x):
    """(address, bytes) of the memory behind the array x: the same for all views of one array, and all of what they keep
    alive. None if x is no array, but a number or a function, say."""
    library = "numpy" if isinstance(x, np.ndarray) else type(x).__module__.partition(".")[0]
    kind = getattr(sys.modules.get(library), "ndarray", ())
    if not isinstance(x, kind):
        return None
    while isinstance(x.base, kind):
        x = x.base
    return address(x), x.nbytes


def address(x):
    """Where in memory the first element of the array x is, as a number."""
    return x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr


def same_device():
    """A function that makes another thread compute where this one does: CuPy's current device is each thread's own."""
    cupy = sys.modules.get("cupy")
    return cupy.cuda.Device().use if cupy is not None and cupy.cuda.is_available() else lambda: None


def usable_gpu():
    """Whether CuPy can compute here: (True, the device's name) or (False, why not and what to do).

    A driver is not enough: the linear-algebra libraries are first loaded by a matrix product, so one is tried.
    """
    if importlib.util.find_spec("cupy") is None:
        return False, "CuPy is not installed; pip install -r requirements-gpu.txt (Linux or Windows, NVIDIA GPU)"
    try:
        import cupy
        if not cupy.cuda.is_available():
            return False, f"CuPy {cupy.__version__} finds no GPU; install an NVIDIA driver, or use NumPy"
        ones = cupy.ones((2, 2))
        if float((ones @ ones).sum()) != 8.0:
            return False, f"CuPy {cupy.__version__} multiplies matrices wrongly; reinstall it for this CUDA version"
        return True, cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    except Exception as error:                                 # whatever a broken installation raises is the answer
        reason = str(error).strip().partition("\n")[0]
        return False, f"CuPy cannot compute here: {type(error).__name__}: {reason}; try pip install 'cupy-cuda13x[ctk]'"


def check_indices(index, length, name="index"):
    """Raise ValueError unless all integers in the array `index` (any shape) lie in 0..length-1.

    Only host arrays are read: looking at a device array would make every call wait for the GPU. There an index out of
    range wraps around silently, so check on the host before uploading.
    """
    if index.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {index.dtype}; expected integers: {name}.astype('int64')")
    if not is_device(index) and index.size and not 0 <= index.min() <= index.max() < length:
        worst = int(index.min() if index.min() < 0 else index.max())
        raise ValueError(f"{name} contains {worst}; expected 0..{length - 1}, nearest {min(max(worst, 0), length - 1)}")


def add_at_(target, index, values):
    """target[index[i]] += values[i] for every i, in place; equal indices accumulate. Returns target.

    target (rows, ...), index (n,) integers in 0..rows-1, values (n, ...)        O(n log n) adds of one row each

    `target[index] += values` keeps only one of equal indices, and CuPy's own add.at adds them in any order. Here equal
    indices are sorted next to each other and summed pairwise (a segmented scan, Hillis & Steele 1986): additions in a
    fixed order and gathers, never a scatter, so every run and every library gives the same bits.
    """
    xp = array_namespace(target, index, values)
    if index.ndim != 1 or values.shape != (*index.shape, *target.shape[1:]):
        raise ValueError(f"values {values.shape} and index {index.shape} do not fit target {target.shape}; expected "
                         f"index (n,) and values (n, {', '.join(map(str, target.shape[1:]))})")
    check_indices(index, target.shape[0])
    if index.shape[0] == 0:
        return target
    order = xp.argsort(index, kind="stable")
    key, total = index[order], values[order]
    step = 1
    while step < key.shape[0]:                       # total[i] sums the first `step` values of i's run, from i on
        same = (key[step:] == key[:-step]).reshape(-1, *[1] * (values.ndim - 1))
        total[:-step] += xp.where(same, total[step:], 0)
        step *= 2
    rows = xp.arange(target.shape[0])
    start = xp.searchsorted(key, rows)               # where each row's run starts; rows without one get the next's
    start = xp.minimum(start, key.shape[0] - 1)
    hit = (key[start] == rows).reshape(-1, *[1] * (values.ndim - 1))
    target += xp.where(hit, total[start], 0)
    return target


def integers(values, like):
    """Whole numbers known on the host as an int64 array in the library of the array `like`.

    values    a range, a list, or an integer array; one that is in like's library already stays where it is
    Positions and numbers of heads are such: what a rank holds decides the control flow, so the host knows it.
    """
    xp = array_namespace(like)
    if isinstance(values, range):
        return xp.arange(values.start, values.stop, values.step)
    found = xp.asarray(values) if len(values) else xp.arange(0)
    if found.dtype.kind not in "iu":
        raise ValueError(f"whole numbers expected, not {found.dtype}: x.astype('int64')")
    return found.astype(xp.int64)
