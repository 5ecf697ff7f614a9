"""Is a sharded operator equal to the one on a single device? Values, gradients, traffic; and if not, why not.

    def program(comm, x, w, dy):                       # on every rank, with its part of each input
        y = all_reduce(x @ w, comm)
        return {"y": y, "dx": dy @ w.T, "dw": x.T @ dy}

    assert_sharded_equal(program, reference, {"x": x, "w": w, "dy": dy},
                         shard={"x": 1, "w": 0, "dy": "replicated", "y": "replicated"})

The measure is norm-relative: ||a - b|| <= tolerance * max(||b||, 1e-3 ||all tensors of that kind||). Elementwise bounds
are wrong here: a sum in another order moves small elements by much. The second term is for gradients that are zero in
truth, like that of a softmax attention's key bias.

Arrays may be NumPy's, CuPy's, or of any library that speaks DLPack, such as PyTorch, whose tensors the program then
gets and returns. docs/check_your_own_operator.md has an example of each kind, and of each kind of mistake.
"""

import math
import sys

import numpy as np

from refimpl.arrays import to_host
from refimpl.collectives import bounds
from refimpl.diagnosis import likely_cause, wide
from refimpl.measure.ledger import Ledger
from refimpl.world import run

TOLERANCE = {                                            # dtype: (outputs, gradients)
    "float64": (1e-13, 1e-12), "complex128": (1e-13, 1e-12),
    "float32": (1e-5, 1e-4), "complex64": (1e-5, 1e-4),
    "float16": (5e-3, 5e-3),
}
REPLICATED, PARTIAL = "replicated", "partial"
CPU = 1                                                  # DLPack's number of host memory


def assert_sharded_equal(program, reference, inputs, ranks=(1, 2, 3, 4), shard=None, gradients=True, ledger=None,
                         traffic=None, tolerance=None, rendezvous=None):
    """Run `program` on ranks and compare what it returns with `reference` on one device.

    program       program(comm, **local) -> dict of arrays by name; a gradient is called d + the name of an input
    reference     reference(**inputs) -> dict of the whole arrays by the same names; it is given NumPy arrays
    inputs        whole arrays by name, of NumPy, CuPy or PyTorch (the program gets the same kind, on the same device,
                  with requires_grad where set); anything else (None, a number, a string) is handed on as it is
    ranks         sizes of the world to try, or one; under mpirun only the size of the job
    shard         how each array is cut: an axis (chunk r of n is [n*r//P, n*(r+1)//P)), "replicated" (whole on every
                  rank) or "partial" (the ranks' arrays add up to it); a gradient is cut like its input unless named
    gradients     the program must return at least one gradient; False: it has none
    ledger        `Ledger` that counts the runs, too
    traffic       bytes that a rank sends: function (size, rank), or a dict of them by phase
    tolerance     for everything, in place of the dtypes' own
    rendezvous    as in `run`

    AssertionError that names the tensor, the rank, its slice and the likely cause; ValueError for a wrong call.
    """
    shard, sizes = dict(shard or {}), [ranks] if isinstance(ranks, int) else list(ranks)
    if not sizes:
        raise ValueError(f"ranks={ranks!r}: give at least one number of ranks to try, such as (1, 2, 3, 4)")
    arrays = {name: x for name, x in inputs.items() if hasattr(x, "dtype")}
    hosts = {name: on_host(x, name) for name, x in arrays.items()}
    whole = reference(**{name: hosts[name].copy() if name in arrays else x for name, x in inputs.items()})
    if not isinstance(whole, dict) or not whole:
        raise ValueError(f"reference returned {described(whole)}: expected a dict of whole arrays by name")
    expected = {name: np.asarray(x) for name, x in whole.items()}
    names = gradient_names(arrays, expected)
    if gradients and not names:
        raise ValueError(f"reference returns no gradient (it returns {', '.join(expected)}): "
                         "compare d + an input's name, or say gradients=False")
    for name in [*arrays, *expected]:
        how = shard.setdefault(name, shard.get(name[1:]) if name in names else None)
        shard[name] = checked_cut(name, how, (hosts if name in hosts else expected)[name].ndim)
    for size in sizes:
        log = Ledger()

        def on_rank(comm, size=size):
            local = {name: local_part(x, hosts[name], shard[name], comm.rank, size) if name in arrays else x
                     for name, x in inputs.items()}
            returned = program(comm, **local)
            if not isinstance(returned, dict):
                raise AssertionError(f"program returned {described(returned)}: expected a dict of arrays by name: "
                                     + ", ".join(expected))
            return {name: on_host(y, name) for name, y in returned.items()}

        results = run(on_rank, size, ledger=log, rendezvous=rendezvous)
        compare(results, expected, shard, names, tolerance)
        if traffic is not None:
            compare_traffic(log, size, traffic)
        if ledger is not None:
            ledger.merge(log)


def on_host(x, name="x"):
    """x as a NumPy array: a number, or an array of NumPy, CuPy or whatever speaks DLPack.

    ValueError if NumPy has no such dtype, naming what to do.
    """
    if not speaks_dlpack(x):
        return to_host(x) if hasattr(x, "dtype") else np.asarray(x)
    x = x.detach() if hasattr(x, "detach") else x                  # PyTorch: what follows is no part of its graph
    try:
        if x.__dlpack_device__()[0] == CPU:
            return np.from_dlpack(x)
        import cupy

        return to_host(cupy.from_dlpack(x))
    except (BufferError, RuntimeError, TypeError) as error:
        raise ValueError(f"{name} has dtype {x.dtype}, which NumPy cannot take: {error}; "
                         f"compare {name}.float()") from None


def speaks_dlpack(x):
    """Whether x is an array of a library that is neither NumPy nor acts like CuPy, but speaks DLPack."""
    library = sys.modules.get(type(x).__module__.partition(".")[0])
    return hasattr(x, "__dlpack__") and not isinstance(x, np.ndarray | np.generic) and not hasattr(library, "asnumpy")


def local_part(x, host, how, rank, size):
    """The part of x, whose numbers are `host`, that `rank` of `size` holds: of x's library, on its device."""
    if not speaks_dlpack(x):
        return cut(x, how, rank, size)
    part = sys.modules[type(x).__module__.partition(".")[0]].from_dlpack(cut(host, how, rank, size))
    if x.__dlpack_device__()[0] != CPU:
        part = part.to(x.device)
    return part.requires_grad_() if getattr(x, "requires_grad", False) else part


def compare(results, expected, shard, gradients=(), tolerance=None):
    """Compare the ranks' arrays with the whole ones, gradients last: AssertionError for the first that differs.

    results      per rank a dict of arrays by name      expected    dict of whole arrays      shard    how they are cut
    gradients    names that are gradients (their tolerance is wider, and they are measured among themselves)
    """
    size = len(results)
    norms = [norm_of_all(b for name, b in expected.items() if (name in gradients) == kind) for kind in (False, True)]
    for rank, result in enumerate(results):
        if missing := [name for name in expected if name not in result]:
            raise AssertionError(f"{missing[0]}: rank {rank} of {size} returned {', '.join(result) or 'nothing'}, "
                                 f"but not {missing[0]}")
        if extra := [name for name in result if name not in expected]:
            raise AssertionError(f"{extra[0]}: rank {rank} of {size} returned it, and the reference did not: "
                                 "it would go unchecked")
    for name, whole in sorted(expected.items(), key=lambda item: item[0] in gradients):
        how, hint = shard[name], ""
        if name in gradients and len(gradients) < len(expected):
            hint = "\n  the outputs are right: look at the backward"
        locals_ = [result[name] for result in results]
        if how == PARTIAL:
            locals_, parts = [sum(locals_[1:], locals_[0])], [whole]
        else:
            parts = [cut(whole, how, rank, size) for rank in range(size)]
        allowed = tolerance if tolerance is not None else default_tolerance(whole.dtype, name in gradients)
        for rank, (mine, part) in enumerate(zip(locals_, parts, strict=True)):
            who = f"{name}{words(how, whole, rank, size)}"
            if mine.shape != part.shape or mine.dtype != part.dtype:
                raise AssertionError(f"{who} has shape {mine.shape} and dtype {mine.dtype}, "
                                     f"expected {part.shape} and {part.dtype}"
                                     + hint + likely_cause(locals_, parts, rank, whole, size))
            difference = relative_difference(mine, part, norms[name in gradients])
            if not difference <= allowed:
                raise AssertionError(f"{who} is wrong: relative difference {difference:.2g}, allowed {allowed:g}"
                                     + hint + likely_cause(locals_, parts, rank, whole, size))


def compare_traffic(ledger, size, traffic):
    """AssertionError unless every rank sent the bytes that `traffic` says: values may be right while traffic is not."""
    for phase, formula in (traffic if isinstance(traffic, dict) else {None: traffic}).items():
        for rank in range(size):
            counted, stated = ledger.bytes_sent(rank=rank, phase=phase), formula(size, rank)
            if counted != stated:
                raise AssertionError(
                    f"values are right, traffic is not: rank {rank} of {size} sent {counted:,} bytes in "
                    f"{ledger.messages(rank=rank, phase=phase)} messages{f' of phase {phase!r}' if phase else ''}, "
                    f"the formula says {stated:,}")


def relative_difference(actual, expected, norm_of_kind=0.0):
    """||actual - expected|| / max(||expected||, 1e-3 norm_of_kind), a number from 0 to inf.

    Infinite elements must be the same ones, and are left out of the norms. NaN equals nothing: a comparison of NaN with
    NaN gives inf, and fails. Integers that differ give more than 0, however large they are.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if np.array_equal(actual, expected):
        return 0.0
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(actual)) or not np.array_equal(actual[~finite], expected[~finite]):
        return float("inf")
    with np.errstate(over="ignore"):
        difference = wide(actual[finite]) - wide(expected[finite])
    distance = (norm(difference) or 1e-300) if np.isfinite(difference).all() else float("inf")     # or: huge integers
    scale = max(norm(expected), 1e-3 * norm_of_kind)
    return distance / scale if scale else float("inf")


def norm_of_all(tensors):
    """The norm of several arrays taken as one."""
    return math.hypot(*map(norm, tensors))


def norm(x):
    """The norm of the finite elements of x, of any size: squares may neither overflow nor vanish."""
    x = np.abs(wide(x))
    largest = float(np.max(x, where=np.isfinite(x), initial=0.0))
    return largest * float(np.linalg.norm((x[np.isfinite(x)] / largest).ravel())) if largest else 0.0


def default_tolerance(dtype, is_gradient):
    """What design says for the dtype; 0 (exact) for integers and booleans."""
    return TOLERANCE[dtype.name][is_gradient] if dtype.name in TOLERANCE else 0.0


def gradient_names(inputs, outputs):
    """The outputs that are gradients: named d + the name of an input."""
    return {name for name in outputs if name.startswith("d") and name[1:] in inputs}


def cut(x, how, rank, size):
    """The part of x that `rank` of `size` holds: a copy, on the host or the device as x is."""
    if how == REPLICATED:
        return x.copy()
    if how == PARTIAL:                                   # addends that are all different, and add up to x
        share = 2 * (rank + 1) / (size * (size + 1))
        return x * share if x.dtype.kind in "fc" else x * (rank == 0)
    b = bounds(x.shape[how], size)
    return x[(slice(None),) * how + (slice(b[rank], b[rank + 1]),)].copy()


def checked_cut(name, how, ndim):
    """`how` with axes counted from the front; ValueError unless it says how to cut an array of `ndim` axes."""
    if how in (REPLICATED, PARTIAL):
        return how
    if isinstance(how, int) and not isinstance(how, bool) and -ndim <= how < ndim:
        return how % ndim
    axes = f"an axis from 0 to {ndim - 1}, " if ndim else ""
    raise ValueError(f"shard[{name!r}] = {how!r}: say how {name} is cut: {axes}'replicated' or 'partial'")


def described(value):
    """What a function returned in place of a dict of arrays, in few words."""
    return "an empty dict" if isinstance(value, dict) else "None" if value is None else f"a {type(value).__name__}"


def words(how, whole, rank, size):
    """Which part of a tensor it is about: " of rank 1 of 3 ([2:5] of axis 1)"."""
    if how == PARTIAL:
        return f", summed over {size} ranks,"
    if how == REPLICATED:
        return f" of rank {rank} of {size}"
    b = bounds(whole.shape[how], size)
    return f" of rank {rank} of {size} ([{b[rank]}:{b[rank + 1]}] of axis {how})"
