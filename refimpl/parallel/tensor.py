"""Tensor parallelism: a layer's matrices, cut over the ranks of `comm`, so that no rank holds or multiplies all of it.

    column-parallel    y = x w + b             every rank has all of x and some columns of w and b
                       y_r = x w_r + b_r       forward: nothing to send; y is left cut
                       dx = sum_r dy_r w_r^T   backward: one all-reduce of dx      (Megatron's f)

    row-parallel       y = sum_r x_r w_r + b   every rank has some rows of w and the same columns of x, and all of b
                       dx_r = dy w_r^T         forward: one all-reduce of y        (Megatron's g)
                                               backward: nothing to send; dx is left cut

One after the other, with anything between that leaves features or heads apart, they make an MLP (below) or attention
(heads.py): the cut in the middle needs no message, so a step costs one all-reduce forward and one backward. The row
bias is added once, after the sum: on every rank before it, it would count P times. (Shoeybi et al. 2019, section 3; in
PyTorch ColwiseParallel and RowwiseParallel.)

Ring all-reduce of n elements: rank r sends 2n - len(chunk r) - len(chunk r+1); see cost/traffic.py.
Letters: ... leading axes, I inputs, O outputs, H hidden features; a subscript r marks what rank r holds. Shards may
have different sizes, even none: chunk r of n is [n*r//P, n*(r+1)//P). A fused w (I, 2, H) is cut along its last axis.
"""

from refimpl.arrays import array_namespace
from refimpl.collectives import all_reduce, bounds
from refimpl.model import layers, mlp
from refimpl.precision import narrow, wide

# y_r = x w_r + b_r: the output features are cut


def column_parallel(x, w, b, comm):
    """Forward of a linear layer whose outputs are cut.

    x (..., I), the same on every rank    w (I, O_r)    b (O_r,) or None    ->  y (..., O_r), saved    sends nothing
    As in layers.linear, w may be fused: (I, 2, H_r) with b (2, H_r), say, and O_r = 2 H_r.
    """
    y, saved = layers.linear(x, w, b)
    return y, (saved, comm)


def column_parallel_backward_input(dy, saved):
    """dy (..., O_r)  ->  dx (..., I), the same on every rank, and what the weight gradient needs.

    Each rank knows what its own columns add to dx: one all-reduce of dx sums that up.
    """
    saved, comm = saved
    dx, pending = layers.linear_backward_input(dy, saved)
    return summed(dx, comm), pending


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

    x (..., I_r)    w (I_r, O)    b (O,) or None, whole on every rank    ->  y (..., O), the same on every rank, saved
    One all-reduce of y; then the bias, once. ValueError for shapes that do not fit, before anything is sent.
    """
    layers.check_linear(x, w, b)
    y, (x, w, _) = layers.linear(x, w)
    y = summed(y, comm)
    return (y if b is None else layers.add(y, b)), (x, w, b)


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


# Sums over the ranks


def summed(x, comm):
    """The sum of the ranks' x, on every rank, in x itself where its dtype allows. x (...), its own array: it may change

    bfloat16 travels as float32: two numbers stored as uint16 do not add up.
    """
    y = wide(x) if x.dtype.kind == "u" else x
    return narrow(all_reduce(y, comm, algorithm="ring", out=y), x.dtype)


def summed_together(arrays, comm):
    """The sums of the ranks' arrays, all in one all-reduce: many small ones would pay the latency of each.

    arrays    dict by name, of one dtype, the same names and shapes on every rank  ->  dict, new arrays
    """
    if not arrays:
        return {}
    xp = array_namespace(*arrays.values())
    flat = summed(xp.concatenate([x.reshape(x.size) for x in arrays.values()]), comm)
    sums, start = {}, 0
    for name, x in arrays.items():
        sums[name] = flat[start:start + x.size].reshape(x.shape)
        start += x.size
    return sums


# The MLP: w1 cut by columns, w2 by rows, so that the hidden features never leave their rank


def shard_mlp(parameters, rank, size):
    """The part of an MLP's parameters that `rank` of `size` holds (copies).

    w1 (I, H) -> (I, H_r), b1 (H,) -> (H_r,), w2 (H, O) -> (H_r, O), b2 (O,) -> whole
    ValueError for a wrong rank, or a weight that is missing.
    A gated w1 (I, 2, H) is cut along H, too: a rank gets the gates of its ups. Half of 2 H columns would be all gates.
    """
    check_rank(rank, size)
    mlp.check_names(parameters)
    b = bounds(parameters["w2"].shape[0], size)
    mine = slice(b[rank], b[rank + 1])
    cut = {"w1": (..., mine), "b1": (..., mine), "w2": mine, "b2": slice(None)}
    return {name: p[cut[name]].copy() for name, p in parameters.items()}


def unshard_mlp(shards):
    """The whole parameters (or gradients) again: shard_mlp's inverse.  shards: each rank's dict, in order"""
    join = {"w1": -1, "b1": -1, "w2": 0}
    xp = array_namespace(shards[0]["w2"])
    return {name: xp.concatenate([shard[name] for shard in shards], join[name]) if name in join else whole.copy()
            for name, whole in shards[0].items()}


def check_size(size):
    """ValueError unless there is a rank at all."""
    if size < 1:
        raise ValueError(f"tp={size}: expected 1 or more ranks; nearest 1")


def check_rank(rank, size):
    """ValueError unless 0 <= rank < size."""
    check_size(size)
    if not 0 <= rank < size:
        raise ValueError(f"rank={rank} of size={size}: expected 0 to {size - 1}")


def mlp_forward(x, parameters, comm, activation="gelu"):
    """y = activation(x w1 + b1) w2 + b2, the hidden features cut over the ranks.

    x (..., I), the same on every rank    parameters: the rank's own, from `shard_mlp`    activation as in model/mlp.py
    ->  y (..., O), the same on every rank, saved    one all-reduce of y
    """
    mlp.check_names(parameters)
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
