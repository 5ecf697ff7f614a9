"""How long a micro-batch keeps each pipeline rank busy: its layers and ends, with all that they send and wait for.

    a layer      layer_time's products and kernels + rings over tp, blocks over cp, all-to-alls over ep
    not there    the gather that sequence parallelism repeats in backward runs beside the product with w^T; of a context
                 ring, what the work on the block at hand hides (efficiency.waited)
    a hop        an activation to the next stage, each tp rank its part over its own card, joined there by the fabric
                 (Narayanan et al. 2021, section 4.1)
"""

from dataclasses import dataclass
from functools import lru_cache

from refimpl.cost import efficiency, layer_traffic, step_traffic
from refimpl.cost.layer_time import Alike, ends_seconds, layer_seconds
from refimpl.cost.seat import Seat, Sent


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
    layout = training.layout
    alone = layout.ep == 1 and layout.order.startswith("tp-cp")        # else dp and pp move the groups apart
    return _messages(Alike(training, (
        training.model, layout.tp, layout.cp, layout.ep, layout.expert_tp, layout.order,
        *((0, 0) if alone else (layout.dp, layout.pp)), training.sequence, training.micro_batch,
        training.sequence_parallel, training.cp_kind, training.ulysses, training.recompute, training.dtype,
        training.flash)), gpu, dense)


@lru_cache(4096)
def _messages(alike, gpu, dense):
    training, seat = alike.training, Seat(alike.training)
    sent = Sent()
    layer_traffic.layer(sent, seat, training.micro_batch, dense)
    if not dense:
        layer_traffic.dispatched(sent, seat, 1, [training.micro_batch])
    if training.sequence_parallel:                                 # the repeated gathers are hidden: take them away
        repeated = Sent()
        layer_traffic.block(repeated, seat, training.micro_batch, "backward", -2, gathers=1)
        layer_traffic.block(repeated, seat, training.micro_batch, "backward", 2, gathers=0)
        sent.update(repeated)
        sent.messages.update(repeated.messages)
    found = {"forward": {}, "backward": {}}
    for (group, phase), nbytes in sent.items():
        dimension, over = step_traffic.DIMENSIONS[group], efficiency.way(gpu, seat.group(group))
        exchanges = group in ("ep", "cp ulysses") or training.cp_kind == "ulysses" and group == "cp"
        seconds = (over.exchange if exchanges else over.ring)(sent.messages[group, phase], nbytes)
        if dimension == "cp" and training.cp_kind in ("ring", "zigzag", "striped", "hybrid") and group != "cp ulysses":
            work = layer_seconds(training, gpu, dense).core * (1 if phase == "forward" else 2.5)
            seconds = efficiency.waited(seconds, work, 0.0, efficiency.of(gpu).beside)
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


def hop_seconds(seat, gpu):
    """Seconds of an activation on its way to the next stage: each tp rank sends a part, and those there join them."""
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
