"""How long a step takes, and why: from a layer's products to MFU, every part by itself.

    a micro-batch on a pipeline rank     F = layers x (products + moved bytes + tp + cp + ep), B likewise, twice as much
    the pipeline                         m (F + B) of the slowest rank + bubble, closed form of cost/pipeline.py
    at the end                           gradients summed over replicas, as far as backward did not hide it; Adam

    MFU = model FLOPs / (time x GPUs x peak)    HFU: with what is computed again (Korthikanti et al. 2022, section 6)

Physics, not fits: what a product, a kernel or a link reaches by itself is known (efficiency.py), how many of each there
are is counted (layer_time.py, layer_traffic.py), and the published runs are what comes out (published.py). What is
assumed beside: sums over tp are waited for, but for the gather that sequence parallelism repeats in backward; of a
context ring only what is longer than the work meanwhile; activations travel between stages cut over tp, and are waited
for; sums over replicas run beside the last micro-batch's backward, if `overlap`.
"""

from dataclasses import dataclass

from refimpl.cost import efficiency, step_traffic
from refimpl.cost import pipeline as schedules
from refimpl.cost.footprint import held_parameters, replicas
from refimpl.cost.layer_time import optimizer_seconds
from refimpl.cost.seat import Seat, Sent
from refimpl.cost.stage_time import hop_seconds, pipeline_ranks

PARTS = ("products", "moved", "again", "tp", "cp", "ep", "pp", "bubble", "dp", "optimizer")


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
    largest = fullest(training)
    found["dp"] = exposed(training, gpu, *replicas_seconds(training, gpu, largest), forward, backward, overlap)
    found["optimizer"] = update_seconds(training, gpu, largest)
    return Step(training, gpu, found, parts, hop)


def fullest(training):
    """The pipeline rank with most parameters: of those at the ends and the first with most layers."""
    layers = [sum(len(chunk) for chunk in held) for held in training.held]
    ranks = {0, len(layers) - 1, layers.index(max(layers))}
    return max(sorted(ranks), key=lambda rank: sum(held_parameters(training, rank).values()))


def update_seconds(training, gpu, rank):
    """Adam on a pipeline rank."""
    sizes, ranks = held_parameters(training, rank), replicas(training)
    shared = sum(size / (ranks[kind] if training.zero else 1) for kind, size in sizes.items())
    return optimizer_seconds(training, gpu, sum(sizes.values()), shared)


# The pipeline


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
    """The step action by action, `pipeline.timeline.Timeline`: each rank with times of its own; both ends of a message
    wait for it."""
    from refimpl.pipeline import build, simulate

    p, v = training.layout.pp, training.chunks
    schedule = build(training.schedule, p, training.microbatches, training.chunks)
    waits = v * hop if p > 1 else 0.0
    forward, both, weight = ([of(part) for part in parts] for of in (
        lambda part: part.seconds[0] + waits, lambda part: part.seconds[1] - part.weights + waits,
        lambda part: part.weights))
    return simulate(schedule, forward, both, weight)


# Replicas


def replicas_seconds(training, gpu, rank):
    """Seconds of (all sums over replicas, all gathers, sums over tp before them) in a step, of one pipeline rank."""
    seat = Seat(training, training.layout.rank(pp=rank))
    sent = Sent()
    step_traffic.data(sent, seat)
    found = {"zero reduce": 0.0, "zero gather": 0.0, "finish": 0.0}
    for (group, phase), nbytes in sent.items():
        found[phase] += efficiency.way(gpu, seat.group(group)).ring(sent.messages[group, phase], nbytes)
    return tuple(found.values())


def exposed(training, gpu, reduce, gather, finish, forward, backward, overlap):
    """Seconds that are waited for of those; forward, backward: of one micro-batch."""
    units = max(sum(len(chunk) for chunk in training.held[fullest(training)]), 1)
    share = efficiency.of(gpu).beside if overlap else None
    return exposed_seconds(training.zero, training.microbatches, units, reduce, gather, finish, forward, backward,
                           share)


def exposed_seconds(zero, m, units, reduce, gather, finish, forward, backward, share):
    """The same of numbers. Meanwhile runs the last micro-batch's backward and the first one's forward, or with ZeRO 2
    and 3 all of them; of `units`, the last to be summed, and the first to be gathered, are never in time.

    share    `Efficiency.beside`; None: nothing runs meanwhile
    """
    if share is None:
        return reduce + gather + finish
    if zero == 3:                                                      # gathers in both, sums in one
        late = (efficiency.waited(gather / 2, m * forward, gather / 2 / units, share)
                + efficiency.waited(gather / 2 + reduce, m * backward, reduce / units / m, share))
    else:
        times = m if zero == 2 else 1
        late = (efficiency.waited(reduce, times * backward, reduce / units / times, share)
                + efficiency.waited(gather, forward, gather / units, share))
    return late + finish
