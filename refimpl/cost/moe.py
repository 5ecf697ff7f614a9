"""A mixture of experts in numbers: what it holds, what a token uses of it, what is sent.

    parameters of a layer    router h E, experts E m h f, shared n m h f         m = 2 matrices of an expert, 3 gated
    active                   router h E, experts k m h f, shared n m h f         what a token meets: FLOPs go by these
    sent by a rank           four all-to-alls, each of the rows that belong elsewhere; with equal loads T k h (ep-1)/ep
    kept by a rank           T h + T k h + R (h + m f) elements                  R rows that its experts have received

ep multiplies nothing: its ranks are some of dp x cp (x tp). Nothing here has seen an array: the tests compare these
numbers with what ledger and meter counted, and allow no difference. Sizes are elements or, where it says so, bytes.
(Lepikhin et al. 2020; Fedus et al. 2022; four all-to-alls: DeepSeek-V3, figure 4.)
Letters: T tokens of the rank, h hidden, E experts, k chosen, f features of an expert, n shared experts.
"""

import math

from refimpl.cost import memory
from refimpl.cost.traffic import (
    all_to_all,
    chunk,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tensor_parallel_block,
)


def layer_parameters(hidden, experts, ffn, top_k, shared=0, gated=True):
    """Parameters of one layer's mixture, by part, and the sums: {"router", "experts", "shared", "total", "active"}."""
    one = (3 if gated else 2) * hidden * ffn
    found = {"router": hidden * experts, "experts": experts * one, "shared": shared * one}
    total = sum(found.values())
    return found | {"total": total, "active": total - (experts - top_k) * one}


def parameters(hidden, layers, heads, vocabulary, experts, ffn, top_k, shared=0, gated=True, **others):
    """Parameters of a whole model with a mixture in every layer, exactly: {"total": ..., "active": ...}.

    ffn, shared    hidden features of one expert; how many are shared    others    as in memory.parameters
    """
    rest = memory.parameters(hidden, layers, heads, vocabulary, gated=gated, **others)
    mixture = layer_parameters(hidden, experts, ffn, top_k, shared, gated)
    return {name: rest["total"] - rest["mlp"] + layers * mixture[name] for name in ("total", "active")}


def capacity(top_k, s, experts, factor, least=0):
    """Tokens of a sequence of s that an expert takes: the share of each, times the factor, rounded up; at most s."""
    return min(max(math.ceil(top_k * s * factor / experts - 1e-9), least), s)


# What is sent


def all_to_alls(counts, rank, h):
    """Elements that `rank` of an ep group sends in each of a layer's four all-to-alls, by phase.

    counts    counts[r][d]: choices of tokens of rank r for experts of rank d, dropped ones left out
    """
    there = h * all_to_all(counts[rank], rank)
    back = h * all_to_all([row[rank] for row in counts], rank)
    return {"dispatch": there, "combine": back, "combine backward": there, "dispatch backward": back}


def balanced_all_to_all(tokens, top_k, h, ep):
    """Elements that each rank with so many tokens sends in one of them, where all experts have the same load."""
    return tokens * top_k * h * (ep - 1) / ep


def expert_counts(experts, ep, rank):
    """Numbers of 8 bytes that `rank` sends beforehand: how many rows each expert elsewhere will get."""
    return experts - chunk(experts, ep, rank)


def sequence_statistics(b, s, top_k, cp=1, cp_rank=0, tp=1, tp_rank=0):
    """Numbers of 8 bytes that a rank sends so that all know a sequence's choices, and which positions made them.

    s positions of the whole sequence, equally many on each of cp x tp ranks (tp: sequence-parallel, else 1). Capacity
    and auxiliary loss need them; where the heaviest stay, b k s of these numbers are sent again as weights.
    """
    return (b * top_k + 1) * (ring_all_gather(s // cp, tp, tp_rank) + ring_all_gather(s, cp, cp_rank))


def expert_tensor_parallel(b, s, h, top_k, t, rank, sequence_parallel=False):
    """What a rank sends so that t ranks can each have a part of every expert's features: elements by phase and array.

    As around an MLP; the weights are part of what goes in, so their gradient is summed, too. Sequence-parallel the
    choices go in as well. s: positions of the tp group's ranks together. Weights are in float32 or wider, choices have
    8 bytes.
    """
    if sequence_parallel:
        gather, scatter = (b * ring(s, t, rank) for ring in (ring_all_gather, ring_reduce_scatter))
        return {"forward": {"x": h * (gather + scatter), "weights": top_k * gather, "choices": top_k * gather},
                "backward": {"x": h * (gather + scatter), "weights": top_k * scatter, "choices": 0}}
    whole = lambda width: ring_all_reduce(b * s * width, t, rank)
    return {"forward": {"x": whole(h), "weights": 0, "choices": 0},
            "backward": {"x": whole(h), "weights": whole(top_k), "choices": 0}}


def shared_experts(b, s, h, t, rank, sequence_parallel=False):
    """Elements that a rank sends for them: {"forward", "backward"}. They are an MLP, one of a layer's two parts."""
    layer = tensor_parallel_block(b, s, h, t, rank, sequence_parallel)
    return {phase: elements // 2 for phase, elements in layer.items()}


def sequence_parallel_gradients(h, layers, experts, t, rank, norm_bias=True, positions=0):
    """Elements that `rank` sends once a step, as in traffic.py: the routers' gradients go with those of the norms."""
    return ring_all_reduce(((2 * layers + 1) * (2 if norm_bias else 1) + positions + layers * experts) * h, t, rank)


# What is kept


def layer_activations(tokens, dispatched, received, h, ffn, top_k, gated=True, item=2):
    """Bytes that a mixture without shared experts keeps on one rank, its decisions and counts apart.

    tokens        of the rank: its router's input           dispatched    tokens, tp ranks' included where they gather
    received      rows that its experts were sent           ffn           features that the rank has of each expert
    """
    return item * (tokens * h + dispatched * top_k * h + received * (h + (3 if gated else 2) * ffn))
