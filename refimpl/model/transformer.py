"""A whole language model: tokens in, logits or a loss out, and the gradient of every parameter.

    tokens (b, s) --> embed --> block 0 --> ... --> block L-1 --> head: norm, output table --> logits (b, s, V)
                                                                                                  |  targets (b, s)
                                                                                     total, count <--  cross-entropy

`embed`, `block` and `head` are the pieces that a pipeline stage is made of; each has its backward, split where it has
an input to pass a gradient to. A tied table (GPT-2) has two gradients, from `embed` and from `head`, which are added.
With experts in place of the MLPs `total` includes their auxiliary losses, and `routed` says what became of the tokens.
Sizes, names and shapes: config.py. One layer, what it keeps and what recomputation saves: block.py.

About 2 (N + h V) + 4 s h L FLOPs a token forward, twice that backward (without recomputation).
Letters: b sequences, s positions, h hidden, V vocabulary, L layers, N parameters of the blocks.
"""

from refimpl.arrays import integers
from refimpl.model import block
from refimpl.model.block import Place, whole  # noqa: F401    also found here
from refimpl.model.config import Config, block_shapes, check_parameters, init, of_block, shapes  # noqa: F401    also found here
from refimpl.model.dropout import EMBEDDING, dropout, dropout_backward
from refimpl.model.embedding import (
    embedding,
    embedding_backward,
    unembedding,
    unembedding_backward_input,
    unembedding_backward_weight,
)
from refimpl.model.layers import add
from refimpl.model.loss import IGNORED, cross_entropy, cross_entropy_backward
from refimpl.model.norms import norm, norm_backward_input, norm_backward_weight
from refimpl.precision import narrow, wide

block_forward, block_backward = block.forward, block.backward
block_backward_input, block_backward_weight = block.backward_input, block.backward_weight


def embed(tokens, parameters, config, place=None):
    """Token embeddings; for gpt2, position embeddings are added, then dropout.

    tokens (b, s) integers    place: which part of the batch they are, the whole of it if None
    ->  x (b, s, h), saved
    Raises ValueError for a token that is not in the vocabulary, a place of other sizes or, for gpt2, a position it has
    not learned.
    """
    place = checked_place(tokens, config, place)
    x, saved_tokens = embedding(tokens, parameters["embedding.tokens"])
    if config.family == "llama":
        return x, (saved_tokens, None, None)
    table = parameters["embedding.positions"]
    positions, _ = embedding(integers(place.positions, tokens), table)
    axes = place.sequences, place.positions, range(config.hidden)
    x, saved_dropout = dropout(add(x, positions), config.dropout, place.key(0, EMBEDDING), axes)
    return x, (saved_tokens, (place.positions, table), saved_dropout)


def checked_place(tokens, config, place=None):
    """`place`, or the whole batch if None: ValueError unless it numbers the tokens (b, s), at positions that exist."""
    if tokens.ndim != 2:
        raise ValueError(f"tokens {tokens.shape}: expected (b, s); tokens[None] makes a batch of one sequence")
    place = whole(tokens, config) if place is None else place
    if (len(place.sequences), len(place.positions)) != tokens.shape:
        raise ValueError(f"place numbers {len(place.sequences)} sequences and {len(place.positions)} positions, but "
                         f"tokens are {tokens.shape}")
    integers(place.positions, tokens)                                                  # or it says so
    if len(place.positions) and min(place.positions) < 0:
        raise ValueError(f"position {min(place.positions)}: expected 0 or more")
    if config.family == "gpt2" and len(place.positions) and max(place.positions) >= config.context:
        raise ValueError(f"position {max(place.positions)} is beyond context={config.context}, the positions that this "
                         f"model has learned; a sequence may have at most {config.context}")
    return place


def embed_backward(dx, saved):
    """dx (b, s, h)  ->  gradients by name; tokens have none, so all of this can wait"""
    saved_tokens, saved_positions, saved_dropout = saved
    if saved_positions is None:
        return {"embedding.tokens": embedding_backward(dx, saved_tokens)}
    dx, (positions, table) = dropout_backward(dx, saved_dropout), saved_positions
    over_batch = narrow(wide(dx).sum(axis=0), dx.dtype)
    return {"embedding.tokens": embedding_backward(dx, saved_tokens),
            "embedding.positions": embedding_backward(over_batch, (integers(positions, dx), table))}


def head(x, parameters, config):
    """The last norm and the output table: x (b, s, h)  ->  logits (b, s, V), saved"""
    x, saved_norm = norm(x, parameters["norm.w"], parameters.get("norm.b"), config.epsilon)
    name = table_name(config)
    logits, saved = unembedding(x, parameters[name])
    return logits, (saved_norm, saved, name)


def head_backward_input(dlogits, saved):
    """dlogits (b, s, V)  ->  dx (b, s, h), pending"""
    saved_norm, saved, name = saved
    dx, pending = unembedding_backward_input(dlogits, saved)
    dx, pending_norm = norm_backward_input(dx, saved_norm)
    return dx, (pending_norm, pending, name)


def head_backward_weight(pending):
    """->  gradients by name"""
    pending_norm, pending, name = pending
    dw, db = norm_backward_weight(pending_norm)
    return {"norm.w": dw} | ({} if db is None else {"norm.b": db}) | {name: unembedding_backward_weight(pending)}


def table_name(config):
    """The name of the output table."""
    return "embedding.tokens" if config.tied else "head.tokens"


def forward(tokens, parameters, config, place=None):
    """The whole model.

    tokens (b, s) integers    parameters: dict by name, see config.shapes    ->  logits (b, s, V), saved
    Raises ValueError as `embed` does, and for parameters that are not this model's.
    """
    check_parameters(parameters, shapes(config))
    place = checked_place(tokens, config, place)
    x, saved_embed = embed(tokens, parameters, config, place)
    blocks = []
    for layer in range(config.layers):
        x, saved = block.forward(x, of_block(parameters, layer), config, layer, place)
        blocks.append(saved)
    logits, saved_head = head(x, parameters, config)
    return logits, (saved_embed, blocks, saved_head)


def backward(dlogits, saved, scale=None):
    """dlogits (b, s, V)  ->  gradients, a dict with the names and shapes of the parameters

    scale    what the total loss is multiplied by; asked for where experts have an auxiliary loss: see block.py
    """
    saved_embed, blocks, saved_head = saved
    dx, pending = head_backward_input(dlogits, saved_head)
    gradients = head_backward_weight(pending)
    for layer in reversed(range(len(blocks))):
        dx, mine = block.backward(dx, blocks[layer], scale)
        gradients |= {f"blocks.{layer}.{name}": gradient for name, gradient in mine.items()}
    return added(gradients, embed_backward(dx, saved_embed))


def added(gradients, more):
    """Two dicts of gradients as one: those of one name are summed."""
    both = {name: add(gradients[name], more[name]) for name in gradients.keys() & more.keys()}
    return gradients | more | both


def routed(saved):
    """What became of the tokens, in each layer with experts: {"blocks.0.moe": moe.Routed, ...}. Of `forward`'s saved"""
    found = {f"blocks.{layer}.moe": block.routed(kept) for layer, kept in enumerate(saved[1])}
    return {name: report for name, report in found.items() if report is not None}


def balance(saved):
    """The auxiliary losses of all layers, coefficients included: (), or 0 for a dense model. Of `forward`'s saved"""
    return sum(report.balance for report in routed(saved).values())


def loss(tokens, targets, parameters, config, place=None, ignore_index=IGNORED, smoothing=0.0):
    """The whole model and its cross-entropy with the tokens that should come next; experts' auxiliary losses added.

    tokens (b, s), targets (b, s) integers    ->  total (), count (), saved        the mean is total / max(count, 1)
    """
    logits, saved = forward(tokens, parameters, config, place)
    total, count, saved_loss = cross_entropy(logits, targets, ignore_index, smoothing)
    return total + balance(saved) if config.balance else total, count, (saved, saved_loss)


def loss_backward(dtotal, saved):
    """dtotal a number or (), 1 / xp.maximum(count, 1) for the mean loss  ->  gradients by name"""
    saved, saved_loss = saved
    return backward(cross_entropy_backward(dtotal, saved_loss), saved, dtotal)
