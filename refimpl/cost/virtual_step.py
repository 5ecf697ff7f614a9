"""How long a step takes on the virtual clock: the same arithmetic with a network's links and one number of FLOP/s.

    an action of the schedule     its FLOPs / rate + its rings, each message alpha + bytes beta
    between stages                alpha + bytes beta, and nobody waits who need not
    sums over replicas            one after the other beside backward, each as soon as its unit's gradients are complete
    around                        counts, norm and loss that all ranks agree on: lg P messages each

`train --network` lets every rank's clock run through the real algorithm; this is the formula beside it. FLOPs are those
that the trainer declares: matrix products and attention, all pairs, with context parallelism those that a query sees.
A GPU is more than one number of FLOP/s: step.py.
"""

from dataclasses import dataclass
from itertools import pairwise

from refimpl.cost import context, layer_traffic, step_traffic
from refimpl.cost.footprint import halves, local, parts
from refimpl.cost.kept import outside
from refimpl.cost.layer_traffic import Seat, Sent
from refimpl.pipeline import build, simulate
from refimpl.pipeline.action import parts as simple

ROUND = {"ring": "contiguous", "zigzag": "zigzag", "striped": "striped", "hybrid": "zigzag"}


@dataclass(frozen=True)
class Clock:
    """A network, such as `refimpl.world.network.Network`: `intra`, `inter` with alpha and beta, `node_size`, `flops`; and
    the rank whose step is timed."""

    seat: Seat
    network: object

    def link(self, ranks):
        """The slowest link of a ring through these ranks."""
        size = self.network.node_size
        crosses = size is not None and any(a // size != b // size for a, b in pairwise([*ranks, ranks[0]]))
        return self.network.inter if crosses else self.network.intra

    def ring(self, group, messages, nbytes):
        """Seconds of so many messages and bytes, one after the other, within one of the rank's groups."""
        link = self.link(self.seat.group(group))
        return messages * link.alpha + nbytes * link.beta

    def sent(self, sent, phase, but=()):
        """Seconds of what a `Sent` has in a phase, over all groups but some."""
        return sum(self.ring(group, sent.messages[group, name], nbytes) for (group, name), nbytes in sent.items()
                   if name == phase and group not in but)

    def compute(self, flops):
        """Seconds of so many floating-point operations."""
        return flops / self.network.flops if self.network.flops else 0.0


def virtual_seconds(training, network, summed=None):
    """Seconds of one step, of the rank that is done last: all micro-batches alike, a mixture's routing balanced.

    network    see `Clock`    summed    as in layer_traffic.Seat
    """
    seats = [Seat(training, training.layout.rank(pp=rank), summed) for rank in range(training.layout.pp)]
    stages = {stage: stage_seconds(Clock(seats[step_traffic.owner(training, stage)], network), stage)
              for stage in range(training.stages)}
    schedule = build(training.schedule, training.layout.pp, training.microbatches, training.chunks)
    each = [[training.chunks * stages[stage][kind] for stage in range(training.stages)] for kind in (0, 1, 2)]
    hop = 0.0 if training.layout.pp == 1 else message_seconds(Clock(seats[0], network))
    timed = simulate(schedule, *each, hop)
    begins = agreed(Clock(seats[0], network), "valid targets")
    ends = [begins + end_of(timed, rank, Clock(seat, network)) for rank, seat in enumerate(seats)]
    return max(ends) + sum(agreed(Clock(seats[0], network), phase) for phase in ("overflow", "gradient norm", "total loss"))


def message_seconds(clock):
    """Seconds of an activation between stages."""
    training = clock.seat.training
    nbytes = outside(training) * training.model.hidden * training.item
    link = clock.link(clock.seat.group("pp"))
    return link.alpha + nbytes * link.beta


def agreed(clock, phase):
    """Seconds of what all ranks agree on in one phase."""
    sent = Sent()
    step_traffic.agreement(sent, clock.seat)
    return clock.sent(sent, phase)


# One action


def stage_seconds(clock, stage):
    """(forward, input gradient, weight gradient) of one micro-batch in a stage: seconds."""
    training, model = clock.seat.training, clock.seat.training.model
    b, sent, ring = training.micro_batch, Sent(), [0.0, 0.0]
    forward = inputs = weights = 0.0
    layers = layers_of_stage(training, stage)
    for number in layers:
        matrices, core = layer_flops(training, number)
        again = {"none": 0, "selective": core, "full": matrices + core}[training.recompute]
        forward += clock.compute(matrices + core)
        inputs += clock.compute(matrices + 2 * core + again)
        weights += clock.compute(matrices)
        layer_traffic.layer(sent, clock.seat, b, model.is_dense(number))
        if not model.is_dense(number):
            layer_traffic.dispatched(sent, clock.seat, 1, [b])
        ring = [total + seconds for total, seconds in zip(ring, context_seconds(clock))]
    if stage == 0:
        layer_traffic.embedding(sent, clock.seat, b)
    if stage == training.stages - 1:
        table = clock.compute(2 * b * training.positions * local(model.output[-1], training, clock.seat.place["tp"]))
        forward, inputs, weights = forward + table, inputs + table, weights + table
        layer_traffic.head(sent, clock.seat, b)
    done = ("cp", "cp ring", "cp ulysses")                            # in `ring`, with what is computed meanwhile
    forward += clock.sent(sent, "forward", done) + ring[0] + clock.sent(sent, "loss")
    return forward, inputs + clock.sent(sent, "backward", done) + ring[1], weights


def layers_of_stage(training, stage):
    """The layers of one stage."""
    rank = step_traffic.owner(training, stage)
    return training.held[rank][step_traffic.stages_of(training, rank).index(stage)]


def layer_flops(training, number):
    """(matrices, core) of one layer and micro-batch on a rank, as the trainer declares them; with cp the core is not here."""
    model, tokens, size = training.model, training.micro_batch * training.positions, 0
    for tensor in model.tensors(number):
        if tensor.name.startswith("w"):
            share = model.top_k * training.layout.ep / model.experts if tensor.part == "experts" else 1
            size += local(tensor, training) * share
    heads = model.heads // training.layout.tp
    core = 2 * tokens * training.sequence * heads * (model.key + model.value) if training.layout.cp == 1 else 0
    return 2 * tokens * size, core


def context_seconds(clock):
    """[forward, backward] of attention over other ranks' keys, in one layer: work and messages together."""
    training = clock.seat.training
    model, P, U, kind = training.model, training.layout.cp, training.head_ranks, training.cp_kind
    if P == 1:
        return [0.0, 0.0]
    t, b, s, d, item = training.layout.tp, training.micro_batch, training.sequence, model.head, training.item
    heads, kv = model.heads // t, max(model.kv_heads // t, 1)
    link = clock.link(clock.seat.group("cp ring" if kind == "hybrid" else "cp"))
    pair = {way: clock.compute(context.attention_flops(b, heads // U, d, 1)[way]) for way in ("forward", "backward")}
    R, kv_ring = P // U, max(kv // U, 1)
    block = context.kv_block(b, s, kv_ring, d, R) * link.beta

    def around(way, gradients=None):
        """A ring, its slowest rank; or all at once."""
        if kind in ROUND:
            work = [[pair[way] * context.step_pairs(s, R, rank, step, ROUND[kind]) for step in range(R)] for rank in range(R)]
            return max(context.ring_clocks(work, link.alpha, block * item, gradients))
        whole = pair[way] * (s * (s + 1) // 2 if kind == "ulysses" else (s + 1) * s // P // 2)
        return context.gather_seconds(P, whole, link.alpha, block * item, gradients) if kind == "gather" else whole

    forward = around("forward")
    backward = around("backward", None if kind == "ulysses" else block * max(item, 4))
    if U > 1:
        near = clock.link(clock.seat.group("cp ulysses" if kind == "hybrid" else "cp"))
        parts = context.ulysses_parts(b, s * U // P, heads, kv, d, U, item)
        exchange = (U - 1) * (2 * near.alpha + sum(parts) * near.beta)
        forward, backward = forward + exchange, backward + exchange
    return [forward, backward + (0.0 if training.recompute == "none" else forward)]


# The end of the step


def end_of(timed, rank, clock):
    """When a rank has done its list and has all sums over replicas."""
    training, schedule = clock.seat.training, timed.schedule
    done, end = 0.0, timed.ends[rank][-1]
    for ready, seconds, waits in reductions(timed, rank, clock):
        end += waits
        done = max(done, ready) + seconds
    end = max(end, done)
    sent = Sent()
    step_traffic.tied(sent, clock.seat)
    return end + clock.sent(sent, "pp tied")


def reductions(timed, rank, clock):
    """Of each unit (when its last gradients are there, seconds of its sum over replicas, seconds of its sum over tp)."""
    training, last = clock.seat.training, {}
    for action, end in zip(timed.schedule.ranks[rank], timed.ends[rank]):
        last |= {part.stage: end for part in simple(action) if part.kind in "BW"}
    found = []
    for stage, end in sorted(last.items(), key=lambda item: item[1]):
        several = stage_units(training, stage, rank)
        for units, after in several:
            for tensors in units:
                sent = Sent()
                step_traffic.unit(sent, clock.seat, tensors)
                found.append((end - after(clock), clock.sent(sent, "zero reduce"), clock.sent(sent, "finish")))
    return found


def stage_units(training, stage, rank):
    """The parts of a stage as backward comes to them: [(units, the seconds of weight gradients that then still follow)]."""
    layers, whole = layers_of_stage(training, stage), parts(training, rank)
    rest = lambda layers: lambda clock: sum(clock.compute(layer_flops(training, number)[0]) for number in layers)
    found = [(whole[-1][1], rest(layers))] if stage == training.stages - 1 else []
    found += [(halves(training.model.tensors(number), training), rest(layers[:place]))
              for place, number in reversed(list(enumerate(layers)))]
    return found + ([(whole[0][1], rest(()))] if stage == 0 else [])
