"""What a rank of a virtual network does for one part of a model and one micro-batch, in seconds: see virtual_step.py.

    work        FLOPs as the trainer declares them: 2 for each token and weight forward, as many for the input's
                gradient, as many for the weights'; attention 4 s h forward a token, twice that backward, all pairs
    attention   over other ranks' keys: cost/context.py, only the pairs that a query sees; forward 4, backward 10
    messages    layer_traffic.py
"""

from typing import NamedTuple

from refimpl.cost import context, layer_traffic
from refimpl.cost.footprint import local
from refimpl.cost.seat import Sent

LAYOUTS = {"ring": "contiguous", "zigzag": "zigzag", "striped": "striped", "hybrid": "zigzag"}      # of the rings
CP = ("cp", "cp ring", "cp ulysses")


class Work(NamedTuple):
    """Seconds of forward, of the input's gradient, and of the weights', messages that are waited for included."""

    forward: float
    inputs: float
    weights: float


def work_of(clock, part):
    """`Work` of the embedding, of a layer by its number, or of the head."""
    training, sent = clock.seat.training, Sent()
    b, model = training.micro_batch, training.model
    if part == "embedding":
        layer_traffic.embedding(sent, clock.seat, b)
        return Work(clock.sent(sent, "forward"), 0.0, clock.sent(sent, "backward"))
    if part == "head":
        layer_traffic.head(sent, clock.seat, b)
        table = clock.compute(2 * b * training.positions * local(model.output[-1], training))
        return Work(table + clock.sent(sent, "forward") + clock.sent(sent, "loss"),
                    table + clock.sent(sent, "backward"), table)
    dense = model.is_dense(part)
    layer_traffic.layer(sent, clock.seat, b, dense)
    if not dense:
        layer_traffic.dispatched(sent, clock.seat, 1, [b])
    matrices, core = layer_flops(training, part)
    again = {"none": 0, "selective": core, "full": matrices + core}[training.recompute]
    ring, ring_backward = context_seconds(clock)
    return Work(clock.compute(matrices + core) + clock.sent(sent, "forward", CP) + ring,
                clock.compute(matrices + 2 * core + again) + clock.sent(sent, "backward", CP) + ring_backward,
                clock.compute(matrices))


def layer_flops(training, number):
    """(matrices, core) of one layer and micro-batch on a rank; with context parallelism its operators have the core."""
    model, tokens, size = training.model, training.micro_batch * training.positions, 0
    for tensor in model.tensors(number):
        if tensor.name.startswith("w"):
            share = model.top_k * training.layout.ep / model.experts if tensor.part == "experts" else 1
            size += local(tensor, training) * share
    heads = model.heads // training.layout.tp
    core = 2 * tokens * training.sequence * heads * (model.key + model.value) if training.layout.cp == 1 else 0
    return 2 * tokens * size, core


def context_seconds(clock):
    """(forward, backward) of attention over other ranks' keys, in one layer: work and messages together."""
    training = clock.seat.training
    model, P, U, kind, item = training.model, training.layout.cp, training.head_ranks, training.cp_kind, training.item
    if P == 1:
        return 0.0, 0.0
    b, s, t, d, R = training.micro_batch, training.sequence, training.layout.tp, model.head, P // U
    heads, kv = model.heads // t, max(model.kv_heads // t, 1)
    link = clock.link(clock.seat.group("cp ring" if kind == "hybrid" else "cp"))
    block = context.kv_block(b, s, max(kv // U, 1), d, R) * link.beta
    pair = {way: clock.compute(flops) for way, flops in context.attention_flops(b, heads // U, d, 1).items()}

    def around(way, gradients=None):
        """The work of all steps, with the blocks that travel meanwhile, of the rank that is done last."""
        if kind in LAYOUTS:
            work = [[pair[way] * context.step_pairs(s, R, rank, step, LAYOUTS[kind]) for step in range(R)]
                    for rank in range(R)]
            if kind == "ring":                                 # the last rank has most to do: others are ahead of it
                return max(sum(work[-1]), (R - 1) * (link.alpha + block * item + (gradients or 0.0)))
            return max(context.ring_clocks(work, link.alpha, block * item, gradients))
        if kind == "gather":
            return context.gather_seconds(P, pair[way] * context.pairs(s, P, 0), link.alpha, block * item, gradients)
        return pair[way] * (s * (s + 1) // 2)

    forward, backward = around("forward"), around("backward", None if kind == "ulysses" else block * max(item, 4))
    if U > 1:
        group = "cp ulysses" if kind == "hybrid" else "cp"
        nbytes = (U - 1) * sum(context.ulysses_parts(b, s * U // P, heads, kv, d, U, item))
        exchange = clock.exchange(group, 2 * (U - 1), nbytes)
        forward, backward = forward + exchange, backward + exchange
    return forward, backward + (0.0 if training.recompute == "none" else forward)
