"""One layer of a transformer on the ranks of a tensor-parallel group, with or without sequence parallelism.

    x -+-> norm1 -> [f wqkv, attend, wo g] -> dropout -(+)-> x1 -+-> norm2 -> [f w1, gelu, w2 g] -> dropout -(+)-> y
       '------------------------------------------------'        '--------------------------------------------'

    in brackets   heads and hidden features are cut over the ranks, s positions on each
    outside       all features; all s positions on every rank or, sequence-parallel, the rank's own s/t
    f, g          what is sent: forward nothing and an all-reduce, backward the reverse; see tensor.py, sequence.py

Elements sent by a rank, b s h (t-1)/t = 1: forward 4, backward 4; sequence-parallel 4 and 6; full recomputation does
the forward once more. Kept for backward, bytes in float16 for a GPT-2 style layer, s b h = 1:

    10 + 24/t + 5 a s/(h t)     10: two norms' x, two inputs, two masks      sequence-parallel 34/t + 5 a s/(h t)
    recompute "selective": without 5 a s/(h t)                               "full": 2, sequence-parallel 2/t

(Korthikanti et al. 2022, table 2.) Dropout masks go by global numbers (model/dropout.py): outside the brackets ranks
with the same positions drop the same elements; ranks with other positions, heads or sequences drop others; and all
together drop what one device drops. Mirrors model/block.py.

A mixture of experts in the MLP's place: expert.py. Its groups come in `place.experts`: expert_groups.py.
Letters: b sequences, s positions, h hidden, a query heads, t ranks; a subscript r marks the rank's own.
"""

from dataclasses import replace
from typing import NamedTuple

from refimpl.model import mlp
from refimpl.model.block import Place, mlp_part, moe_part
from refimpl.model.dropout import MLP, PROJECTION, dropout, dropout_backward
from refimpl.model.layers import add
from refimpl.model.norms import norm, norm_backward_input, norm_backward_weight
from refimpl.parallel import expert, expert_groups, feed_forward, heads, sequence, shards, tensor


def forward(x, parameters, config, comm, layer=0, place=None, sequence_parallel=False):
    """One block.

    x (b, s, h), the same on every rank; sequence-parallel: (b, s_r, h)    layer: its number, for dropout
    parameters    the rank's own, by name: shards.shard
    place         which part of the batch the group has, all s positions; all of it if None. Its heads are filled in.
                  Its `experts` are the groups of a mixture, else all tp ranks have a part of every expert
    ->            y as x, saved
    ValueError for heads or a sequence that cannot be cut, or parameters of another cut, before anything is sent.
    """
    groups = place.experts if place is not None else None
    if config.experts:
        expert_groups.check_place(place, comm, sequence_parallel)
    shards.check_block(parameters, config, comm.rank, comm.size, groups and groups.share)
    inside, outside = places(x, config, comm, place, sequence_parallel)
    arguments = x, parameters, config, comm, layer, inside, outside, sequence_parallel
    y, saved = _forward(*arguments)
    return y, Restart(*arguments, routed(saved)) if config.recompute == "full" else saved


class Restart(NamedTuple):
    """All that full recomputation keeps: the arguments of the forward; and what it had to report."""

    x: object
    parameters: dict
    config: object
    comm: object
    layer: int
    inside: Place
    outside: Place
    sequence_parallel: bool
    routed: object


def places(x, config, comm, place=None, sequence_parallel=False):
    """What the rank has of the batch, inside the brackets (its heads) and outside (its positions): two `Place`s.

    x (b, s or s_r, ...)    ValueError if heads or positions cannot be cut
    """
    mine = heads.query_heads(config, comm.rank, comm.size)
    length = x.shape[1] * (comm.size if sequence_parallel else 1)
    inside = Place(range(x.shape[0]), range(length), mine) if place is None else replace(place, heads=mine)
    if not sequence_parallel:
        return inside, inside
    sequence.check_length(len(inside.positions), comm.size)
    if len(inside.positions) != length:
        raise ValueError(f"place has {len(inside.positions)} positions, but x {x.shape} on {comm.size} ranks has "
                         f"{length}; give the positions of all ranks together")
    return inside, replace(inside, positions=inside.positions[sequence.own(length, comm.rank, comm.size)])


def _forward(x, parameters, config, comm, layer, inside, outside, sequence_parallel):
    linear = sequence if sequence_parallel else tensor
    part, axes = parameters.get, (outside.sequences, outside.positions, range(config.hidden))
    n1, saved1 = norm(x, part("norm1.w"), part("norm1.b"), config.epsilon)
    branch, saved2 = heads.attention_forward(n1, attention_part(parameters), config, comm, layer, inside, linear)
    branch, saved3 = dropout(branch, config.dropout, outside.key(layer, PROJECTION), axes)
    x1 = add(x, branch)
    n2, saved4 = norm(x1, part("norm2.w"), part("norm2.b"), config.epsilon)
    if config.experts:
        branch, saved5 = expert.forward(n2, moe_part(parameters), config, comm, outside.experts, outside.positions,
                                        sequence_parallel)
    else:
        branch, saved5 = feed_forward.forward(n2, mlp_part(parameters), comm, linear, config.activation)
    branch, saved6 = dropout(branch, config.dropout, outside.key(layer, MLP), axes)
    return add(x1, branch), (saved1, saved2, saved3, saved4, saved5, saved6)


def routed(saved):
    """What became of a mixture's tokens: `moe.Routed`, from what `forward` saved; None for an MLP.

    Addends: sum them over dp_cp and, sequence-parallel, tp.
    """
    if isinstance(saved, Restart):
        return saved.routed
    return getattr(saved[4], "routed", None)


def backward_input(dy, saved, scale=None):
    """The urgent half: dy as y  ->  dx as x, pending        scale: as in model/block.py, the same on every rank"""
    if isinstance(saved, Restart):
        _, saved = _forward(*saved._replace(config=replace(saved.config, recompute="none"))[:-1])
    saved1, saved2, saved3, saved4, saved5, saved6 = saved
    dbranch = dropout_backward(dy, saved6)
    if isinstance(saved5, expert.Saved):
        dn2, pending_mlp = expert.backward_input(dbranch, saved5, scale)
    else:
        dn2, pending_mlp = feed_forward.backward_input(dbranch, saved5)
    dx1, pending_norm2 = norm_backward_input(dn2, saved4)
    dx1 = add(dy, dx1)
    dn1, pending_attention = heads.attention_backward_input(dropout_backward(dx1, saved3), saved2)
    dx, pending_norm1 = norm_backward_input(dn1, saved1)
    return add(dx1, dx), (pending_norm1, pending_attention, pending_norm2, pending_mlp)


def backward_weight(pending):
    """The half that can wait: pending  ->  gradients of the rank's own parameters, by name    sends nothing

    Some are addends: `shards.finish`, once a step.
    """
    pending_norm1, pending_attention, pending_norm2, pending_mlp = pending
    gradients = {}
    gradients["norm1.w"], gradients["norm1.b"] = norm_backward_weight(pending_norm1)
    gradients |= {f"attention.{name}": g for name, g in heads.attention_backward_weight(pending_attention).items()}
    gradients["norm2.w"], gradients["norm2.b"] = norm_backward_weight(pending_norm2)
    kind, half = ("moe", expert) if isinstance(pending_mlp, expert.Pending) else ("mlp", mlp)
    gradients |= {f"{kind}.{name}": g for name, g in half.backward_weight(pending_mlp).items()}
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


def backward(dy, saved, scale=None):
    """Both halves at once: dy as y  ->  dx as x, gradients"""
    dx, pending = backward_input(dy, saved, scale)
    return dx, backward_weight(pending)


def attention_part(parameters):
    """The attention's parameters, by their names in heads.py."""
    return {name.removeprefix("attention."): p for name, p in parameters.items() if name.startswith("attention.")}
