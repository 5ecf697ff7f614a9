"""Tensor parallelism: one layer's matrices, cut over the ranks of `comm`, so that no rank holds or multiplies all of them.

    column-parallel    y = x w + b             every rank has all of x and some columns of w and b
                       y_r = x w_r + b_r       forward: nothing to send; y is left cut
                       dx = sum_r dy_r w_r^T   backward: one all-reduce of dx      (Megatron's f)

    row-parallel       y = sum_r x_r w_r + b   every rank has some rows of w and the same columns of x, and all of b
                       dx_r = dy w_r^T         forward: one all-reduce of y        (Megatron's g)
                                               backward: nothing to send; dx is left cut

One after the other, with anything elementwise between, they make an MLP: the cut in the middle needs no message, so a
step costs one all-reduce forward and one backward. The row bias is added once, after the sum: on every rank before it,
it would count P times. (Shoeybi et al. 2019, section 3; in PyTorch ColwiseParallel and RowwiseParallel.)

Ring all-reduce of n elements: rank r sends 2n - len(chunk r) - len(chunk r+1); see cost/traffic.py.
Letters: ... leading axes, I inputs, O outputs, H hidden features; a subscript r marks what rank r holds. Shards may have
different sizes, even none: chunk r of n is [n*r//P, n*(r+1)//P).
"""

from refimpl.collectives import all_reduce, bounds
from refimpl.model import layers, mlp

# y_r = x w_r + b_r: the output features are cut


def column_parallel(x, w, b, comm):
    """Forward of a linear layer whose outputs are cut.

    x (..., I), the same on every rank    w (I, O_r)    b (O_r,) or None    ->  y (..., O_r), saved    sends nothing
    """
    y, saved = layers.linear(x, w, b)
    return y, (saved, comm)


def column_parallel_backward_input(dy, saved):
    """dy (..., O_r)  ->  dx (..., I), the same on every rank, and what the weight gradient needs.

    Each rank knows what its own columns add to dx: one all-reduce of dx sums that up.
    """
    saved, comm = saved
    dx, pending = layers.linear_backward_input(dy, saved)
    return all_reduce(dx, comm, algorithm="ring", out=dx), pending


def column_parallel_backward_weight(pending):
    """->  dw (I, O_r), db (O_r,) or None: the rank's own, nothing to send"""
    return layers.linear_backward_weight(pending)


def column_parallel_backward(dy, saved):
    """Both halves at once: dy (..., O_r)  ->  dx (..., I), dw (I, O_r), db (O_r,) or None"""
    dx, pending = column_parallel_backward_input(dy, saved)
    return dx, *column_parallel_backward_weight(pending)


# y = sum_r x_r w_r + b: the input features are cut


def row_parallel(x, w, b, comm):
    """Forward of a linear layer whose inputs are cut.

    x (..., I_r)    w (I_r, O)    b (O,) or None, the same on every rank    ->  y (..., O), the same on every rank, saved
    One all-reduce of y; then the bias, once.
    """
    y, (x, w, _) = layers.linear(x, w)
    y = all_reduce(y, comm, algorithm="ring", out=y)
    return (y if b is None else y + b), (x, w, b)


def row_parallel_backward_input(dy, saved):
    """dy (..., O), the same on every rank  ->  dx (..., I_r), and what the weight gradient needs    sends nothing"""
    return layers.linear_backward_input(dy, saved)


def row_parallel_backward_weight(pending):
    """->  dw (I_r, O), the rank's own; db (O,) or None, the same on every rank without a message, since dy is"""
    return layers.linear_backward_weight(pending)


def row_parallel_backward(dy, saved):
    """Both halves at once: dy (..., O)  ->  dx (..., I_r), dw (I_r, O), db (O,) or None"""
    dx, pending = row_parallel_backward_input(dy, saved)
    return dx, *row_parallel_backward_weight(pending)


# The MLP: w1 cut by columns, w2 by rows, so that the hidden features never leave their rank


def shard_mlp(parameters, rank, size):
    """The part of an MLP's parameters that `rank` of `size` holds (copies).

    w1 (I, H) -> (I, H_r), b1 (H,) -> (H_r,), w2 (H, O) -> (H_r, O), b2 (O,) -> whole    ValueError for a wrong rank
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank={rank} of size={size}: expected 0 to {size - 1}")
    b = bounds(parameters["w1"].shape[1], size)
    mine = slice(b[rank], b[rank + 1])
    cut = {"w1": (slice(None), mine), "b1": mine, "w2": mine, "b2": slice(None)}
    return {name: p[cut[name]].copy() for name, p in parameters.items()}


def mlp_forward(x, parameters, comm, activation="gelu"):
    """y = activation(x w1 + b1) w2 + b2, the hidden features cut over the ranks.

    x (..., I), the same on every rank    parameters: the rank's own, from `shard_mlp`
    ->  y (..., O), the same on every rank, saved    one all-reduce of y
    """
    forward, backward = mlp.activation_pair(activation)
    a, saved1 = column_parallel(x, parameters["w1"], parameters.get("b1"), comm)
    h, saved_activation = forward(a)
    y, saved2 = row_parallel(h, parameters["w2"], parameters.get("b2"), comm)
    return y, (saved1, backward, saved_activation, saved2)


def mlp_backward_input(dy, saved):
    """The urgent half: dy (..., O)  ->  dx (..., I), the same on every rank, pending    one all-reduce of dx"""
    saved1, activation_backward, saved_activation, saved2 = saved
    dh, pending2 = row_parallel_backward_input(dy, saved2)
    da = activation_backward(dh, saved_activation)
    dx, pending1 = column_parallel_backward_input(da, saved1)
    return dx, (pending1, pending2)


def mlp_backward_weight(pending):
    """The half that can wait: pending  ->  gradients of the rank's own parameters, by name    sends nothing"""
    return mlp.backward_weight(pending)


def mlp_backward(dy, saved):
    """Both halves at once: dy (..., O)  ->  dx (..., I), gradients"""
    dx, pending = mlp_backward_input(dy, saved)
    return dx, mlp_backward_weight(pending)
