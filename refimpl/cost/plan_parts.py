"""The parts that a planner's combinations are made of, each asked for once, from footprint.py and step.py.

    memory    states(tp, pp, replicas, zero) + layers in flight x kept(tp, cp, b, recompute) + ends + buffers + reserve
    time      m x slowest rank(tp, cp, b, recompute) + bubble + hops, and the end: sums(replicas, zero), Adam

What does not occur in the brackets does not matter to that part, and so it is the same for many combinations. The sums
are those of footprint.stage and step.step, written once more: that they agree, to the byte and to rounding, is tested.
"""

from dataclasses import replace

from refimpl.cost import efficiency, footprint
from refimpl.cost.layer_time import ends_seconds
from refimpl.cost.pipe import dense_layers
from refimpl.cost.seat import Seat
from refimpl.cost.stage_time import end_part, hop_seconds, one_layer
from refimpl.cost.step import exposed_seconds, replicas_seconds, update_seconds


class Parts:
    """All that was asked for so far, for one `planner.Question`."""

    def __init__(self, question):
        self.question, self.gpu, self.known = question, question.gpu, {}
        self.share = efficiency.of(question.gpu).beside if question.overlap else None
        self.near = question.order.startswith(("tp-cp-dp", "tp-dp-cp"))       # then pp does not part the replicas

    def once(self, key, make):
        """What `make()` gives, called once for each key."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    # Memory

    def states(self, layout, b, pipe, zero):
        """[(bytes of states, bytes gathered for a while)] of the pipeline ranks that may hold most."""
        replicas, found = footprint.replicas_of(layout), []
        for rank in pipe.candidates:
            key = ("states", layout.tp, layout.ep, layout.expert_tp, replicas, layout.pp > 1, rank.kind, zero)
            if key not in self.known:
                training = self.question.training(layout, b, pipe.chunks, zero=zero)
                self.known[key] = (total_bytes(footprint.states(training, rank.number)),
                                   total_bytes(footprint.gathered(training, rank.number)))
            found.append(self.known[key])
        return found

    def moving(self, layout, b, pipe, recompute):
        """Bytes of activations, ends and buffers of the same ranks: [bytes]."""
        alike, found = (layout.tp, layout.cp, layout.ep, layout.expert_tp, b), []
        kept = self.once(("kept", *alike, recompute), lambda: self._kept(layout, b, recompute))
        for rank in pipe.candidates:
            key = ("ends", *alike, layout.pp > 1, rank.first, rank.last, rank.mixtures > 0, pipe.flying)
            if key not in self.known:
                training = self.question.training(layout, b, pipe.chunks)
                self.known[key] = total_bytes([*footprint.ends(training, rank.number),
                                               *footprint.communication(training, rank.number)])
            found.append(sum(times * each for times, each in zip(rank.held, kept)) + kept[-1] + self.known[key])
        return found

    def _kept(self, layout, b, recompute):
        """Bytes that a dense layer keeps, one with experts, the statistics of either; and what is computed again."""
        model = self.question.model
        one = replace(self.question.training(replace(layout, pp=1), b, recompute=recompute), microbatches=1)
        dense, kept, statistics = dense_layers(model), [0, 0], 0
        for line in footprint.activations(one, 0):
            if line.kind == "statistics":
                statistics = line.bytes // model.layers
            else:
                mixture = model.experts and (not dense or line.what.endswith("(with experts)"))
                kept[bool(mixture)] += line.bytes // (model.layers - dense if mixture else dense)
        return *kept, statistics, total_bytes(footprint.working(one, 0))

    def total(self, states, moving):
        """Bytes of the fullest rank, with what a GPU's context and allocator take."""
        return int(footprint.CONTEXT) + max(
            held + gathered + more + round(footprint.FRAGMENTED * (gathered + more))
            for (held, gathered), more in zip(states, moving))

    # Time

    def micro_batches(self, layout, b, pipe, recompute):
        """(seconds of a step but for its end, forward and backward of one micro-batch on the slowest rank)"""
        alone = layout.ep == 1 and self.question.order.startswith("tp-cp")     # else dp and pp move the groups apart
        alike = layout.tp, layout.cp, layout.ep, layout.expert_tp, b, *((0, 0) if alone else (layout.dp, layout.pp))
        layers = self.once(("layer", *alike, recompute), lambda: self._layers(layout, b, recompute))
        ends = self.once(("end", *alike), lambda: self._ends(layout, b))
        forward = backward = slowest = 0.0
        for rank in pipe.candidates:
            times = [rank.dense * layers[0][way] + rank.mixtures * layers[1][way] + rank.first * ends[0][way]
                     + rank.last * ends[1][way] for way in (0, 1)]
            if sum(times) > slowest:
                slowest, forward, backward = sum(times), *times
        seconds = pipe.m * slowest
        if pipe.p > 1:
            hop = self.once(("hop", *alike, layout.dp, pipe.p), lambda: hop_seconds(
                Seat(self.question.training(layout, b)), self.gpu))
            mean = (pipe.dense * sum(layers[0]) + pipe.mixtures * sum(layers[1]) + sum(ends[0]) + sum(ends[1])) / pipe.p
            seconds += 2 * pipe.m * pipe.chunks * hop + pipe.bubble * (mean + 2 * pipe.chunks * hop)
        return seconds, forward, backward

    def _layers(self, layout, b, recompute):
        """[(forward, backward)] of a dense layer, and of one with experts."""
        model, training = self.question.model, self.question.training(layout, b, recompute=recompute)
        return [one_layer(training, self.gpu, kind).seconds if wanted else (0.0, 0.0)
                for kind, wanted in ((True, dense_layers(model)), (False, model.experts))]

    def _ends(self, layout, b):
        """(forward, backward) of the embedding, and of the head."""
        training = self.question.training(layout, b)
        ends = ends_seconds(training, self.gpu)
        return [end_part(training, self.gpu, ends, *which).seconds for which in ((True, False), (False, True))]

    def end(self, layout, b, pipe, zero, forward, backward):
        """Seconds of Adam, and of sums and gathers over replicas as far as they are waited for."""
        rank, m = pipe.largest, pipe.m
        group = (layout.cp * layout.dp, 0, 0) if self.near and layout.ep == 1 else (layout.cp, layout.dp, layout.pp)
        key = ("replicas", layout.tp, layout.ep, layout.expert_tp, *group, layout.pp > 1, rank.kind, zero)
        reduce, gather, finish, update = self.once(key, lambda: self._replicas(layout, b, pipe, zero))
        sums, gathers = m if zero >= 2 else 1, m if zero == 3 else 1
        return update + exposed_seconds(zero, m, rank.dense + rank.mixtures, reduce * sums, gather * gathers,
                                        finish * sums, forward, backward, self.share)

    def _replicas(self, layout, b, pipe, zero):
        """Seconds of one micro-batch's sums and gathers, and of Adam, on the rank with most parameters."""
        training = replace(self.question.training(layout, b, pipe.chunks, zero=zero), microbatches=1)
        rank = pipe.largest.number
        return *replicas_seconds(training, self.gpu, rank), update_seconds(training, self.gpu, rank)


def total_bytes(lines):
    """Of all lines."""
    return sum(line.bytes for line in lines)
