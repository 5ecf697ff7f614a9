"""Which layout is fastest: all of them for a number of GPUs, each with its best settings, and why others do not fit.

    GPUs = dp x pp x cp x tp        ep deals experts out over some of them, and multiplies nothing
    settings                        micro-batch 1 to 8, chunks 1 to 8, recomputation, ZeRO 0 to 3
    refused                         what cannot be cut so, and what does not fit the memory: by how much, and what of it
    ranked                          by step.py's seconds

Ten thousands of combinations are made of a few hundred parts (plan_parts.py), so that all of them can be tried; what is
ranked is what step.py and footprint.py say of it, which the tests compare.
"""

from dataclasses import dataclass

from refimpl.cost import pipeline
from refimpl.cost.pipe import pipe_of
from refimpl.cost.plan_parts import Parts
from refimpl.cost.training import Training
from refimpl.layout import Layout

MICRO_BATCHES, CHUNKS, RECOMPUTE, ZERO = range(1, 9), range(1, 9), ("none", "selective", "full"), (0, 1, 2, 3)


@dataclass(frozen=True)
class Question:
    """What a plan is for.

    fixed    ((name, value), ...): of tp, pp, cp, dp, ep, expert_tp, micro_batch, chunks, recompute, zero those of which
             one value is tried; of the others all
    order    of the layouts' axes    overlap    as in step.step    others    as in `Training`
    """

    model: object
    gpu: object
    gpus: int
    batch: int
    sequence: int | None = None
    flash: bool = True
    dtype: str = "bfloat16"
    grad_dtype: str | None = None
    order: str = "tp-cp-dp-pp"
    overlap: bool = True
    fixed: tuple = ()

    def options(self, name, every):
        """The values of one setting to try. Experts have ways enough: with them cp is 1, unless it is fixed."""
        if name == "cp" and self.model.experts:
            every = [1]
        return [dict(self.fixed)[name]] if name in dict(self.fixed) else list(every)

    def training(self, layout, b=1, chunks=1, recompute="none", zero=0):
        """One combination; ValueError if it does not fit together."""
        return Training(self.model, layout, self.sequence, b, max(self.batch // (layout.dp * b), 1),
                        "interleaved" if chunks > 1 else "1f1b", chunks, layout.tp > 1, zero=zero, recompute=recompute,
                        flash=self.flash, dtype=self.dtype, grad_dtype=self.grad_dtype)


@dataclass(frozen=True)
class Ranked:
    """A layout that fits, with its best settings."""

    training: Training
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Refused:
    """A layout that does not, and why; zero None: whatever ZeRO's stage is."""

    layout: Layout
    zero: int | None
    reason: str


@dataclass(frozen=True)
class Plan:
    """All layouts: `layouts`, fastest first, and `refused`; tried: how many combinations of settings there were."""

    question: Question
    layouts: list
    refused: list
    tried: int


def plan(question):
    """The `Plan` for a `Question`. ValueError for numbers of GPUs or sequences that are none."""
    if question.gpus < 1 or question.batch < 1:
        raise ValueError(f"gpus={question.gpus}, global batch {question.batch}: expected 1 or more of each; nearest 1")
    search, ranked, refused = Search(question), [], []
    for layout in layouts(question):
        fits, rejected = search.best(layout)
        ranked += fits
        refused += rejected
    ranked.sort(key=lambda found: found.seconds)
    return Plan(question, ranked, refused, search.tried)


def layouts(question):
    """Every factorization of the number of GPUs, and of a mixture every way to deal experts out."""
    n, options = question.gpus, question.options
    for tp in options("tp", divisors(n)):
        for pp in options("pp", divisors(n // tp)):
            for cp in options("cp", divisors(n // (tp * pp))):
                dp = n // (tp * pp * cp)
                if tp * pp * cp * dp == n and dp in options("dp", [dp]):
                    yield from with_experts(question, {"dp": dp, "pp": pp, "cp": cp, "tp": tp})


def with_experts(question, sizes):
    """The layouts of these sizes: one, or of a mixture one for each ep and expert_tp."""
    experts, tp = question.model.experts, sizes["tp"]
    for expert_tp in question.options("expert_tp", dict.fromkeys([tp, 1]) if experts else [tp]):
        line = sizes["dp"] * sizes["cp"] * (tp if expert_tp == 1 else 1)
        for ep in question.options("ep", divisors(experts) if experts else [1]):
            if expert_tp in (1, tp) and line % ep == 0 and (ep > 1 or expert_tp == tp):
                yield Layout(**sizes, ep=ep, expert_tp=expert_tp, order=question.order,
                             node_size=question.gpu.node_size)


def divisors(n):
    """All of them, ascending."""
    return [k for k in range(1, n + 1) if n % k == 0]


class Search:
    """Tries all settings of one layout after the other; tried: how many so far."""

    def __init__(self, question):
        self.question, self.parts, self.tried = question, Parts(question), 0

    def best(self, layout):
        """([Ranked], at most one, [Refused]) of a layout."""
        question = self.question
        try:
            question.training(layout)
            if question.batch % layout.dp:
                raise ValueError(f"global batch {question.batch} does not divide over dp={layout.dp}")
        except ValueError as error:
            return [], [Refused(layout, None, str(error))]
        fastest, leanest = {}, {}                          # by ZeRO's stage: (seconds, settings, bytes), (bytes, ...)
        sizes = [b for b in question.options("micro_batch", MICRO_BATCHES) if question.batch % (layout.dp * b) == 0]
        for b in sizes:
            for chunks in question.options("chunks", CHUNKS if layout.pp > 1 else [1]):
                pipe = self.pipe(layout, b, chunks)
                if pipe is not None:
                    self._settings(layout, b, pipe, fastest, leanest)
        refused = [Refused(layout, zero, self.too_much(layout, zero, *least)) for zero, least in leanest.items()
                   if zero not in fastest]
        if not refused and not fastest:
            refused = [Refused(layout, None, self.no_pipe(layout, sizes))]
        if not fastest:
            return [], refused
        seconds, settings, total = min(fastest.values())
        return [Ranked(question.training(layout, *settings), seconds, total)], refused

    def pipe(self, layout, b, chunks):
        """`Pipe` of these chunks, and the micro-batches that the batch leaves; None where there is no such schedule."""
        m, p = self.question.batch // (layout.dp * b), layout.pp
        if chunks > 1 and (p == 1 or p * chunks > self.question.model.layers or m % pipeline.round_size(p, m)):
            return None
        return pipe_of(self.question.model, p, m, chunks)

    def no_pipe(self, layout, sizes):
        """Why there is no schedule for any micro-batch and chunks. sizes: micro-batches that divide the batch"""
        question, p = self.question, layout.pp
        mine = question.batch // layout.dp
        if not sizes:
            tried = " or ".join(map(str, question.options("micro_batch", MICRO_BATCHES)))
            return f"no micro-batch of {tried} divides the {mine} sequences of a replica"
        chunks, = question.options("chunks", ())           # with one chunk there is always a schedule: they are fixed
        if p == 1:
            return f"chunks={chunks} with pp=1: chunks are stages of a pipeline rank, and there is no pipeline"
        if p * chunks > question.model.layers:
            return f"pp {p} x chunks {chunks} = {p * chunks} stages, and the model has {question.model.layers} layers"
        m = " or ".join(str(mine // b) for b in reversed(sizes))
        return f"chunks={chunks} with pp={p}: no rounds of {p} micro-batches, or a few more, add up to {m}"

    def _settings(self, layout, b, pipe, fastest, leanest):
        """All settings with this micro-batch and these chunks: enter the fastest that fit, the leanest that do not."""
        room, zeros = self.question.gpu.memory, self.question.options("zero", ZERO)
        states = {zero: self.parts.states(layout, b, pipe, zero) for zero in zeros}
        for recompute in self.question.options("recompute", RECOMPUTE):
            moving, timed = self.parts.moving(layout, b, pipe, recompute), None
            for zero, held in states.items():
                self.tried += 1
                total, settings = self.parts.total(held, moving), (b, pipe.chunks, recompute, zero)
                if total > room:
                    if zero not in leanest or total < leanest[zero][0]:
                        leanest[zero] = total, max(fixed for fixed, _ in held), b, recompute
                    continue
                timed = timed or self.parts.micro_batches(layout, b, pipe, recompute)
                seconds = timed[0] + self.parts.end(layout, b, pipe, zero, *timed[1:])
                if zero not in fastest or seconds < fastest[zero][0]:
                    fastest[zero] = seconds, settings, total

    def too_much(self, layout, zero, total, states, b, recompute):
        """Why the leanest combination under one of ZeRO's stages does not fit."""
        gpu, each = self.question.gpu, self.question.training(Layout(), zero=zero).states.bytes
        cut = f" with ZeRO {zero}" if zero else " without ZeRO"
        has = f"{gpu.name} has {gpu.memory / 1e9:.1f} GB"
        if states > gpu.memory:
            return (f"{states / 1e9:.0f} GB of model states{cut} ({each} bytes a parameter, cut by tp {layout.tp} x "
                    f"pp {layout.pp}) before anything else; {has}")
        return (f"{total / 1e9:.0f} GB at least{cut}: states {states / 1e9:.1f}, activations, logits and buffers "
                f"{(total - states) / 1e9:.1f}, with micro-batch {b} and recompute {recompute}; {has}")
