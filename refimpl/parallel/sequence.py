"""Sequence parallelism (Megatron's): between two tensor-parallel parts every rank keeps its own positions only.

    tensor parallel      norm, dropout, add on all s positions, t times the same     f: nothing | all-reduce
                         x --f--> column, ..., row --g--> y                          g: all-reduce | nothing

    sequence parallel    norm, dropout, add on s/t positions, each once              f: all-gather | reduce-scatter
                         x_r --f--> column, ..., row --g--> y_r                      g: reduce-scatter | all-gather

                                                                                     forward | backward

It saves memory: what a layer keeps outside its two parts, 10 s b h bytes, is cut by t, too. It saves no traffic: a ring
all-reduce is a reduce-scatter and an all-gather, so forward sends what it sent before; and as only the shard of x is
kept, backward gathers it once more for the weight gradient. A layer of a transformer sends, elements per rank,
10 b s h (t-1)/t instead of 8. (Korthikanti et al. 2022, section 4.2.2. Megatron hides the additional gather behind the
product with w^T.)

A rank's norms see its own positions only: their weight gradients are addends, and are summed over tp, not averaged,
once a step (`sum_addends`). The row bias is added to shards, too; but backward gathers dy, and so its gradient is the
sum over all positions, on every rank, without another message.

Letters: ... leading axes, s positions (the axis before the last), I inputs, O outputs; a subscript r marks what rank r
holds: positions [s*r//t, s*(r+1)//t), features, or columns. Operators take shards of different lengths. A whole model
wants them equal, as real systems do: `check_length`.
"""

from refimpl.collectives import all_gather, bounds, reduce_scatter
from refimpl.model import layers
from refimpl.parallel.tensor import check_size, summed_together
from refimpl.parallel.tensor import column_parallel_backward_weight as column_parallel_backward_weight
from refimpl.parallel.tensor import row_parallel_backward_weight as row_parallel_backward_weight
from refimpl.precision import narrow, wide

AXIS = -2                                                    # of the positions: x is (..., s, features)


def gather(x, comm):
    """All positions, on every rank.  x (..., s_r, I)  ->  (..., s, I)        sends all shards but that of rank r+1"""
    return all_gather(x, comm, axis=AXIS)


def scatter_sum(x, comm):
    """The rank's own positions of the sum over ranks.  x (..., s, I)  ->  (..., s_r, I)        sends all but its shard

    bfloat16 travels as float32: two numbers stored as uint16 do not add up.
    """
    y = wide(x) if x.dtype.kind == "u" else x
    return narrow(reduce_scatter(y, comm, axis=AXIS), x.dtype)


def own(length, rank, size):
    """Which of `length` positions `rank` of `size` has: a slice."""
    b = bounds(length, size)
    return slice(b[rank], b[rank + 1])


def check_length(length, size):
    """ValueError unless `length` positions are the same number for each of `size` ranks; names what works."""
    check_size(size)
    if length % size:
        below, above = length // size * size, -(-length // size) * size
        sizes = [str(k) for k in range(1, length + 1) if length % k == 0]
        raise ValueError(f"sequence={length} is not divisible by tp={size}, as sequence parallelism needs; pad it to "
                         f"{above}{f', cut it to {below}' if below else ''}, or let tp be one of {', '.join(sizes)}")


# y_r' = (gathered x) w_r + b_r: the output features are cut


def column_parallel(x, w, b, comm):
    """Forward of a linear layer whose inputs are cut along the sequence and whose outputs are cut by features.

    x (..., s_r, I)    w (I, O_r)    b (O_r,) or None    ->  y (..., s, O_r), saved    one all-gather of x
    w may be fused, as in tensor.py. What is kept is the shard of x. ValueError for shapes that do not fit, before
    anything is sent.
    """
    layers.check_linear(x, w, b)
    y, _ = layers.linear(gather(x, comm), w, b)
    return y, (x, w, b, comm)


def column_parallel_backward_input(dy, saved):
    """dy (..., s, O_r)  ->  dx (..., s_r, I), and what the weight gradient needs.

    Each rank knows what its own columns add to dx: one reduce-scatter of dx. And one all-gather of x, as the weight
    gradient needs all positions: it is sent here, so that the other half sends nothing.
    """
    x, w, b, comm = saved
    dx, pending = layers.linear_backward_input(dy, (gather(x, comm), w, b))
    return scatter_sum(dx, comm), pending


def column_parallel_backward(dy, saved):
    """Both halves at once: dy (..., s, O_r)  ->  dx (..., s_r, I), dw (I, O_r), db (O_r,) or None"""
    dx, pending = column_parallel_backward_input(dy, saved)
    return dx, *column_parallel_backward_weight(pending)


# y = (sum_r x_r w_r) + b, cut along the sequence: the input features are cut


def row_parallel(x, w, b, comm):
    """Forward of a linear layer whose inputs are cut by features and whose outputs are cut along the sequence.

    x (..., s, I_r)    w (I_r, O)    b (O,) or None, the same on every rank    ->  y (..., s_r, O), saved
    One reduce-scatter of y; then the bias, once. ValueError for shapes that do not fit, before anything is sent.
    """
    layers.check_linear(x, w, b)
    y, (x, w, _) = layers.linear(x, w)
    y = scatter_sum(y, comm)
    return (y if b is None else layers.add(y, b)), (x, w, b, comm)


def row_parallel_backward_input(dy, saved):
    """dy (..., s_r, O)  ->  dx (..., s, I_r), and what the weight gradient needs.

    One all-gather of dy, first: each rank's w makes its own features of dx, at every position. Gathering dy_r w_r^T
    would join features of different ranks.
    """
    x, w, b, comm = saved
    return layers.linear_backward_input(gather(dy, comm), (x, w, b))


def row_parallel_backward(dy, saved):
    """Both halves at once: dy (..., s_r, O)  ->  dx (..., s, I_r), dw (I_r, O), db (O,) or None, whole on every rank"""
    dx, pending = row_parallel_backward_input(dy, saved)
    return dx, *row_parallel_backward_weight(pending)


# What every rank has whole, and has used for its own positions only


def is_addend(name):
    """Whether the gradient of this parameter, named as in model/config.py, is a sum over positions of a shard."""
    return "norm" in name or name == "embedding.positions" or name.endswith("moe.router")


def sum_addends(gradients, comm):
    """Finish the gradients of norms, routers and position embeddings: one all-reduce of all of them over tp.

    gradients    dict by name, `is_addend` says which    ->  dict, with new arrays for those, the same on every rank
    """
    return gradients | summed_together({name: g for name, g in gradients.items() if is_addend(name)}, comm)
