"""How long a step takes, and why: from a layer's products to MFU, every part by itself.

    a micro-batch on a pipeline rank     F = layers x (products + moved bytes + tp + cp + ep), B likewise, twice as much
    the pipeline                         m (F + B) of the slowest rank + bubble, closed form of cost/pipeline.py
    at the end                           gradients summed over replicas, as far as backward did not hide it; Adam

    MFU = model FLOPs / (time x GPUs x peak)        HFU: with what is computed again (Korthikanti et al. 2022, section 6)

Physics, not fits: what a product, a kernel or a link reaches by itself is known (efficiency.py), how many of each there
are is counted (layer_time.py, layer_traffic.py), and the published runs are what comes out (published.py). What is
assumed beside: sums over tp are waited for, but for the gather that sequence parallelism repeats in backward; of a
context ring only what is longer than the work meanwhile; activations travel between stages cut over tp, and are waited
for; sums over replicas run beside the last micro-batch's backward, if `overlap`.
"""

from dataclasses import dataclass
from functools import lru_cache

from refimpl.cost import efficiency, layer_traffic, step_traffic
from refimpl.cost import pipeline as schedules
from refimpl.cost.footprint import held_parameters, replicas
from refimpl.cost.layer_time import Seconds, ends_seconds, layer_seconds, optimizer_seconds
from refimpl.cost.layer_traffic import Seat, Sent

PARTS = ("products", "moved", "again", "tp", "cp", "ep", "pp", "bubble", "dp", "optimizer")


@dataclass(frozen=True)
class Part:
    """Seconds of one layer, or of a pipeline rank's micro-batch: {name: seconds} of forward and backward."""

    forward: dict
    backward: dict
    weights: float = 0.0                   # of backward, what weight gradients take: the part that could wait

    def times(self, n):
        """n of them, one after the other."""
        scaled = lambda named: {name: n * seconds for name, seconds in named.items()}
        return Part(scaled(self.forward), scaled(self.backward), n * self.weights)

    def __add__(self, other):
        joined = lambda a, b: {name: a.get(name, 0.0) + b.get(name, 0.0) for name in a | b}
        return Part(joined(self.forward, other.forward), joined(self.backward, other.backward),
                    self.weights + other.weights)

    @property
    def seconds(self):
        """(forward, backward)"""
        return sum(self.forward.values()), sum(self.backward.values())


@dataclass(frozen=True)
class Step:
    """The prediction.

    breakdown    {part: seconds} of the slowest pipeline rank; they add up to `seconds`
    ranks        `Part` of one micro-batch, of each pipeline rank
    hop          seconds of a message between stages
    """

    training: object
    gpu: object
    breakdown: dict
    ranks: list
    hop: float

    @property
    def seconds(self):
        """Of a whole step."""
        return sum(self.breakdown.values())

    @property
    def mfu(self):
        """Share of the peak that is spent on the model's FLOPs."""
        return self._share("none")

    @property
    def hfu(self):
        """The same with what is computed again."""
        return self._share(self.training.recompute)

    def _share(self, recompute):
        training = self.training
        flops = training.model.flops(training.global_batch, training.sequence, recompute)
        return flops / (self.seconds * training.layout.world * self.gpu.flops(training.dtype))

    @property
    def model_tflops(self):
        """TFLOP/s of each GPU, nothing counted twice."""
        return self.mfu * self.gpu.flops(self.training.dtype) / 1e12


def step(training, gpu, overlap=True):
    """The `Step` of a `Training` on a `hardware.GPU`.

    overlap    sums over replicas, and gathers under ZeRO, run beside backward and forward
    """
    seat = Seat(training)
    parts, hop = pipeline_ranks(training, gpu), hop_seconds(seat, gpu)
    m, p, v = training.microbatches, training.layout.pp, training.chunks
    slowest = max(range(p), key=lambda rank: sum(parts[rank].seconds))
    forward, backward = parts[slowest].seconds
    found = dict.fromkeys(PARTS, 0.0)
    for named in (parts[slowest].forward, parts[slowest].backward):
        for name, seconds in named.items():
            found[name] += m * seconds
    found["pp"] += 2 * m * v * hop if p > 1 else 0.0
    found["bubble"] = bubble(training, parts, hop)
    found["dp"] = replicas_seconds(training, gpu, forward, backward, overlap, slowest)
    sizes, ranks = held_parameters(training, slowest), replicas(training)
    shared = sum(size / (ranks[kind] if training.zero else 1) for kind, size in sizes.items())
    found["optimizer"] = optimizer_seconds(training, gpu, sum(sizes.values()), shared)
    return Step(training, gpu, found, parts, hop)


# A micro-batch


def pipeline_ranks(training, gpu):
    """One micro-batch on each pipeline rank: [Part]."""
    model, kinds, cached = training.model, {}, {}
    ends = ends_seconds(training, gpu)
    found = []
    for rank in range(training.layout.pp):
        layers = sum(len(chunk) for chunk in training.held[rank])
        dense = layers if not model.experts else sum(model.is_dense(layer) for layer in training.layers_of(rank))
        key = dense, layers, training.first(rank), training.last(rank)
        if key not in cached:
            total = Part({}, {})
            for count, is_dense in ((dense, True), (layers - dense, False)):
                if count:
                    if is_dense not in kinds:
                        kinds[is_dense] = one_layer(training, gpu, is_dense)
                    total += kinds[is_dense].times(count)
            cached[key] = total + end_part(training, gpu, ends, *key[2:])
        found.append(cached[key])
    return found


def one_layer(training, gpu, dense):
    """A layer of one micro-batch, with everything that it sends: `Part`."""
    seconds, sent = layer_seconds(training, gpu, dense), layer_messages(training, gpu, dense)
    forward = {"products": seconds.forward_products, "moved": seconds.forward_moved, **sent["forward"]}
    backward = {"products": seconds.backward_products, "moved": seconds.backward_moved, **sent["backward"]}
    again = {"none": 0.0, "selective": seconds.core, "full": seconds.forward}[training.recompute]
    return Part(forward, backward | {"again": again}, seconds.weights)


def layer_messages(training, gpu, dense):
    """Seconds of a layer's messages that are waited for: {"forward": {dimension: seconds}, "backward": ...}."""
    return _messages(_Seen(training), gpu, dense)


class _Seen:
    """A `Training`, equal to others whose layers send the same over the same links."""

    def __init__(self, training):
        self.training, layout = training, training.layout
        self.key = (training.model, layout.tp, layout.cp, layout.ep, layout.expert_tp, layout.order,
                    layout.dp if layout.ep > 1 or layout.order[:5] != "tp-cp" else 0,
                    layout.pp if layout.order[:5] != "tp-cp" else 0, training.sequence, training.micro_batch,
                    training.sequence_parallel, training.cp_kind, training.ulysses, training.recompute, training.dtype,
                    training.flash)
        self.hash = hash(self.key)

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        return self.key == other.key


@lru_cache(4096)
def _messages(seen, gpu, dense):
    training, seat = seen.training, Seat(seen.training)
    sent = Sent()
    layer_traffic.layer(sent, seat, training.micro_batch, dense)
    if not dense:
        layer_traffic.dispatched(sent, seat, 1, [training.micro_batch])
    if training.sequence_parallel:                                 # repeated gathers, hidden behind the product with w^T
        repeated = Sent()
        layer_traffic.block(repeated, seat, training.micro_batch, "backward", -2, gathers=1)
        layer_traffic.block(repeated, seat, training.micro_batch, "backward", 2, gathers=0)
        sent.update(repeated)
        sent.messages.update(repeated.messages)
    found = {"forward": {}, "backward": {}}
    for (group, phase), nbytes in sent.items():
        dimension, over = step_traffic.DIMENSIONS[group], efficiency.way(gpu, seat.group(group))
        collective = over.exchange if group in ("ep", "cp ulysses") or training.cp_kind == "ulysses" and group == "cp" else over.ring
        seconds = collective(sent.messages[group, phase], nbytes)
        if dimension == "cp" and training.cp_kind in ("ring", "zigzag", "striped", "hybrid") and group != "cp ulysses":
            seconds = max(0.0, seconds - layer_seconds(training, gpu, dense).core * (1 if phase == "forward" else 2.5))
        found[phase][dimension] = found[phase].get(dimension, 0.0) + seconds
    return found


def end_part(training, gpu, ends, first, last):
    """The embedding and the head of a pipeline rank, with what they send over tp: `Part`."""
    total, seat, sent = Part({}, {}), Seat(training), Sent()
    if first:
        forward, backward = ends["first"]
        total += Part({"moved": forward}, {"moved": backward})
        layer_traffic.embedding(sent, seat, training.micro_batch)
    if last:
        forward, backward, weights = ends["last"]
        total += Part({"products": forward}, {"products": backward}, weights)
        layer_traffic.head(sent, seat, training.micro_batch)
    if not sent:
        return total
    over = efficiency.way(gpu, seat.group("tp"))
    seconds = sum(over.ring(sent.messages[key], nbytes) for key, nbytes in sent.items())
    return total + Part({"tp": seconds / 2}, {"tp": seconds / 2})


# The pipeline


def hop_seconds(seat, gpu):
    """Seconds of an activation on its way to the next stage: each tp rank sends a part, and the next stage's join them."""
    training, layout = seat.training, seat.training.layout
    if layout.pp == 1:
        return 0.0
    nbytes = training.micro_batch * training.positions * training.model.hidden * training.item
    ranks = seat.group("pp")
    crossing = efficiency.way(gpu, ranks[:2])
    seconds = crossing.hop(nbytes / layout.tp)
    if layout.tp > 1 and not training.sequence_parallel:
        seconds += efficiency.way(gpu, seat.group("tp")).ring(layout.tp - 1, nbytes * (layout.tp - 1) / layout.tp)
    return seconds


def bubble(training, parts, hop):
    """Seconds that the slowest rank does not work: closed form, of stages that take the mean of all; a schedule whose
    formula ends before these times is timed action by action."""
    p, m, v = training.layout.pp, training.microbatches, training.chunks
    if p == 1:
        return 0.0
    forward = sum(part.seconds[0] for part in parts) / p + v * hop
    weight = sum(part.weights for part in parts) / p
    both = sum(part.seconds[1] for part in parts) / p - weight + v * hop
    try:
        return schedules.step_bubble(training.schedule, p, m, v, forward, both, weight)
    except ValueError:
        timed = timeline(training, parts, hop)
        return max(timed.makespan - timed.ideal, 0.0)


def timeline(training, parts, hop):
    """The step action by action, `pipeline.timeline.Timeline`: each rank with times of its own; a message is waited for by
    both its ends."""
    from refimpl.pipeline import build, simulate

    p, v = training.layout.pp, training.chunks
    schedule = build(training.schedule, p, training.microbatches, training.chunks)
    waits = v * hop if p > 1 else 0.0
    forward, both, weight = ([of(part) for part in parts] for of in (
        lambda part: part.seconds[0] + waits, lambda part: part.seconds[1] - part.weights + waits,
        lambda part: part.weights))
    return simulate(schedule, forward, both, weight)


# Replicas


def replicas_seconds(training, gpu, forward, backward, overlap, rank):
    """What is waited for of sums and gathers over replicas; forward, backward: seconds of a micro-batch."""
    seat = Seat(training, training.layout.rank(pp=rank))
    sent, m = Sent(), training.microbatches
    step_traffic.data(sent, seat)
    found = {"zero reduce": 0.0, "zero gather": 0.0, "finish": 0.0}
    for (group, phase), nbytes in sent.items():
        found[phase] += efficiency.way(gpu, seat.group(group)).ring(sent.messages[group, phase], nbytes)
    reduce, gather = found["zero reduce"], found["zero gather"]
    if not overlap:
        return sum(found.values())
    units = max(len(training.layers_of(rank)), 1)
    if training.zero == 3:                                         # of each micro-batch: gathers in both, a sum in one
        hidden = forward * m, backward * m
        return max(gather / 2 - hidden[0], gather / 2 / units / m) + max(
            gather / 2 + reduce - hidden[1], reduce / units / m) + found["finish"]
    backwards = m if training.zero == 2 else 1
    exposed = max(reduce - backwards * backward, reduce / units / backwards) if reduce else 0.0
    return exposed + (max(gather - forward, gather / units) if gather else 0.0) + found["finish"]
