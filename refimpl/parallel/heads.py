"""Attention by heads: a rank has some of the query heads, and the key and value heads that those look at.

    8 query heads in 2 groups, each with one key and one value head

    tp 2    rank 0: q0 q1 q2 q3 k0 v0               rank 1: q4 q5 q6 q7 k1 v1                whole groups
    tp 4    rank 0: q0 q1 k0 v0   1: q2 q3 k0 v0    2: q4 q5 k1 v1   3: q6 q7 k1 v1          a group is shared

wqkv is column-parallel, wo row-parallel, and heads do not see each other: what stands between needs no message, and
the whole costs what an MLP does, one all-reduce forward and one backward. The model keeps wqkv as (h, n, g + 2, d), a
group's queries beside its key and value, so a rank's columns lie together; three matrices side by side, cut plainly,
would give rank 0 queries only. (Shoeybi et al. 2019, section 3; grouped queries: Ainslie et al. 2023.)

With more ranks than key-value heads a head has copies. Each copy's gradient is one of the addends: those of the ranks
that share it, and of no others, are summed (`sharing`), once a step. How many key-value heads the model has comes from
the config; local heads times ranks would count the copies.

Letters: ... leading axes, b sequences, s positions, h hidden, n key-value heads, g query heads for each, d features a
head; a subscript r marks what rank r holds.
"""

from dataclasses import replace

from refimpl.arrays import array_namespace
from refimpl.collectives import bounds
from refimpl.model.block import attend, attend_backward, whole
from refimpl.parallel import tensor


def check_heads(config, size):
    """ValueError unless the heads of a `Config` can be cut for `size` ranks: all get as many, of as few groups.

    Names the sizes that work.
    """
    heads, kv = config.heads, config.kv_heads
    tensor.check_size(size)
    if heads % size or (kv % size and size % kv):
        works = [k for k in range(1, heads + 1) if heads % k == 0 and (kv % k == 0 or k % kv == 0)]
        *most, last = map(str, works)
        what = f"heads={heads}" if heads % size else f"kv_heads={kv} of heads={heads}"
        how = "is not divisible" if heads % size else "are neither divided nor shared evenly"
        raise ValueError(f"{what} {how} by tp={size}; tp may be {', '.join(most) + ' or ' if most else ''}{last}")


def query_heads(config, rank, size):
    """Numbers of the query heads that `rank` of `size` has: a range. ValueError if they cannot be cut so."""
    return _part(config, config.heads, rank, size)


def kv_heads(config, rank, size):
    """Numbers of the key-value heads that `rank` of `size` has: a range, the same one for ranks that share a head."""
    tensor.check_rank(rank, size)
    share = sharers(config, size)
    return _part(config, config.kv_heads, rank // share, size // share)


def sharers(config, size):
    """How many ranks of `size` have the same key-value heads: 1, unless there are more ranks than heads."""
    check_heads(config, size)
    return max(size // config.kv_heads, 1)


def sharing(comm, config):
    """The communicator of the ranks that have the same key-value heads as this one; None if it is the only one.

    Every rank of `comm` must call it, once: making a group needs all of them. ValueError before anything is sent.
    """
    share = sharers(config, comm.size)
    return comm.split(comm.rank // share, comm.rank, name=f"{comm.name} kv") if share > 1 else None


def _part(config, heads, rank, size):
    check_heads(config, size)
    tensor.check_rank(rank, size)
    b = bounds(heads, size)
    return range(b[rank], b[rank + 1])


# What a rank holds


def shard_attention(parameters, config, rank, size):
    """The part of an attention's parameters that `rank` of `size` holds (copies).

    wqkv (h, n, g + 2, d) -> (h, n_r, g_r + 2, d), bqkv (n, g + 2, d) -> (n_r, g_r + 2, d), wo (n g d, h) -> the rows
    of its query heads, bo (h,) -> whole    ValueError if the heads cannot be cut
    """
    queries, kv = query_heads(config, rank, size), kv_heads(config, rank, size)
    first = queries.start - kv.start * config.group            # of a shared group the rank's own queries: first:last
    last = first + len(queries) // len(kv)
    rows = slice(queries.start * config.head, queries.stop * config.head)
    shard = {}
    for name, p in parameters.items():
        if name.endswith("qkv"):
            mine = p[..., kv.start:kv.stop, :, :]
            shard[name] = array_namespace(p).concatenate([mine[..., first:last, :], mine[..., -2:, :]], -2)
        else:
            shard[name] = p[rows].copy() if name == "wo" else p.copy()
    return shard


def unshard_attention(shards, config):
    """The whole parameters (or finished gradients) again: shard_attention's inverse. Of copies the first rank's counts.

    shards: each rank's dict, in order    ValueError if one is missing, or no such shard
    """
    share = sharers(config, len(shards))
    for rank, shard in enumerate(shards):
        check_shard(shard, config, rank, len(shards))
    found = {}
    for name, p in shards[0].items():
        join, parts = array_namespace(p).concatenate, [shard[name] for shard in shards]
        if name.endswith("qkv"):
            groups = [parts[k:k + share] for k in range(0, len(parts), share)]
            groups = [join([*(p[..., :-2, :] for p in group), group[0][..., -2:, :]], -2) for group in groups]
            found[name] = join(groups, -3)
        else:
            found[name] = join(parts, 0) if name == "wo" else p.copy()
    return found


def check_shard(parameters, config, rank, size):
    """ValueError unless wqkv and wo are those that `rank` of `size` holds.

    With the whole ones everything would fit, too, and be added up `size` times.
    """
    queries, kv = query_heads(config, rank, size), kv_heads(config, rank, size)
    shapes = {"wqkv": (config.hidden, len(kv), len(queries) // len(kv) + 2, config.head),
              "wo": (len(queries) * config.head, config.hidden)}
    for name, shape in shapes.items():
        found = parameters[name].shape if name in parameters else "missing"
        if found != shape:
            raise ValueError(f"{name} is {found}, but rank {rank} of {size} holds {shape}: "
                             "heads.shard_attention(parameters, config, rank, size)")


# The operator: wqkv, attend, wo


def attention_forward(x, parameters, config, comm, layer=0, place=None, linear=tensor):
    """Causal self-attention with the heads cut over the ranks.

    x (b, s, h), the same on every rank    parameters: the rank's own, from `shard_attention`    layer: for dropout
    place       which part of the batch x is, see model/block.py; its heads are filled in here
    linear      tensor, or sequence: then x is (b, s_r, h), and so is y; place.positions are all s
    ->          y (b, s, h), the same on every rank, saved        one all-reduce of y
    ValueError, before anything is sent, if the heads cannot be cut, or for parameters of another cut.
    """
    mine = query_heads(config, comm.rank, comm.size)
    check_shard(parameters, config, comm.rank, comm.size)
    wqkv, wo = parameters["wqkv"], parameters["wo"]
    qkv, saved1 = linear.column_parallel(x, wqkv, parameters.get("bqkv"), comm)
    place = replace(whole(qkv, config) if place is None else place, heads=mine)
    context, saved2 = attend(qkv, wqkv.shape[1:], config, layer, place)
    y, saved3 = linear.row_parallel(context, wo, parameters.get("bo"), comm)
    return y, (saved1, saved2, saved3, linear)


def attention_backward_input(dy, saved):
    """The urgent half: dy (b, s, h)  ->  dx (b, s, h), the same on every rank, pending    one all-reduce of dx"""
    saved1, saved2, saved3, linear = saved
    dcontext, pending_o = linear.row_parallel_backward_input(dy, saved3)
    dx, pending_qkv = linear.column_parallel_backward_input(attend_backward(dcontext, saved2), saved1)
    return dx, (pending_qkv, pending_o, linear)


def attention_backward_weight(pending):
    """The half that can wait: pending  ->  gradients of the rank's own parameters, by name    sends nothing

    Of a key or value head that ranks share it is one addend: `sum_shared`.
    """
    pending_qkv, pending_o, linear = pending
    gradients = {}
    gradients["wqkv"], gradients["bqkv"] = linear.column_parallel_backward_weight(pending_qkv)
    gradients["wo"], gradients["bo"] = linear.row_parallel_backward_weight(pending_o)
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


def attention_backward(dy, saved):
    """Both halves at once: dy (b, s, h)  ->  dx (b, s, h), gradients"""
    dx, pending = attention_backward_input(dy, saved)
    return dx, attention_backward_weight(pending)


def sum_shared(gradients, group):
    """Finish the gradients of key and value heads that ranks share: one all-reduce among those ranks, of all layers.

    gradients    dict by name; wqkv and bqkv, of any number of layers, hold addends in their last two parts
    group        from `sharing`; None changes nothing        ->  dict, with new arrays for those
    """
    if group is None:
        return gradients
    shared = {name: gradient for name, gradient in gradients.items() if name.endswith("qkv")}
    sums = tensor.summed_together({name: gradient[..., -2:, :] for name, gradient in shared.items()}, group)
    joined = {name: array_namespace(gradient).concatenate([gradient[..., :-2, :], sums[name]], -2)
              for name, gradient in shared.items()}
    return gradients | joined
