"""What each rank of a tensor-parallel group holds of a transformer, and how its gradients become whole.

    parameter                        rank r of t has                         its gradient is
    embedding.tokens, head.tokens    its ids, padded: as many on each        complete
    attention.wqkv .bqkv .wo         its heads                               complete; of shared k and v heads an addend
    mlp.w1 .b1 .w2                   its hidden features                     complete
    moe.w1 .w2                       its experts and features: `Share`       complete
    moe.shared.w1 .w2                its hidden features                     complete
    attention.bo, mlp.b2             all                                     complete, the same on every rank
    norms, embedding.positions,
    moe.router                       all                                     so, too; sequence-parallel an addend

Addends are summed by `finish` once a step, after the last micro-batch: at most two all-reduces, however many layers
there are. (Megatron: finalize_model_grads.)

Which experts a rank has does not follow from its place in tp: `Experts.share` says it (expert_groups.py). Without it:
all, cut as the rest is. From one number of ranks to another: shard(unshard(shards, config), config, rank, size).
"""

from refimpl.arrays import array_namespace
from refimpl.collectives import bounds, chunk_sizes
from refimpl.model.config import block_shapes as whole_block_shapes
from refimpl.model.config import check_parameters, of_block
from refimpl.model.config import shapes as whole_shapes
from refimpl.parallel import heads, sequence, tensor, vocabulary
from refimpl.parallel.expert_groups import Share, is_expert

TABLES = ("embedding.tokens", "head.tokens")


def shard(parameters, config, rank, size, multiple=1, share=None):
    """The part of a transformer's parameters that `rank` of `size` holds: copies, by the same names.

    parameters    whole arrays by name, see model/config.py    multiple: pad a rank's ids to a multiple of it
    share         which experts, and which of their features: `Share`; all, cut over the `size` ranks, if None
    ValueError if the heads cannot be cut, naming what works.
    """
    heads.check_heads(config, size)
    tensor.check_rank(rank, size)
    share = Share(0, 1, rank, size) if share is None else share
    mine = {}
    for part, names in _parts(parameters).items():
        whole = {short: parameters[name] for short, name in names.items()}
        if part.endswith("attention"):
            whole = heads.shard_attention(whole, config, rank, size)
        elif part.endswith(("mlp", "moe.shared")):
            whole = tensor.shard_mlp(whole, rank, size)
        elif part.endswith("moe"):
            whole = {short: shard_experts(p, short, config, share) if is_expert(names[short]) else p.copy()
                     for short, p in whole.items()}
        else:
            whole = {short: vocabulary.shard_table(p, rank, size, multiple) if names[short] in TABLES else p.copy()
                     for short, p in whole.items()}
        mine |= {names[short]: p for short, p in whole.items()}
    return {name: mine[name] for name in parameters}


def shard_experts(w, short, config, share):
    """A copy of the experts and features that a `Share` has: of w1 (E, ..., f) or w2 (E, f, h), as `short` says."""
    experts, features = expert_slices(config, share)
    return w[(experts, ..., features) if short == "w1" else (experts, features)].copy()


def expert_slices(config, share):
    """Which experts, and which of their features: two slices. ValueError for a rank that is none."""
    tensor.check_rank(share.rank, share.size)
    tensor.check_rank(share.tp_rank, share.tp_size)
    experts, features = bounds(config.experts, share.size), bounds(config.expert_ffn, share.tp_size)
    return (slice(experts[share.rank], experts[share.rank + 1]),
            slice(features[share.tp_rank], features[share.tp_rank + 1]))


def block_shapes(config, rank, size, share=None):
    """Shapes of one block's parameters on `rank` of `size`, by name; ValueError if they cannot be cut so."""
    queries, kv = len(heads.query_heads(config, rank, size)), len(heads.kv_heads(config, rank, size))
    share = Share(0, 1, rank, size) if share is None else share
    together = config.shared_experts * config.expert_ffn if config.experts else config.ffn
    ffn, shapes = chunk_sizes(together, size)[rank], {}
    for name, shape in whole_block_shapes(config).items():
        if is_expert(name):
            experts, features = (part.stop - part.start for part in expert_slices(config, share))
            shape = (experts, *shape[1:-1], features) if name.endswith("w1") else (experts, features, shape[2])
        elif name.endswith("qkv"):
            shape = (*shape[:-3], kv, queries // kv + 2, config.head)
        elif name.endswith(("w1", "b1")):
            shape = (*shape[:-1], ffn)
        elif name.endswith(("wo", "w2")):
            shape = (queries * config.head if name.endswith("wo") else ffn, *shape[1:])
        shapes[name] = shape
    return shapes


def check_block(parameters, config, rank, size, share=None):
    """ValueError unless these are one block's parameters as `rank` of `size` holds them.

    With the whole ones everything would fit, too, and be added up `size` times.
    """
    _check(parameters, block_shapes(config, rank, size, share), rank, size, share)


def check(parameters, config, rank, size, share=None):
    """ValueError unless these are a whole model's parameters as `rank` of `size` holds them, however padded."""
    for layer in range(config.layers):
        check_block(of_block(parameters, layer), config, rank, size, share)
    rest = {name: shape for name, shape in whole_shapes(config).items() if not name.startswith("blocks.")}
    for name in rest.keys() & parameters.keys() & set(TABLES):
        each = parameters[name].shape[0]
        vocabulary.check_share(each, config.vocabulary, size)
        rest[name] = each, config.hidden
    _check(parameters, rest, rank, size, share)


def _check(parameters, expected, rank, size, share):
    hint = f": shards.shard(parameters, config, rank, size{', share=share' if share else ''})"
    check_parameters(parameters, expected, f"rank {rank} of {size} holds", hint)


def unshard(shards, config, experts=None):
    """The whole parameters (or finished gradients) again, without padding: shard's inverse.

    shards     each tp rank's dict, in order; of what every rank has whole the first rank's counts
    experts    {`Share`: dict of the rank that has it}, all shares; None: as `shard` cuts without one
    """
    found, size = {}, len(shards)
    experts = {Share(0, 1, r, size): shards[r] for r in range(size)} if experts is None else experts
    for part, names in _parts(shards[0]).items():
        pieces = [{short: mine[name] for short, name in names.items()} for mine in shards]
        if part.endswith("attention"):
            whole = heads.unshard_attention(pieces, config)
        elif part.endswith(("mlp", "moe.shared")):
            whole = tensor.unshard_mlp(pieces)
        elif part.endswith("moe"):
            whole = {short: unshard_experts({share: mine[names[short]] for share, mine in experts.items()}, short)
                     if is_expert(names[short]) else p.copy() for short, p in pieces[0].items()}
        else:
            whole = {short: vocabulary.unshard_table([piece[short] for piece in pieces], config.vocabulary)
                     if names[short] in TABLES else p.copy() for short, p in pieces[0].items()}
        found |= {names[short]: p for short, p in whole.items()}
    return {name: found[name] for name in shards[0]}


def unshard_experts(pieces, short):
    """All experts' w1 or w2, as `short` says, from each `Share`'s: {share: array}. ValueError if one is missing."""
    join = array_namespace(*pieces.values()).concatenate
    size, tp_size = next(iter(pieces))[1::2]
    wanted = {Share(r, size, t, tp_size) for r in range(size) for t in range(tp_size)}
    if pieces.keys() != wanted:
        raise ValueError(f"experts are given for {sorted(map(tuple, pieces))}; expected (rank, size, tp_rank, tp_size) "
                         f"in {sorted(map(tuple, wanted))}")
    return join([join([pieces[Share(r, size, t, tp_size)] for t in range(tp_size)], -1 if short == "w1" else 1)
                 for r in range(size)])


def is_whole(name):
    """Whether every tensor-parallel rank has all of the parameter of this name, and so a copy that must stay equal."""
    return "norm" in name or name.endswith(("attention.bo", "mlp.b2", "moe.router", "embedding.positions"))


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
