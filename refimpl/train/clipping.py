"""The norm of all gradients together, however they are spread over ranks; and clipping by it.

    norm = sqrt(sum over all parameters of g^2)          g <- g min(1, most / (norm + 1e-6))

A parameter must count once, and all of it. Over each axis of the mesh one of three things is true of an array:

    cut over the axis        every rank counts its shard                  tp, ep, stages of pp, ZeRO's shards
    whole on every rank      the first rank counts it, the others not     norms under tp, everything under plain dp
    some of both             counted by views                             fused wqkv with copied key and value heads

So a rank lists the arrays that it counts (`counted` makes the list under tp; `pipeline.tied.once` leaves out the second
copy of a tied table), and one number is summed over each communicator in turn: (mesh.tp, mesh.pp), with ZeRO mesh.dp
before them. All ranks get the same bits, so all clip alike. Counted on every rank, a replicated gradient would weigh tp
times too much (13 would be 17.69); summed over one stage only, each stage would have a norm of its own.

Padding is not a gradient: list views without it, for whatever stands there, NaN too, would be in the norm. Squares are
summed in float64: those of float32 numbers always fit. (Pascanu et al. 2013; PyTorch's clip_grad_norm_.)
"""

import math

from refimpl.arrays import array_namespace, to_host
from refimpl.collectives import all_reduce
from refimpl.parallel import heads, shards
from refimpl.precision import narrow, wide

NORM = "gradient norm"                                    # the ledger's name for these messages


def global_norm(gradients, comms=(), order=2):
    """The norm over all ranks of these communicators, as a float, with the same bits on each.

    gradients    list of arrays, each number of the model on exactly one rank; empty where a rank counts none
    comms        communicators whose ranks together have everything, one after the other
    order        2, or math.inf for the largest absolute value
    One number of 8 bytes by doubling for each communicator. ValueError for another order.
    """
    if order not in (2, math.inf):
        raise ValueError(f"order={order}: expected 2 or math.inf; nearest 2")
    found, number = [_measure(g, order) for g in gradients if g.size], 0.0
    if found:
        found = array_namespace(*found).stack(found)
        number = float(to_host(found.sum() if order == 2 else found.max()))
    for comm in comms:
        with comm.phase(NORM):
            number = float(all_reduce(number, comm, op="sum" if order == 2 else "max", algorithm="doubling"))
    return math.sqrt(number) if order == 2 else number


def _measure(g, order):
    """Of one array: a number, still on its device."""
    g = wide(g).astype(array_namespace(g).float64)
    return (g * g).sum() if order == 2 else abs(g).max()


def clip_factor(norm, most):
    """What gradients are multiplied by: most / (norm + 1e-6), at most 1; NaN for a norm that is NaN.

    most    the largest norm allowed, above 0; None for no limit
    """
    if most is None:
        return 1.0
    if not most > 0:
        raise ValueError(f"clip={most}: expected a norm above 0, or None for no clipping; nearest 1.0")
    factor = most / (norm + 1e-6)
    return 1.0 if factor > 1 else factor


def clip_(gradients, factor):
    """Multiply these arrays by the factor, in place; float16 and bfloat16 are multiplied in float32."""
    for g in gradients:
        g[...] = narrow(wide(g) * factor, g.dtype)


def counted(gradients, config, rank, size):
    """What `rank` of `size` tensor-parallel ranks counts of its finished gradients: a list of views.

    gradients    by name, cut as `parallel.shards` does
    Its ids of the tables without the padding; of the attention its queries, and its keys and values unless a rank below
    has the same heads; whole arrays (norms, position embeddings, the biases after the row-parallel matrices) on rank 0.
    """
    share = heads.sharers(config, size)
    views = []
    for name, g in gradients.items():
        part = name.rpartition(".")[2]
        if name in shards.TABLES:
            first = rank * g.shape[0]
            views.append(g[:max(config.vocabulary - first, 0)])
        elif part in ("wqkv", "bqkv"):
            views.append(g if rank % share == 0 else g[..., :-2, :])
        elif part in ("wo", "w1", "b1", "w2") or rank == 0:
            views.append(g)
    return views
