"""Two dtypes for one number: what it is stored and sent in, and what it is computed in.

    float16     1 sign, 5 exponent, 10 fraction bits       stored in 2 bytes     computed in float32
    bfloat16    1 sign, 8 exponent,  7 fraction bits       stored as uint16      computed in float32
    float32, float64                                       as they are           in themselves

    y = narrow(wide(x) @ wide(w), x.dtype)                 the shape of every layer

NumPy multiplies float16 matrices some 400 times slower than float32 ones and has no bfloat16 at all; a GPU, too,
multiplies half-precision numbers but adds them up in float32. A bfloat16 is the upper half of a float32, so it is kept
as uint16: a uint16 array of activations, parameters or gradients is always one of those.
"""

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

    y (...) float32 or float64    dtype as an array's .dtype; uint16 stands for bfloat16, which needs y in float32
    """
    xp = array_namespace(y)
    if y.dtype == dtype:
        return y
    if dtype != xp.uint16:
        return y.astype(dtype)
    bits = y.view(xp.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16          # carries into the exponent where the fraction is full
    return xp.where(xp.isnan(y), 0x7FC0, rounded).astype(dtype)
