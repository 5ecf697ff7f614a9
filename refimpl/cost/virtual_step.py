"""How long a step takes on the virtual clock: every rank's list of actions, with a network's links and one rate.

    a part of the model     forward: its FLOPs / rate + its rings, each message alpha + bytes beta; backward likewise
    between stages          alpha + bytes beta, and nobody waits who need not
    beside the work         sums of gradients, gathers of parameters: one after the other, each as soon as it can

    rank   | gather 0 | part 0 | part 1 | ...           | weights 1 | weights 0 | ...
    beside | gather 0 | gather 1 | ...                              | sum 1 | sum 0 |     ZeRO 3; 2: sums; 0, 1: at last

`train --network` lets every rank's clock run through the real algorithm. Here are no messages, only their times: one
rank stands for all with the same stages, whose clocks are alike as all micro-batches are. FLOPs are those that the
trainer declares (train/stage.py). A GPU is more than one rate: step.py.
"""

from collections import defaultdict

from refimpl.cost import step_traffic
from refimpl.cost.footprint import halves, parts
from refimpl.cost.kept import outside
from refimpl.cost.seat import Seat, Sent
from refimpl.cost.virtual_clock import Clock
from refimpl.cost.virtual_work import work_of
from refimpl.pipeline import build
from refimpl.pipeline.action import parts as simple

FLYING = 2                                          # sums that may be on their way at once: parallel/reducing.py


def virtual_seconds(training, network, summed=None, loss_scale=False):
    """Seconds of one step: all micro-batches alike, a mixture's routing balanced.

    network    see `Clock`    summed, loss_scale    as in seat.Seat
    """
    ranks = [Walk(Clock(Seat(training, training.layout.rank(pp=rank), summed), network), rank)
             for rank in range(training.layout.pp)]
    first = ranks[0].clock
    begins = first.doubling("dp_cp")
    walk(ranks, build(training.schedule, training.layout.pp, training.microbatches, training.chunks))
    ends = max(rank.finished() for rank in ranks)
    over_all = sum(first.doubling(group) for group in ("tp", "dp_cp", "pp"))
    agreed = over_all * (2 if loss_scale else 1) + first.doubling("dp_cp") + first.doubling("pp")
    return begins + ends + agreed


def walk(ranks, schedule):
    """Let every rank do its list; data goes from rank to rank as in pipeline/timeline.py."""
    training, owner, last = ranks[0].clock.seat.training, schedule.placement, len(schedule.placement) - 1
    here = {(0, "F", k): 0.0 for k in range(schedule.microbatches)}
    todo, waiting, done = list(range(len(ranks))), {}, [0] * len(ranks)
    hop = hop_seconds(ranks[0].clock) if training.layout.pp > 1 else 0.0
    while todo:
        number = todo.pop()
        rank = ranks[number]
        for action in schedule.ranks[number][done[number]:]:
            halves_ = simple(action)
            needs = [(stage, "F" if kind == "F" else "I", k) for stage, kind, k in halves_ if kind != "W"]
            absent = next((need for need in needs if need not in here), None)
            if absent:
                waiting[absent] = number
                break
            rank.now = max([rank.now, *(here.pop(need) for need in needs)])
            for stage, kind, _ in halves_:
                rank.do(stage, kind)
            done[number] += 1
            for stage, kind, k in halves_:
                following = ((stage + 1, "F", k) if stage < last else (stage, "I", k)) if kind == "F" else (
                    (stage - 1, "I", k) if kind in "BI" and stage else None)
                if following:
                    here[following] = rank.now + (hop if owner[following[0]] != number else 0.0)
                    if following in waiting:
                        todo.append(waiting.pop(following))


def hop_seconds(clock):
    """Seconds of an activation between stages."""
    training, (here, there, *_) = clock.seat.training, clock.seat.group("pp")
    link = clock.between(here, there)
    return link.alpha + outside(training) * training.model.hidden * training.item * link.beta


class Walk:
    """One pipeline rank in the middle of a step.

    now       its clock        beside    {group: when what runs beside it is done}
    flying    {group: [when a sum is there]}        coming    {part: when its parameters are}
    """

    def __init__(self, clock, rank):
        self.clock, self.training = clock, clock.seat.training
        self.now, self.beside, self.flying, self.coming = 0.0, defaultdict(float), defaultdict(list), {}
        self.stages = {stage: self._parts(stage, rank) for stage in step_traffic.stages_of(self.training, rank)}
        self.left = dict.fromkeys(self.stages, self.training.microbatches)

    def _parts(self, stage, rank):
        """The parts of a stage, in the order of forward: [(name, Work, units)]."""
        training, whole = self.training, parts(self.training, rank)
        layers = training.held[rank][step_traffic.stages_of(training, rank).index(stage)]
        found = [("embedding", work_of(self.clock, "embedding"), whole[0][1])] if stage == 0 else []
        found += [(number, work_of(self.clock, number), halves(training.model.tensors(number), training))
                  for number in layers]
        if stage == training.stages - 1:
            found.append(("head", work_of(self.clock, "head"), whole[-1][1]))
        found = [Part(self.clock, *part) for part in found]
        if training.model.tied and training.first(rank) and stage == training.stages - 1:
            found[-1].gathers += Part(self.clock, "tokens", None, whole[0][1][:1]).gathers      # the table, used twice
        return found

    def do(self, stage, kind):
        """One action."""
        if kind == "F":
            self._through(self.stages[stage], "forward")
        if kind in "BI":
            self._through(self.stages[stage][::-1], "inputs")
        if kind in "BW":
            self.left[stage] -= 1
            for part in self.stages[stage][::-1]:
                self.now += part.work.weights
                if self.training.zero >= 2 or self.left[stage] == 0:
                    self._sum(part)

    def _through(self, several, way):
        for part, following in zip(several, [*several[1:], None]):
            if self.training.zero == 3:
                self._gather(part)
                self.now = max(self.now, self.coming.pop(part.name))
                if following:
                    self._gather(following)
            self.now += getattr(part.work, way)

    def _gather(self, part):
        if part.name not in self.coming:
            self.coming[part.name] = max([self._beside(group, seconds) for group, seconds in part.gathers], default=0.0)

    def _sum(self, part):
        for group, seconds, finish in part.sums:
            flying = self.flying[group]
            if self.training.zero >= 2 and len(flying) >= FLYING:
                self.now = max(self.now, flying.pop(0))
            self.now += finish
            flying.append(self._beside(group, seconds))

    def _beside(self, group, seconds):
        """Start something beside the rank's own work: it begins when what was started before is done."""
        self.beside[group] = max(self.beside[group], self.now) + seconds
        return self.beside[group]

    def finished(self):
        """When everything is done, the tied table's exchange included."""
        sent = Sent()
        step_traffic.tied(sent, self.clock.seat)
        sums = max([there for several in self.flying.values() for there in several], default=0.0)
        return max(self.now, sums) + self.clock.sent(sent, "pp tied")


class Part:
    """A part of the model on a rank: its `Work`, and what its units need beside it, by group of replicas.

    sums    [(group, seconds of a sum over replicas, seconds over tp before)]    gathers    [(group, seconds)]
    """

    def __init__(self, clock, name, work, units):
        self.name, self.work, self.sums, self.gathers = name, work, [], []
        training = clock.seat.training
        for tensors in units:
            sent = Sent()
            step_traffic.unit(sent, clock.seat, tensors)
            times = training.microbatches if training.zero >= 2 else 1
            finish = clock.sent(sent, "finish") / times
            for group in ("dp_cp", "expert_dp"):
                messages, nbytes = sent.messages[group, "zero reduce"] // times, sent[group, "zero reduce"] / times
                if messages or finish:
                    self.sums.append((group, self._sum(clock, group, messages, nbytes), finish))
                    finish = 0.0
                if training.zero == 3 and (group, "zero gather") in sent:
                    uses, key = 2 * training.microbatches, (group, "zero gather")
                    self.gathers.append((group, clock.ring(group, sent.messages[key] / uses, sent[key] / uses)))

    @staticmethod
    def _sum(clock, group, messages, nbytes):
        """Seconds of one sum over replicas: a ring; of 2-byte numbers all addends are exchanged, and added up once."""
        training = clock.seat.training
        if not messages or step_traffic.reduced(training) > 2:
            return clock.ring(group, messages, nbytes, messages)
        if training.zero:
            return clock.exchange(group, messages, nbytes)
        return (clock.exchange(group, messages, nbytes) + clock.ring(group, messages, nbytes)) / 2
