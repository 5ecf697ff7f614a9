"""Two dtypes for one number: what it is stored and sent in, and what it is computed in.

    float16     1 sign, 5 exponent, 10 fraction bits       stored in 2 bytes     computed in float32
    bfloat16    1 sign, 8 exponent,  7 fraction bits       stored as uint16      computed in float32
    float32, float64                                       as they are           in themselves

    y = narrow(wide(x) @ wide(w), x.dtype)                 the shape of every layer

NumPy multiplies float16 matrices some 400 times slower than float32 ones and has no bfloat16 at all; a GPU, too,
multiplies half-precision numbers but adds them up in float32. A bfloat16 is the upper half of a float32, so it is kept
as uint16: a uint16 array of activations, parameters or gradients is always one of those.

Mixed precision (Micikevicius et al. 2018) trains with 2-byte numbers and needs two things beside them:

    master copy    0.5 + 0.0001 = 0.5 in float16: the optimizer updates a float32 copy, which is stored anew each step
    loss scale     gradients below 2^-25 are 0 in float16: the loss is multiplied by 2^k, and gradients are divided by
                   it once they are wide. One that became inf or nan is an overflow: the step is skipped and the scale
                   halved, on all ranks or on none

bfloat16 reaches as far as float32 and needs no loss scale. Bytes a parameter, Adam's two moments included:

    parameters, gradients    master    m, v
    2           2            4         8        16        (Rajbhandari et al. 2020, section 3.1)
    2           4            4         8        18        gradients that are accumulated and sent in float32
    4           4            -         8        16        float32 throughout: the parameters are their own master
"""

import difflib
from dataclasses import dataclass, replace

from refimpl.arrays import array_namespace


def wide(x):
    """x in the dtype that is computed in.

    x (...) float16 or bfloat16 (as uint16)  ->  a float32 copy;  any other dtype, or None  ->  x itself
    """
    if x is None or x.dtype.itemsize != 2:
        return x
    xp = array_namespace(x)
    if x.dtype == xp.float16:
        return x.astype(xp.float32)
    return (x.astype(xp.uint32) << 16).view(xp.float32)


def narrow(y, dtype):
    """y in the dtype that is stored: rounded to the nearest, ties to even; y itself if it has that dtype.

    y (...) float32 or float64    dtype as an array's .dtype; uint16 stands for bfloat16: ValueError unless y is float32
    """
    xp = array_namespace(y)
    if y.dtype == dtype:
        return y
    if dtype != xp.uint16:
        return y.astype(dtype)
    if y.dtype != xp.float32:
        raise ValueError(f"y has dtype {y.dtype}: a bfloat16 is half a float32; expected y.astype('float32')")
    bits = y.view(xp.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16          # carries into the exponent where the fraction is full
    return xp.where(xp.isnan(y), 0x7FC0, rounded).astype(dtype)


def add_(total, x):
    """total += x, in place: added in what is computed in, stored in what total is stored in.

    total, x (...) of any float dtypes, uint16 too: two bfloat16 added as the integers that they are stored as would be
    nonsense.
    """
    if total.dtype == x.dtype and x.dtype.itemsize > 2:
        total += x
    else:
        total[...] = narrow(wide(total) + wide(x), total.dtype)


# The master copy


STORED = {"float64": "float64", "float32": "float32", "float16": "float16", "bfloat16": "uint16"}


@dataclass(frozen=True)
class Precision:
    """What parameters and gradients are stored in; by name. ValueError for a name that is none."""

    parameters: str = "float32"        # float64, float32, float16 or bfloat16
    grad_dtype: str | None = None      # of gradients, as they are accumulated and summed; as parameters unless given

    def __post_init__(self):
        if self.grad_dtype is None:
            object.__setattr__(self, "grad_dtype", self.parameters)
        for name in ("parameters", "grad_dtype"):
            if getattr(self, name) not in STORED:
                nearest = difflib.get_close_matches(str(getattr(self, name)), STORED, n=1, cutoff=0.0)[0]
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(STORED)}; "
                                 f"nearest {nearest!r}")

    @property
    def master(self):
        """Name of the dtype that the optimizer works in."""
        return "float64" if self.parameters == "float64" else "float32"

    @property
    def stored(self):
        """The arrays' dtype of parameters, by NumPy's name: uint16 for bfloat16."""
        return STORED[self.parameters]

    @property
    def stored_gradients(self):
        """The arrays' dtype of gradients, likewise."""
        return STORED[self.grad_dtype]

    @property
    def bytes_per_parameter(self):
        """{"parameters", "gradients", "master", "moments"}: a master that is the parameter itself takes none."""
        size = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
        master = size[self.master]
        return {"parameters": size[self.parameters], "gradients": size[self.grad_dtype],
                "master": 0 if self.master == self.parameters else master, "moments": 2 * master}


def store_(parameter, master):
    """parameter <- its master copy, rounded, in place. Nothing to do where the parameter is its own master."""
    if parameter is not master:
        parameter[...] = narrow(master, parameter.dtype)


# The loss scale


@dataclass(frozen=True)
class LossScale:
    """The factor of the loss, and when it changes; `after` makes the next one. ValueError for settings that cannot be.

    A power of two by powers of two: to multiply and to divide by it changes no bit of a fraction.
    """

    value: float = 2.0**16
    growth: float = 2.0                # factor after `interval` steps in a row without overflow
    interval: int = 2000
    backoff: float = 0.5               # factor after an overflow
    clean: int = 0                     # steps without overflow since the value last changed

    def __post_init__(self):
        for name, fits, expected in (
                ("value", 0 < self.value < float("inf"), "a finite number above 0; nearest 1"),
                ("growth", 1 <= self.growth < float("inf"), "a finite number, 1 or more; nearest 1"),
                ("interval", self.interval >= 1, "a number of steps, 1 or more; nearest 1"),
                ("backoff", 0 < self.backoff < 1, "above 0 and below 1; nearest 0.5")):
            if not fits:
                raise ValueError(f"{name}={getattr(self, name)}: expected {expected}")

    def after(self, overflow):
        """The loss scale of the next step: as it is where the next one would be inf, or 0.

        overflow    the verdict of all ranks, else their scales would part
        """
        if not overflow and self.clean + 1 < self.interval:
            return replace(self, clean=self.clean + 1)
        value = self.value * (self.backoff if overflow else self.growth)
        return replace(self, value=value if 0 < value < float("inf") else self.value, clean=0)


def overflow(gradients):
    """Whether any number of these arrays is inf or nan: [1.0] or [0.0], an array (1,), so that ranks can agree on it.

    gradients    arrays of any shapes and float dtypes, empty ones too: at least one, as it says where the answer lives
    The ranks' verdict is the largest: all_reduce(overflow(mine), comm, op="max"). One number; a rank whose own part is
    fine skips the step, too.
    """
    gradients = list(gradients)
    xp = array_namespace(*gradients)
    found = xp.zeros(1, xp.float32)
    for g in gradients:
        found = xp.maximum(found, ~xp.isfinite(wide(g)).all())
    return found
