"""The runner: one rank does its list of actions, with real stages, real messages, real gradients.

    for each action of the list:    post the receive of the next one    take what this one starts from    do it
                                    send the result, without waiting for it to arrive

It knows nothing about any schedule: the list says what comes next. A list that `check` finds possible cannot hang here,
not even where a send returns only when it is received, since the only thing waited for is data.

The whole step's loss is scale * (sum of the micro-batches' losses), and `scale` is applied in this one place. For a
mean over N samples let `loss` return sums and give scale = 1/N: then micro-batches may have any sizes, and so may the
calls of an accumulation, which all get the same scale (cases A05, A06, A20).
"""

from dataclasses import dataclass, field

from refimpl.pipeline.action import KINDS, parts
from refimpl.pipeline.check import check
from refimpl.pipeline.mail import Mail
from refimpl.pipeline.tied import add_tied


@dataclass
class Step:
    """What a rank knows after one run of a schedule.

    gradients           {stage: {name: array}} of its stages: the sum over all micro-batches, times scale
    loss                scale * the sum of the losses; 0 on ranks without the last stage
    peak_activations    most that it kept at once, in full-stage units: each from its F to its B, or to its W
    events              [(action, start, end)] by the rank's clock, in order
    complete            the gradients are no longer this rank's own sums: they have been added to others'
    """

    gradients: dict
    loss: object = 0.0
    peak_activations: float = 0.0
    events: list = field(default_factory=list)
    complete: bool = False


def execute(schedule, comm, stages, inputs, loss, *, scale=1.0, after=None, seconds=None, stage_done=None, tied=(),
            numbered=False):
    """Do this rank's list of `schedule`; a `Step`. Every rank of `comm` calls it, with the same schedule.

    comm          the pipeline's communicator: schedule.stages ranks
    stages        {stage: object with forward, backward_input, backward_weight}, at least this rank's own (see stage.py)
    inputs        one array for each micro-batch, of any sizes; only the rank of stage 0 looks at it
    loss          loss(y, k) -> loss of micro-batch k, dloss/dy; called on the rank of the last stage only
    scale         factor of all losses and gradients
    after         the `Step` of an earlier call, to go on from: gradients and loss are added to it (accumulation)
    seconds       seconds(action) -> what to let pass on the virtual clock, such as `Times`; None: the stages' functions
                  declare themselves what they compute, or time does not matter
    stage_done    stage_done(stage, its gradients), called once for each stage, when its last backward is done and its
                  result sent: to start summing over replicas (case A07); it may change the arrays in place
    tied          [(name in the first stage, name in the last one)] of weights that the two share: see tied.py
    numbered      stages' forward takes the micro-batch's number, too: forward(x, k)
    In an accumulation stage_done and tied belong to the last call.

    ValueError, before anything is sent, for a schedule that cannot run or arguments that do not fit it.
    """
    check(schedule)
    refuse_misfits(schedule, comm, stages, inputs, after)
    run = _Run(schedule, comm, stages, inputs, loss, scale, after, numbered)
    row = schedule.ranks[comm.rank]
    run.post(row[0])
    for position, action in enumerate(row):
        if position + 1 < len(row):
            run.post(row[position + 1])
        run.do(action, seconds)
        for stage, kind, _ in parts(action):
            if kind in "BW" and run.to_come[stage] == 0 and stage_done is not None:
                stage_done(stage, run.step.gradients[stage])
    run.mail.close()
    add_tied(schedule, comm, run.step.gradients, tied)
    run.step.complete = stage_done is not None or len(tied) > 0
    return run.step


def refuse_misfits(schedule, comm, stages, inputs, after):
    """ValueError for arguments of `execute` that do not fit the schedule."""
    if comm.size != schedule.stages:
        raise ValueError(f"{comm.name} has {comm.size} ranks, but {schedule!r} needs {schedule.stages}")
    mine = schedule.stages_of(comm.rank)
    if absent := [stage for stage in mine if stage not in stages]:
        raise ValueError(f"stages={{...}} lacks {absent}: in {schedule!r} rank {comm.rank} has the stages {mine}")
    if 0 in mine and len(inputs) != schedule.microbatches:
        raise ValueError(f"{len(inputs)} inputs: {schedule!r} needs one for each micro-batch")
    if after is not None and after.complete:
        raise ValueError("after=: its gradients have been summed with those of other ranks, so what is added now would "
                         "count too little; give stage_done and tied only in the last call of an accumulation")


class _Run:
    """One rank in the middle of one step."""

    def __init__(self, schedule, comm, stages, inputs, loss, scale, after, numbered):
        mine = schedule.stages_of(comm.rank)
        self.schedule, self.comm, self.stages, self.numbered = schedule, comm, stages, numbered
        self.inputs, self.loss, self.scale = inputs, loss, scale
        self.last = len(schedule.placement) - 1
        self.mail = Mail(schedule, comm)
        self.saved, self.pending = {}, {}                     # (stage, k) -> from F to I, from I to W
        self.to_come = dict.fromkeys(mine, schedule.microbatches)         # weight gradients, per stage
        self.step = Step({stage: {} for stage in mine}) if after is None else Step(after.gradients, after.loss)
        self.work = {"F": self.forward, "B": self.backward, "I": self.input_gradient, "W": self.weight_gradient}

    def post(self, action):
        """Start receiving what `action` will start from."""
        for stage, kind, k in parts(action):
            if kind != "W":
                self.mail.post((stage, "F" if kind == "F" else "I", k))

    def do(self, action, seconds):
        """Take what the action starts from, do it, send what comes of it."""
        halves = parts(action)
        given = [self.take(*half) for half in halves]         # both halves of a pair are here before either starts
        start = self.comm.clock
        results = [self.work[kind](stage, k, x) for (stage, kind, k), x in zip(halves, given)]
        if seconds is not None:
            self.comm.elapse(seconds(action), " and ".join(KINDS[half.kind] for half in halves))
        self.step.events.append((action, start, self.comm.clock))
        for (stage, kind, k), result in zip(halves, results):
            if kind == "F" and stage < self.last:
                self.mail.hand_on(result, (stage + 1, "F", k))
            elif kind in "BI" and stage > 0:
                self.mail.hand_on(result, (stage - 1, "I", k))

    def take(self, stage, kind, k):
        """The array that a simple action starts from; None for W."""
        if kind == "W":
            return None
        if kind == "F":
            return self.inputs[k] if stage == 0 else self.mail.take((stage, "F", k))
        return self.mail.take((stage, "I", k))

    # -- the kinds of actions: (stage, micro-batch, what it starts from) -> what it hands on --------------------------
    def forward(self, stage, k, x):
        """x  ->  y. Behind the last stage comes the loss, whose gradient waits here for the backward."""
        y, self.saved[stage, k] = self.stages[stage].forward(*((x, k) if self.numbered else (x,)))
        kept = (len(self.saved) + len(self.pending)) / self.schedule.chunks
        self.step.peak_activations = max(self.step.peak_activations, kept)
        if stage == self.last:
            value, dy = self.loss(y, k)
            self.step.loss = self.step.loss + value * self.scale
            self.mail.here[stage, "I", k] = dy if self.scale == 1 else dy * self.scale
        return y

    def input_gradient(self, stage, k, dy):
        """dy  ->  dx"""
        dx, self.pending[stage, k] = self.stages[stage].backward_input(dy, self.saved.pop((stage, k)))
        return dx

    def weight_gradient(self, stage, k, _):
        """Add the micro-batch's gradients to those of the others; nothing to hand on."""
        total = self.step.gradients[stage]
        for name, gradient in self.stages[stage].backward_weight(self.pending.pop((stage, k))).items():
            if name in total:
                total[name] += gradient
            else:
                total[name] = gradient.copy()                 # it may be the stage's own buffer
        self.to_come[stage] -= 1

    def backward(self, stage, k, dy):
        """dy  ->  dx, which goes on only when both halves are done, as in a framework that knows no halves"""
        dx = self.input_gradient(stage, k, dy)
        self.weight_gradient(stage, k, None)
        return dx
