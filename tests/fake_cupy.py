"""A stand-in for CuPy: computes on the host, keeps CuPy's rules, and refuses what CuPy would do behind your back.

    import fake_cupy as cp
    x = cp.asarray(numpy_array)            the ways in:  asarray, array, x.set
    y = cp.tanh(x @ w + b)                 device arrays only, names that CuPy 14 has
    cp.asnumpy(y), y.get()                 the ways out, spelled out

Refused because CuPy refuses: host arrays in device arithmetic, implicit conversion to NumPy, names and keyword
arguments CuPy lacks, lists where an array belongs, a device scalar as an index, a shape or an axis. Refused because
CuPy does it silently, at a price: np.f(x), hidden synchronisation (float(x), `if x:`, x[mask], arange(n) and bincount
of device arrays), pickling, indexing by host arrays, `x @= y`, assignment to equal indices (which wins is undefined).
Otherwise, where CuPy's results differ, so do these: reductions and single items are 0-d arrays, x[0] is a view,
elementwise results are C-contiguous.
"""

import contextlib
import pathlib
import sys
import types

import numpy as np


def _lines(name):
    text = (pathlib.Path(__file__).parent / "data" / name).read_text()
    return [line for line in text.splitlines() if not line.startswith("#")]


NAMES = frozenset(" ".join(_lines("cupy_names.txt")).split())
MISSING_KEYWORDS = {line.split(":")[0]: set(line.split()[1:]) for line in _lines("cupy_missing_keywords.txt")}
NUMBERS = {name: words.split() for name, words in (line.split(":") for line in _lines("cupy_numbers.txt"))}
UFUNC_KEYWORDS = {"out", "dtype", "casting"}
SHAPE_DEPENDS_ON_VALUES = {"nonzero", "flatnonzero", "argwhere", "extract", "compress", "setdiff1d", "intersect1d",
                           "union1d", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
                           "bincount", "delete", "setxor1d", "trim_zeros"}
COPIES_TO_HOST = {"item", "tolist", "tobytes", "tofile", "dump", "dumps"}
NOT_ON_DEVICE = {"ctypes", "flat", "device", "to_device", "setflags", "resize", "getfield", "setfield"}

_synchronize_allowed = False


@contextlib.contextmanager
def allow_synchronize(allowed=True):
    """Within the block, let float(x), x.item(), x[mask] and the like wait for the device, as CuPy silently does."""
    global _synchronize_allowed
    before, _synchronize_allowed = _synchronize_allowed, allowed
    try:
        yield
    finally:
        _synchronize_allowed = before


def _synchronizes(what):
    if not _synchronize_allowed:
        raise RuntimeError(f"{what} waits for the device and copies to the host; "
                           "use asnumpy(x) where that is meant, or allow_synchronize()")


def _host(x):
    """The host value behind an argument: device arrays are opened, host arrays refused, containers searched."""
    if isinstance(x, ndarray):
        return x._values
    if isinstance(x, np.ndarray):
        raise TypeError(f"a host array {x.shape} {x.dtype} meets device arrays; asarray(x) brings it over")
    if isinstance(x, list | tuple):
        return type(x)(map(_host, x))
    return x


def _device(result):
    """The device value for a host result; single numbers, too, become device arrays."""
    if isinstance(result, np.ndarray | np.number | np.bool_):
        return ndarray(np.asarray(result))
    if isinstance(result, list | tuple):
        return type(result)(map(_device, result))
    return result


def _holds_device_array(x):
    return isinstance(x, ndarray) or (isinstance(x, list | tuple) and any(map(_holds_device_array, x)))


def _check_numbers(name, args, keywords, of_array):
    """Refuse device arrays where CuPy's function, or method of an array, wants numbers that Python knows."""
    parameters = NUMBERS.get(name, ())[of_array:]
    if of_array and name in {"reshape", "transpose"}:                     # all arguments are one parameter's
        args = (args,)
    given = [*zip(parameters, args), *((p, keywords.get(p.rstrip("?"))) for p in parameters)]
    for parameter in (parameter for parameter, x in given if parameter != "_" and _holds_device_array(x)):
        if not parameter.endswith("?"):
            raise TypeError(f"CuPy's {name}() takes no device array as {parameter}: only numbers that Python knows")
        _synchronizes(f"{name}(), given a device array as {parameter[:-1]},")


def _call(function, name, args, keywords, of_array=False):
    """function(*args, **keywords) with device arrays; name is what CuPy calls it; of_array: it is an array's method."""
    _check_numbers(name, args, keywords, of_array)
    elementwise = isinstance(function, np.ufunc)
    missing = keywords.keys() - UFUNC_KEYWORDS if elementwise else MISSING_KEYWORDS.get(name, set()) & keywords.keys()
    if missing:
        raise TypeError(f"CuPy's {name}() has no keyword argument {sorted(missing)[0]!r}")
    if name in SHAPE_DEPENDS_ON_VALUES or (name == "where" and len(args) == 1):
        _synchronizes(f"{name}(), whose result's shape depends on values,")
    result = function(*_host(args), **{key: _host(value) for key, value in keywords.items()})
    if keywords.get("out") is not None:
        return keywords["out"]
    if elementwise and isinstance(result, np.ndarray):
        result = np.asarray(result, order="C")                            # NumPy would keep the operands' order
    if type(result) is bool and name in {"allclose", "array_equal", "array_equiv"}:
        result = np.bool_(result)
    return _device(result)


class ndarray:
    """A device array: NumPy's methods and operators, less what CuPy lacks or does behind one's back."""

    __slots__ = ("_values",)
    __hash__ = None

    def __init__(self, values):
        self._values = values

    def get(self, out=None):
        if out is None:
            return self._values.copy()
        out[...] = self._values
        return out

    def set(self, host):
        if not isinstance(host, np.ndarray) or (host.shape, host.dtype) != (self.shape, self.dtype):
            raise ValueError(f"set() needs a host array {self.shape} {self.dtype}")
        self._values[...] = host

    @property
    def data(self):
        """CuPy's pointer to the memory, as far as anyone may look at it."""
        return types.SimpleNamespace(ptr=self._values.ctypes.data)

    def __copy__(self, memo=None):
        return ndarray(self._values.copy())

    __deepcopy__ = __copy__

    def __repr__(self):
        return f"<device array {self.shape} {self.dtype}>"               # without values: showing them would wait

    def __len__(self):
        return len(self._values)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __array__(self, *args, **keywords):
        raise TypeError("implicit conversion of a device array to a NumPy array; use asnumpy(x) or x.get()")

    def __array_function__(self, function, kinds, args, keywords):
        raise TypeError(f"np.{function.__name__} called on a device array; use xp.{function.__name__}")

    def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
        if method == "__call__" and isinstance(inputs[0], np.generic):   # np.float64(2) * x: a scalar, so CuPy agrees
            return _call(ufunc, ufunc.__name__, inputs, keywords)
        if any(isinstance(x, np.ndarray) for x in inputs):
            _host(list(inputs))
        raise TypeError(f"np.{ufunc.__name__} called on a device array; use xp.{ufunc.__name__}")

    def __reduce_ex__(self, protocol):
        raise TypeError("pickling a device array copies it through the host (a lower-case MPI call?)")

    def __getitem__(self, index):
        parts = index if isinstance(index, tuple) else (index,)
        advanced = any(isinstance(part, ndarray | np.ndarray | list) for part in parts)
        if any(isinstance(part, ndarray) and part.dtype == bool for part in parts):
            _synchronizes("x[mask], whose shape depends on values,")
        if not advanced and not any(part is Ellipsis for part in parts):
            index = (*parts, Ellipsis)                                   # a single item, too, stays a view
        result = self._values[_host(index)]
        return ndarray(np.asarray(result, order="C") if advanced else result)

    def __setitem__(self, index, value):
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
            raise ValueError(f"a device array cannot be filled from a host {type(value).__name__}; asarray it first")
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, ndarray | list) for part in parts):
            places = np.arange(self._values.size).reshape(self.shape)[_host(index)]
            if np.unique(places).size < places.size:
                raise ValueError("assignment to equal indices: which one wins is undefined; see arrays.add_at_")
        self._values[_host(index)] = value if isinstance(value, np.ndarray) else _host(value)

    def __getattr__(self, name):                                         # everything else is NumPy's
        if name.startswith("_") or name in NOT_ON_DEVICE:
            raise AttributeError(f"a CuPy array has no attribute {name!r} that works as NumPy's does")
        attribute = getattr(self._values, name)
        if not callable(attribute):
            return _device(attribute) if isinstance(attribute, np.ndarray) else attribute

        def method(*args, **keywords):
            if name in COPIES_TO_HOST:
                _synchronizes(f"x.{name}()")
                return attribute(*args, **keywords)
            return _call(attribute, name, args, keywords, of_array=True)
        return method

    def __imatmul__(self, other):
        raise TypeError("x @= y is in place for NumPy and rebinds x for CuPy; write x = x @ y")


def _add_operators():
    arithmetic = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "matmul": np.matmul, "pow": np.power,
                  "truediv": np.true_divide, "floordiv": np.floor_divide, "mod": np.remainder, "and": np.bitwise_and,
                  "or": np.bitwise_or, "xor": np.bitwise_xor, "lshift": np.left_shift, "rshift": np.right_shift}
    others = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
              "ne": np.not_equal, "neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}
    for name, f in (arithmetic | others).items():
        setattr(ndarray, f"__{name}__", lambda *xs, f=f: _call(f, f.__name__, xs, {}))
    for name, f in arithmetic.items():
        setattr(ndarray, f"__r{name}__", lambda self, other, f=f: _call(f, f.__name__, (other, self), {}))
        if name != "matmul":
            setattr(ndarray, f"__i{name}__", lambda *xs, f=f: _call(f, f.__name__, xs, {"out": xs[0]}))
    for kind in (bool, int, float, complex):
        def convert(self, kind=kind):
            _synchronizes(f"{kind.__name__}(x)")
            return kind(self._values)
        setattr(ndarray, f"__{kind.__name__}__", convert)


_add_operators()


def asarray(x, dtype=None, order=None):
    """x on the device: x itself if it is there with that dtype, otherwise a copy."""
    there = isinstance(x, ndarray) and dtype in (None, x.dtype) and order is None
    return x if there else array(x, dtype, order or "K")


def array(x, dtype=None, order="K"):
    """A copy of x, host array, list, number or device array, on the device."""
    return ndarray(np.array(x if isinstance(x, np.ndarray) else _host(x), dtype, order=order))


def asnumpy(x):
    """A copy of the device array x on the host; anything else as numpy.asarray gives it."""
    return x.get() if isinstance(x, ndarray) else np.asarray(x)


class _Stream:
    synchronized = 0                                                     # how often code has waited: for tests to read

    def synchronize(self):
        _Stream.synchronized += 1


cuda = types.SimpleNamespace(is_available=lambda: True, get_current_stream=_Stream, Stream=_Stream)
lib = types.SimpleNamespace(stride_tricks=types.SimpleNamespace(             # a view, as in CuPy: no copy, no check
    as_strided=lambda x, shape, strides: ndarray(np.lib.stride_tricks.as_strided(x._values, shape, strides))))


def __getattr__(name):
    """numpy.name, for device arrays, if CuPy has that name."""
    if name not in NAMES:
        raise AttributeError(f"CuPy has no {name!r} that operators may use")
    thing = getattr(np, name)
    if isinstance(thing, type | np.dtype) or not callable(thing):
        return thing                                                     # float32, pi, inf, newaxis

    def function(*args, **keywords):
        numbers = args and isinstance(args[0], list) and not any(isinstance(x, ndarray) for x in args[0])
        if numbers and name not in {"zeros", "ones", "empty", "full"}:
            raise TypeError(f"CuPy's {name}() takes device arrays, not lists; asarray(list) makes one")
        return _call(thing, name, args, keywords)
    return function


sys.modules.setdefault("fake_cupy", sys.modules[__name__])               # found by its arrays' type, however imported
ndarray.__module__ = "fake_cupy"
