"""A whole language model on the ranks of a tensor-parallel group: tokens in, a loss out, every gradient.

    tokens --> embed --> block 0 --> ... --> block L-1 --> head: norm, output table --> logits_r (b, s, V_r)
    same on every rank                                                                       |  targets, the same, too
                                                     total, count: the same <-- cross-entropy over the cut classes

    sharing = heads.sharing(comm, config)                                       once
    mine = shards.shard(parameters, config, comm.rank, comm.size)
    total, count, saved = loss(tokens, targets, mine, config, comm)
    gradients = loss_backward(1 / max(count, 1), saved)                         for each micro-batch; they add up
    gradients = shards.finish(gradients, comm, sharing)                         once a step

Elements sent by a rank, forward and backward, b s h (t-1)/t = 1: embedding 2, each layer 8, head 2; sequence-parallel
2, 10 and 3, and the addends once a step. For the loss 3 numbers a position are summed, with smoothing 4. What layers
with experts send: expert.py; their groups, in `place.experts`: expert_groups.py.
Mirrors model/transformer.py and its pieces. With `sequence_parallel` x is (b, s_r, h) between them, else (b, s, h).
Letters: b sequences, s positions, h hidden, V vocabulary, L layers, t ranks; a subscript r marks the rank's own.
"""

from refimpl.arrays import integers
from refimpl.collectives import all_reduce
from refimpl.model.config import of_block
from refimpl.model.dropout import EMBEDDING, dropout, dropout_backward
from refimpl.model.embedding import embedding, embedding_backward
from refimpl.model.layers import add
from refimpl.model.loss import IGNORED
from refimpl.model.norms import norm, norm_backward_input, norm_backward_weight
from refimpl.model.transformer import added, checked_place, table_name
from refimpl.parallel import block, heads, sequence, shards, vocabulary
from refimpl.precision import narrow, wide


def embed(tokens, parameters, config, comm, place=None, sequence_parallel=False):
    """Token embeddings; for gpt2, position embeddings are added, then dropout.

    tokens (b, s) integers, the same on every rank    place: which part of the batch they are, the whole of it if None
    ->  x (b, s, h), the same on every rank, saved; sequence-parallel: (b, s_r, h)
    Raises ValueError, before anything is sent, for a token or position the model does not know, or what cannot be cut.
    """
    place = checked_cut(tokens, config, comm, place, sequence_parallel)
    positions = place.positions
    if sequence_parallel:
        positions = positions[sequence.own(tokens.shape[1], comm.rank, comm.size)]
    table = parameters["embedding.tokens"]
    x, saved_tokens = vocabulary.embedding(tokens, table, config.vocabulary, comm, sequence_parallel)
    if config.family == "llama":
        return x, (saved_tokens, None, None)
    table = parameters["embedding.positions"]
    learned, _ = embedding(integers(positions, tokens), table)
    axes = place.sequences, positions, range(config.hidden)
    x, saved_dropout = dropout(add(x, learned), config.dropout, place.key(0, EMBEDDING), axes)
    return x, (saved_tokens, (positions, table), saved_dropout)


def checked_cut(tokens, config, comm, place, sequence_parallel):
    """`place`, or the whole batch if None: ValueError unless it fits the tokens, and heads and positions can be cut."""
    place = checked_place(tokens, config, place)
    heads.check_heads(config, comm.size)
    if sequence_parallel:
        sequence.check_length(tokens.shape[1], comm.size)
    return place


def embed_backward(dx, saved):
    """dx as x  ->  gradients by name; sequence-parallel: that of the positions is an addend"""
    saved_tokens, saved_positions, saved_dropout = saved
    if saved_positions is None:
        return {"embedding.tokens": vocabulary.embedding_backward(dx, saved_tokens)}
    dx, (positions, table) = dropout_backward(dx, saved_dropout), saved_positions
    over_batch = narrow(wide(dx).sum(axis=0), dx.dtype)
    return {"embedding.tokens": vocabulary.embedding_backward(dx, saved_tokens),
            "embedding.positions": embedding_backward(over_batch, (integers(positions, dx), table))}


def head(x, parameters, config, comm, sequence_parallel=False):
    """The last norm and the output table: x (b, s, h) or (b, s_r, h)  ->  logits (b, s, V_r), saved"""
    x, saved_norm = norm(x, parameters["norm.w"], parameters.get("norm.b"), config.epsilon)
    name = table_name(config)
    logits, saved = vocabulary.unembedding(x, parameters[name], comm, sequence_parallel)
    return logits, (saved_norm, saved, name)


def head_backward_input(dlogits, saved):
    """dlogits (b, s, V_r)  ->  dx as x, pending"""
    saved_norm, saved, name = saved
    dx, pending = vocabulary.unembedding_backward_input(dlogits, saved)
    dx, pending_norm = norm_backward_input(dx, saved_norm)
    return dx, (pending_norm, pending, name)


def head_backward_weight(pending):
    """->  gradients by name; sequence-parallel: the norm's are addends    sends nothing"""
    pending_norm, pending, name = pending
    dw, db = norm_backward_weight(pending_norm)
    gradients = {"norm.w": dw} | ({} if db is None else {"norm.b": db})
    return gradients | {name: vocabulary.unembedding_backward_weight(pending)}


def forward(tokens, parameters, config, comm, place=None, sequence_parallel=False):
    """The whole model.

    tokens (b, s) integers, the same on every rank    parameters: the rank's own, by name
    ->  logits (b, s, V_r), saved
    Raises ValueError, before anything is sent, as `embed` does, and for parameters of another model or cut.
    """
    place = checked_cut(tokens, config, comm, place, sequence_parallel)
    shards.check(parameters, config, comm.rank, comm.size, place.experts.share if place.experts else None)
    x, saved_embed = embed(tokens, parameters, config, comm, place, sequence_parallel)
    blocks = []
    for layer in range(config.layers):
        x, saved = block.forward(x, of_block(parameters, layer), config, comm, layer, place, sequence_parallel)
        blocks.append(saved)
    logits, saved_head = head(x, parameters, config, comm, sequence_parallel)
    return logits, (saved_embed, blocks, saved_head)


def backward(dlogits, saved, scale=None):
    """dlogits (b, s, V_r)  ->  gradients of the rank's own parameters, by name; some are addends: shards.finish

    scale    what the total loss is multiplied by; asked for where experts have an auxiliary loss: see model/block.py
    """
    saved_embed, blocks, saved_head = saved
    dx, pending = head_backward_input(dlogits, saved_head)
    gradients = head_backward_weight(pending)
    for layer in reversed(range(len(blocks))):
        dx, mine = block.backward(dx, blocks[layer], scale)
        gradients |= {f"blocks.{layer}.{name}": gradient for name, gradient in mine.items()}
    return added(gradients, embed_backward(dx, saved_embed))


def routed(saved):
    """What became of the tokens, in each layer with experts: {"blocks.0.moe": moe.Routed, ...}. Of `forward`'s saved

    Addends: of all that have other tokens, dp_cp and, sequence-parallel, tp.
    """
    found = {f"blocks.{layer}.moe": block.routed(kept) for layer, kept in enumerate(saved[1])}
    return {name: report for name, report in found.items() if report is not None}


def balance(saved, comm, sequence_parallel=False):
    """The auxiliary losses of all layers: (), the same on every rank of tp; 0 for a dense model.

    Sequence-parallel it is summed over tp: one number. Over dp_cp it is an addend, as the loss is.
    """
    total = sum(report.balance for report in routed(saved).values())
    return all_reduce(total, comm, algorithm="ring") if sequence_parallel and routed(saved) else total


def loss(tokens, targets, parameters, config, comm, place=None, ignore_index=IGNORED, smoothing=0.0,
         sequence_parallel=False):
    """The whole model and its cross-entropy with the tokens that should come next; experts' auxiliary losses added.

    tokens (b, s), targets (b, s) integers, the same on every rank
    ->  total (), count (), the same on every rank, saved        the mean is total / max(count, 1)
    """
    V = config.vocabulary
    vocabulary.checked_targets(tokens[..., None], targets, V, ignore_index, smoothing)        # before anything is sent
    logits, saved = forward(tokens, parameters, config, comm, place, sequence_parallel)
    total, count, saved_loss = vocabulary.cross_entropy(logits, targets, V, comm, ignore_index, smoothing)
    if config.balance:
        total = total + balance(saved, comm, sequence_parallel)
    return total, count, (saved, saved_loss)


def loss_backward(dtotal, saved):
    """dtotal a number or (), 1 / xp.maximum(count, 1) for the mean loss  ->  gradients as from `backward`"""
    saved, saved_loss = saved
    return backward(vocabulary.cross_entropy_backward(dtotal, saved_loss), saved, dtotal)
