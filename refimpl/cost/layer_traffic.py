"""What a rank sends for one part of a model and one micro-batch: messages and bytes, by group of ranks.

    part         tp                                            cp                    ep
    embedding    the looked-up rows summed
    layer        two blocks, each in and out: 8 b s h          keys, values: ring    counts, dispatch, combine
                 (t-1)/t, with sp 10                           or heads: Ulysses     and the last two backward
    head         the input's gradient
    loss         3 numbers a position

    recompute    selective: the core's own messages once more, in backward        full: all of a layer's forward

Everything is made of four collectives (`seat.Collective`), whose elements are traffic.py's.
Letters: b sequences of a micro-batch, s positions of a rank, h hidden, t tensor-parallel ranks, E experts.
"""

from refimpl.cost import context, moe

# The parts. Each notes what one micro-batch of b sequences sends in forward and backward.


def embedding(sent, seat, b):
    """Rows looked up in a table that is cut over tp, summed; with sp scattered, and the gradient gathered."""
    training, tp = seat.training, seat.collective("tp")
    s, h, item = training.positions, training.model.hidden, training.item
    if training.sequence_parallel:
        sent.note("tp", "forward", rows(tp.scatter, s, b * h, seat.sums))
        sent.note("tp", "backward", rows(tp.gather, s, b * h, item))
    else:
        sent.note("tp", "forward", tp.reduce(b * s * h, seat.sums))


def head(sent, seat, b):
    """The output table: nothing forward, the input's gradient summed backward; with sp as a block's f, and the loss."""
    training, tp = seat.training, seat.collective("tp")
    s, h, wide = training.positions, training.model.hidden, max(training.item, 4)
    if training.sequence_parallel:
        sent.note("tp", "forward", rows(tp.gather, s, b * h, training.item))
        sent.note("tp", "backward", rows(tp.gather, s, b * h, training.item))
        sent.note("tp", "backward", rows(tp.scatter, s, b * h, seat.sums))
    else:
        sent.note("tp", "backward", tp.reduce(b * s * h, seat.sums))
    for numbers in (1, 2):                             # a maximum; then the sum and the target's
        sent.note("tp", "loss", tp.reduce(numbers * b * s, wide))


def layer(sent, seat, b, dense=True):
    """One layer, forward and backward; dense: with an MLP, else with a mixture of experts."""
    training = seat.training
    again = training.recompute == "full"
    forward = ("forward", "backward") if again else ("forward",)
    for phase in forward:
        core(sent, seat, b, phase)
        if not dense:
            experts(sent, seat, b, phase, backward=False)
    if training.recompute == "selective":
        core(sent, seat, b, "backward")
    core(sent, seat, b, "backward", gradients=True)
    blocks = 2 if dense else 1 + (training.model.shared_experts > 0)
    for phase in forward:
        block(sent, seat, b, phase, blocks)
    block(sent, seat, b, "backward", blocks, gathers=2)
    if not dense:
        experts(sent, seat, b, "backward", backward=True)


def block(sent, seat, b, phase, times, gathers=1):
    """f and g of a column- and a row-parallel matrix: an all-reduce, or sequence-parallel a gather and a scatter.

    gathers    sequence-parallel: 2 in backward, where the input is gathered again for the weight gradient
    """
    training, tp = seat.training, seat.collective("tp")
    s, h = training.positions, training.model.hidden
    if training.sequence_parallel:
        sent.note("tp", phase, rows(tp.gather, s, b * h, training.item), times * gathers)
        sent.note("tp", phase, rows(tp.scatter, s, b * h, seat.sums), times)
    else:
        sent.note("tp", phase, tp.reduce(b * s * h, seat.sums), times)


def rows(collective, n, width, item):
    """A collective of n rows, each of so many elements: rows stay together."""
    return collective(n, width * item)


def core(sent, seat, b, phase, gradients=False):
    """Attention over the keys of other context-parallel ranks: bytes of cost/context.py, of this rank's heads."""
    training = seat.training
    model, t, P, U, item = training.model, training.layout.tp, training.layout.cp, training.head_ranks, training.item
    if P == 1:
        return
    heads, kv = model.heads // t, model.heads // t if model.latent else max(model.kv_heads // t, 1)
    s, d, way = training.sequence, (model.key + model.value) // 2, "backward" if gradients else "forward"
    if training.cp_kind in ("ulysses", "hybrid"):
        group = "cp ulysses" if training.cp_kind == "hybrid" else "cp"
        nbytes = context.ulysses_attention(b, s * U // P, heads, kv, d, U, item)[way]
        sent.note(group, phase, (2 * (U - 1), nbytes))
        kv = max(kv // U, 1)
    if training.cp_kind != "ulysses":
        group = "cp ring" if training.cp_kind == "hybrid" else "cp"
        nbytes = context.ring_attention(b, s, kv, d, P // U, item)[way]
        sent.note(group, phase, ((2 if gradients else 1) * (P // U - 1), nbytes))


def experts(sent, seat, b, phase, backward):
    """A mixture's own messages: features over expert_tp, statistics, and the counts that go before the rows.

    The rows themselves depend on what routers choose: `dispatched`.
    """
    training, model, layout = seat.training, seat.training.model, seat.training.layout
    ep, tp, s, k = seat.collective("ep"), seat.collective("tp"), training.positions, model.top_k
    wide, sp = max(training.item, 4), training.sequence_parallel
    if not backward:
        sent.note("ep", phase, (ep.P - 1, 8 * moe.expert_counts(model.experts, ep.P, ep.rank)))
        if seat.balance:                               # choices, and which positions made them
            for group, n in ((("tp", s),) if sp else ()) + (("cp", training.sequence),):
                for width in (1, b * k):
                    sent.note(group, phase, rows(seat.collective(group).gather, n, width, 8))
    if layout.expert_tp == 1:
        return
    if not sp:
        sent.note("tp", phase, tp.reduce(b * s * model.hidden, seat.sums))
        if backward:
            sent.note("tp", phase, tp.reduce(b * s * k, wide))
        return
    sent.note("tp", phase, rows(tp.gather, s, b * model.hidden, training.item))
    sent.note("tp", phase, rows(tp.scatter, s, b * model.hidden, seat.sums))
    if backward:
        sent.note("tp", phase, rows(tp.scatter, s, b * k, wide))
    else:
        for item in (wide, 8):                         # the choices' weights, and the choices
            sent.note("tp", phase, rows(tp.gather, s, b * k, item))


def dispatched(sent, seat, layers, sizes, routed=None):
    """Rows to the experts' ranks and back, twice forward and twice backward, of all micro-batches and layers.

    routed    (rows that the rank sent to other ranks' experts, rows that it was sent) in all forwards together; None:
              all experts have the same load, and b s k (ep-1)/ep rows go out and as many come in
    """
    training, ep = seat.training, seat.collective("ep")
    model, layout = training.model, training.layout
    if ep.P == 1 or not layers:
        return
    if routed is None:
        shared = layout.tp if layout.expert_tp < layout.tp else 1
        choices = layers * sum(sizes) * training.positions * model.top_k // shared
        routed = (round(choices * (ep.P - 1) / ep.P),) * 2
    width, messages = model.hidden * training.item, 2 * (ep.P - 1) * layers * len(sizes)
    for phase, times in (("forward", 1), ("backward", 2 if training.recompute == "full" else 1)):
        sent.note("ep", phase, (messages, sum(routed) * width), times)
