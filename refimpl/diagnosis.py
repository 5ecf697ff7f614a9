"""What probably went wrong, told from the numbers alone.

Wrong distributed code is wrong in few ways, and each leaves its mark: a forgotten all-reduce leaves addends that sum to
the truth; an all-reduce too many, or a loss averaged twice, leaves a factor; a bias added on every rank leaves the same
surplus in every row; a wrong offset leaves another rank's slice.
"""

import numpy as np

CLOSE = 1e-3                              # relative; causes are told apart by far more


def likely_cause(actual, expected, rank, whole, size=None):
    """A sentence that names the likely cause, beginning with a newline; "" when the numbers do not tell.

    actual, expected    each rank's array, and what it should have been (of a sum over ranks: that one alone)
    rank                the one that is wrong
    whole               the whole tensor
    size                number of ranks, where it is not that of the arrays
    """
    if any(x.dtype.kind not in "biufc" for x in (*actual, *expected, whole)):
        return ""
    actual, expected, whole = [wide(x) for x in actual], [wide(x) for x in expected], wide(whole)
    size = size or len(actual)
    mine, part = actual[rank], expected[rank]
    with np.errstate(all="ignore"):       # wrong numbers may be any
        for found in (not_finite, wrong_shape, addends, factor, same_in_every_row, elsewhere, nearly):
            sentence = found(actual, expected, mine, part, whole, rank, size)
            if sentence:
                return f"\n  likely: {sentence}"
        wrong = [r for r in range(len(actual)) if not close(actual[r], expected[r])]
    if not wrong or len(actual) < size:
        return ""
    return f"\n  wrong on rank{'s' * (len(wrong) > 1)} {', '.join(map(str, wrong))} of {size}"


def wide(x):
    """x in float64, or complex128: room for sums and products."""
    return np.asarray(x, np.result_type(x, np.float64))


def not_finite(actual, expected, mine, part, whole, rank, size):
    """NaN or infinity where numbers should be."""
    if not np.isfinite(mine).all() and np.isfinite(part).all():
        bad = np.count_nonzero(~np.isfinite(mine))
        return f"{bad} of {mine.size} elements are not finite: a division by 0, or memory never written"


def wrong_shape(actual, expected, mine, part, whole, rank, size):
    """The whole instead of the shard, the shard instead of the whole, or axes swapped."""
    if mine.shape == part.shape:
        return None
    if mine.shape == whole.shape:
        return "the whole tensor where the rank's own slice is wanted: a slice or a reduce-scatter is missing"
    if mine.ndim == part.ndim and mine.shape[::-1] == part.shape:
        return "transposed"
    differ = [k for k in range(mine.ndim) if mine.shape[k] != part.shape[k]] if mine.ndim == part.ndim else []
    if len(differ) == 1 and part.shape == whole.shape:
        axis = differ[0]
        if mine.shape[axis] < part.shape[axis]:
            return f"a slice of axis {axis} where the whole tensor is wanted: an all-gather is missing"
        if mine.shape[axis] == size * part.shape[axis]:
            return f"the ranks' arrays side by side along axis {axis}: an all-gather where an all-reduce belongs"
    return None


def addends(actual, expected, mine, part, whole, rank, size):
    """The ranks' arrays sum to the truth, and are not the same one P times."""
    if len(actual) > 1 and part.shape == whole.shape and all(a.shape == part.shape for a in actual):
        if close(sum(actual[1:], actual[0]), part) and not all(close(a, mine) for a in actual):
            return "missing all-reduce: the ranks' arrays add up to the right one"


def factor(actual, expected, mine, part, whole, rank, size):
    """Everything is a simple multiple of the truth."""
    if mine.shape != part.shape or not np.any(part):
        return None
    c = float(np.real(np.vdot(part, mine) / np.vdot(part, part)))
    if abs(c) < CLOSE or abs(c - 1) < CLOSE or not close(mine, c * part):
        return None
    for n, where in ((size, f"on each of {size} ranks"), (size**2, f"on each of {size} ranks, twice"), (2, "twice")):
        if n > 1 and abs(c - n) < CLOSE * n:
            return (f"{n} times too large: counted {where}, where once is right "
                    "(an all-reduce too many, or a mean forgotten)")
        if n > 1 and abs(c * n - 1) < CLOSE:
            return f"{n} times too small: a mean taken once too often, or a sum once too rarely"
    return "sign wrong" if abs(c + 1) < CLOSE else f"{c:.4g} times what it should be"


def same_in_every_row(actual, expected, mine, part, whole, rank, size):
    """Every row is off by the same amount: a bias."""
    if mine.shape == part.shape and mine.ndim >= 2 and np.prod(mine.shape[:-1]) > 1:
        rows = (mine - part).reshape(-1, mine.shape[-1])
        if np.any(rows[0]) and close(rows, np.broadcast_to(rows[0], rows.shape)):
            return "every row is off by the same amount: a bias added on every rank before the sum, or not at all"


def elsewhere(actual, expected, mine, part, whole, rank, size):
    """The right numbers of another rank, or with rows and columns exchanged."""
    for other, theirs in enumerate(expected):
        if other != rank and mine.shape == theirs.shape and not close(theirs, part) and close(mine, theirs):
            return f"this is what rank {other} should have: shards in the wrong order"
    if mine.ndim == 2 and mine.shape == part.T.shape and close(mine, part.T):
        return "transposed"


def nearly(actual, expected, mine, part, whole, rank, size):
    """Right to some digits only."""
    if close(mine, part):
        return "right to some digits: computed in a lower precision somewhere, or a small term left out"


def close(a, b):
    """Equal up to CLOSE, in the norm."""
    return a.shape == b.shape and bool(np.linalg.norm((a - b).ravel()) <= CLOSE * np.linalg.norm(b.ravel()))
