"""The two ends of a language model: ids to vectors, and vectors to one score per id.

    embedding      y[i] = w[ids[i]]         dw[v] = sum of dy[i] where ids[i] = v: equal ids add up
    unembedding    y = x w^T                dx = dy w,  dw = dy^T x

Both tables are (V, h), a row an id, so that tied ones (GPT-2) are one array whose two gradients are added, and so that
the vocabulary is cut along axis 0 in both. Letters: ... positions, T their number, V ids, h features.
"""

from refimpl.arrays import add_at_, array_namespace, check_indices
from refimpl.model.layers import rows
from refimpl.precision import narrow, wide


def embedding(ids, w):
    """y = w[ids].

    ids (...) integers in 0..V-1    w (V, h)    ->  y (..., h), saved
    Raises ValueError for an id out of range (host arrays only: on a device, check before uploading).
    """
    xp = array_namespace(ids, w)
    check_indices(ids, w.shape[0], "ids")
    return xp.take(w, ids, axis=0), (ids, w)


def embedding_backward(dy, saved):
    """dw, the only gradient there is: ids have none.  dy (..., h)  ->  dw (V, h)        see arrays.add_at_"""
    ids, w = saved
    xp = array_namespace(dy)
    dy = rows(dy)
    dw = xp.zeros(w.shape, wide(w[:0]).dtype)                             # sums of many: in float32 at least
    return narrow(add_at_(dw, ids.reshape(dy.shape[0]), wide(dy)), w.dtype)


def unembedding(x, w):
    """y = x @ w.T: a score for each id.

    x (..., h)    w (V, h)    ->  y (..., V), saved        2 T h V FLOPs
    Raises ValueError if the shapes do not fit.
    """
    array_namespace(x, w)
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[1]:
        raise ValueError(f"x {x.shape} does not fit w {w.shape}; expected x (..., h) and w (V, h)")
    return narrow(wide(x) @ wide(w).T, x.dtype), (x, w)


def unembedding_backward_input(dy, saved):
    """dx = dy @ w.  dy (..., V)  ->  dx (..., h), pending        2 T h V FLOPs"""
    x, w = saved
    return narrow(wide(dy) @ wide(w), x.dtype), (x, dy)


def unembedding_backward_weight(pending):
    """dw = dy.T @ x, summed over the leading axes  ->  dw (V, h)        2 T h V FLOPs"""
    x, dy = pending
    return narrow(rows(wide(dy)).T @ rows(wide(x)), x.dtype)


def unembedding_backward(dy, saved):
    """Both halves at once: dy (..., V)  ->  dx (..., h), dw (V, h)"""
    dx, pending = unembedding_backward_input(dy, saved)
    return dx, unembedding_backward_weight(pending)
