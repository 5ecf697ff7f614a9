"""What each rank of a tensor-parallel group holds of a transformer, and how its gradients become whole.

    parameter                        rank r of t has                         its gradient is
    embedding.tokens, head.tokens    its ids, padded: as many on each        complete
    attention.wqkv .bqkv .wo         its heads                               complete; of shared k and v heads an addend
    mlp.w1 .b1 .w2                   its hidden features                     complete
    attention.bo, mlp.b2             all                                     complete, the same on every rank
    norms, embedding.positions       all                                     so, too; sequence-parallel an addend

Addends are summed by `finish` once a step, after the last micro-batch: at most two all-reduces, however many layers
there are. (Megatron: finalize_model_grads.)

From one number of ranks to another: shard(unshard(shards, config), config, rank, size).
"""

from refimpl.collectives import chunk_sizes
from refimpl.model.config import block_shapes as whole_block_shapes
from refimpl.parallel import heads, sequence, tensor, vocabulary

TABLES = ("embedding.tokens", "head.tokens")


def shard(parameters, config, rank, size, multiple=1):
    """The part of a transformer's parameters that `rank` of `size` holds: copies, by the same names.

    parameters    whole arrays by name, see model/config.py    multiple: pad a rank's ids to a multiple of it
    ValueError if the heads cannot be cut, naming what works.
    """
    heads.check_heads(config, size)
    tensor.check_rank(rank, size)
    mine = {}
    for part, names in _parts(parameters).items():
        whole = {short: parameters[name] for short, name in names.items()}
        if part.endswith("attention"):
            whole = heads.shard_attention(whole, config, rank, size)
        elif part.endswith("mlp"):
            whole = tensor.shard_mlp(whole, rank, size)
        else:
            whole = {short: vocabulary.shard_table(p, rank, size, multiple) if names[short] in TABLES else p.copy()
                     for short, p in whole.items()}
        mine |= {names[short]: p for short, p in whole.items()}
    return {name: mine[name] for name in parameters}


def block_shapes(config, rank, size):
    """Shapes of one block's parameters on `rank` of `size`, by name; ValueError if they cannot be cut so."""
    queries, kv = len(heads.query_heads(config, rank, size)), len(heads.kv_heads(config, rank, size))
    ffn, shapes = chunk_sizes(config.ffn, size)[rank], {}
    for name, shape in whole_block_shapes(config).items():
        if name.endswith("qkv"):
            shape = (*shape[:-3], kv, queries // kv + 2, config.head)
        elif name.endswith(("w1", "b1")):
            shape = (*shape[:-1], ffn)
        elif name.endswith(("wo", "w2")):
            shape = (queries * config.head if name.endswith("wo") else ffn, *shape[1:])
        shapes[name] = shape
    return shapes


def check_block(parameters, config, rank, size):
    """ValueError unless these are one block's parameters as `rank` of `size` holds them.

    With the whole ones everything would fit, too, and be added up `size` times.
    """
    for name, shape in block_shapes(config, rank, size).items():
        found = parameters[name].shape if name in parameters else "missing"
        if found != shape:
            raise ValueError(f"{name} is {found}, but rank {rank} of {size} holds {shape}: "
                             "shards.shard(parameters, config, rank, size)")


def unshard(shards, config):
    """The whole parameters (or finished gradients) again, without padding: shard's inverse.

    shards    each rank's dict, in order; of what every rank has whole the first rank's counts
    """
    found = {}
    for part, names in _parts(shards[0]).items():
        pieces = [{short: mine[name] for short, name in names.items()} for mine in shards]
        if part.endswith("attention"):
            whole = heads.unshard_attention(pieces, config)
        elif part.endswith("mlp"):
            whole = tensor.unshard_mlp(pieces)
        else:
            whole = {short: vocabulary.unshard_table([piece[short] for piece in pieces], config.vocabulary)
                     if names[short] in TABLES else p.copy() for short, p in pieces[0].items()}
        found |= {names[short]: p for short, p in whole.items()}
    return {name: found[name] for name in shards[0]}


def finish(gradients, comm, sharing, sequence_parallel=False):
    """Sum what are only addends, over the ranks that have the others: once a step, on every rank.

    gradients    the rank's own, by name    sharing: from heads.sharing(comm, config)    ->  dict, new arrays for those
    """
    gradients = heads.sum_shared(gradients, sharing)
    return sequence.sum_addends(gradients, comm) if sequence_parallel else gradients


def _parts(parameters):
    """Names grouped by the part of the model they belong to: {"blocks.0.mlp": {"w1": "blocks.0.mlp.w1", ...}, ...}"""
    parts = {}
    for name in parameters:
        part, _, short = name.rpartition(".")
        parts.setdefault(part, {})[short] = name
    return parts
