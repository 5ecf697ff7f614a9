"""A run as the formulas see it: which model, cut how, in which order. The choices of `train.setup`, without arrays.

    model    x   layout dp pp cp tp ep   x   batch: m micro-batches of b sequences on each of dp ranks, B = dp m b
                                         x   schedule: p v stages of the layers, stage s has [l s // S, l (s+1) // S)
                                         x   what is kept: recompute, flash, zero, dtypes

What does not fit together is said here, naming what does, before anything is counted.
Letters: B global batch, b micro-batch, m micro-batches, p pipeline ranks, v stages on each, S = p v, l layers.
"""

import difflib
from dataclasses import dataclass
from functools import cached_property, lru_cache

from refimpl.cost import pipeline
from refimpl.cost.listing import divisors, listed
from refimpl.cost.sizes import RECOMPUTE, Model
from refimpl.cost.states import States
from refimpl.layout import Layout
from refimpl.pipeline.schedule import layers_of
from refimpl.pipeline.schedules import FAMILIES

CP_KINDS = ("ring", "zigzag", "striped", "gather", "ulysses", "hybrid")    # the first three are rings: see train.setup
held_by = lru_cache(maxsize=1024)(layers_of)           # a plan has thousands of trainings, and few ways to cut layers


@dataclass(frozen=True)
class Training:
    """All that decides what a run holds, sends and waits for. Frozen. ValueError for what does not fit together."""

    model: Model
    layout: Layout = Layout()
    sequence: int | None = None            # positions; the model's own unless given
    micro_batch: int = 1                   # sequences of a rank at once
    microbatches: int = 1                  # of them in a step, m
    schedule: str = "1f1b"
    chunks: int | None = None              # stages on each pipeline rank, v; the schedule's own number unless given
    sequence_parallel: bool = False
    cp_kind: str = "zigzag"
    ulysses: int | None = None             # ranks of cp that exchange heads, where the kind is hybrid
    zero: int = 0
    recompute: str = "none"
    flash: bool = False                    # attention keeps a number a row, no probabilities
    dtype: str = "bfloat16"                # of weights and activations
    grad_dtype: str | None = None          # of gradients as they are added up; "both": of each a copy; None: as dtype

    def __post_init__(self):
        set_ = lambda name, value: object.__setattr__(self, name, value)
        for name, known in (("schedule", FAMILIES), ("cp_kind", CP_KINDS), ("recompute", RECOMPUTE)):
            value = getattr(self, name)
            if value not in known:
                near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.0)[0]
                raise ValueError(f"{name}={value!r}: expected one of {', '.join(known)}; nearest {near!r}")
        set_("sequence", self.model.sequence if self.sequence is None else self.sequence)
        for name in ("sequence", "micro_batch", "microbatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected 1 or more; nearest 1")
        States(self.dtype, self.grad_dtype, self.zero)                         # says if dtypes and zero will do
        family = FAMILIES[self.schedule]
        set_("chunks", family.chunks if self.chunks is None else self.chunks)
        if self.chunks < 1 or self.chunks != family.chunks and not family.any_chunks:
            raise ValueError(f"chunks={self.chunks}: {self.schedule} has {family.chunks} on every rank; interleaved, "
                             "looped_bfs and interleaved_zb take 1 or more")
        if family.limits is not None:
            family.limits(self.layout.pp, self.microbatches, self.chunks)
        self._check_cuts()
        self.layers_of(0)                                                      # says if there are enough layers

    def _check_cuts(self):
        model, layout, t, c = self.model, self.layout, self.layout.tp, self.layout.cp
        if model.heads % t:
            raise ValueError(f"tp={t} does not divide heads={model.heads}; tp may be {divisors(model.heads)}")
        if not model.latent and model.kv_heads % t and t % model.kv_heads:
            works = [k for k in range(1, model.heads + 1)
                     if model.heads % k == 0 and (model.kv_heads % k == 0 or k % model.kv_heads == 0)]
            raise ValueError(f"kv_heads={model.kv_heads} are neither cut nor shared evenly by tp={t}; tp may be "
                             f"{listed(works)}")
        parts = 2 if c > 1 and self.cp_kind in ("zigzag", "gather", "hybrid") else 1           # a rank has two of them
        if self.sequence % (parts * c):
            twice = "2 x " if parts == 2 else ""
            raise ValueError(f"sequence={self.sequence} is not divisible by {twice}cp={c}; cp may be "
                             f"{divisors(self.sequence // parts)}")
        if self.sequence_parallel and self.sequence // c % t:
            raise ValueError(f"sequence={self.sequence} over cp={c} is not divisible by tp={t}; tp may be "
                             f"{divisors(self.sequence // c)}")
        if (self.cp_kind == "hybrid") != (self.ulysses is not None) or self.ulysses is not None and (
                self.ulysses < 1 or c % self.ulysses):
            raise ValueError(f"ulysses={self.ulysses} with cp_kind={self.cp_kind!r}, cp={c}: hybrid needs it, and it "
                             f"alone; it may be {divisors(c)}")
        if model.heads // t % self.head_ranks:
            raise ValueError(f"cp={self.head_ranks} ranks cannot share the {model.heads // t} heads of a tp rank; they "
                             f"may be {divisors(model.heads // t)}")
        if layout.ep > 1 and not model.experts:
            raise ValueError(f"ep={layout.ep}: {model.name} has no experts; ep may be 1")
        if model.experts % layout.ep:
            raise ValueError(f"ep={layout.ep} does not divide experts={model.experts}; ep may be "
                             f"{divisors(model.experts)}")
        if model.positions and self.sequence > model.positions:
            raise ValueError(f"sequence={self.sequence} is longer than the {model.positions} positions that "
                             f"{model.name} learns; nearest {model.positions}")

    @cached_property
    def states(self):
        """Bytes of a parameter, and what ZeRO cuts: `States`."""
        return States(self.dtype, self.grad_dtype, self.zero)

    @property
    def item(self):
        """Bytes of a weight or an activation."""
        return self.states.item

    # The batch

    @property
    def global_batch(self):
        """Sequences of a step."""
        return self.layout.dp * self.micro_batch * self.microbatches

    @property
    def positions(self):
        """Positions of a sequence that a context-parallel rank has."""
        return self.sequence // self.layout.cp

    @property
    def head_ranks(self):
        """Context-parallel ranks among which each has whole sequences of some heads; 1 in a ring."""
        return {"ulysses": self.layout.cp, "hybrid": self.ulysses}.get(self.cp_kind, 1)

    # The pipeline

    @property
    def stages(self):
        """S = p v."""
        return self.layout.pp * self.chunks

    @cached_property
    def held(self):
        """Per pipeline rank: a range of layers for each of its chunks."""
        return held_by(self.model.layers, self.layout.pp, self.chunks, FAMILIES[self.schedule].placement)

    def layers_of(self, rank):
        """The layers of pipeline rank `rank`, in order."""
        return [layer for chunk in self.held[rank] for layer in chunk]

    def first(self, rank):
        """Whether this pipeline rank has the embedding."""
        return rank == 0

    def last(self, rank):
        """Whether this pipeline rank has the head: the last one, in a V the first."""
        return rank == (0 if self.schedule in pipeline.V else self.layout.pp - 1)

    def in_flight(self, rank):
        """Micro-batches whose activations a rank keeps at once, a chunk counted as 1/v."""
        return pipeline.in_flight(self.schedule, self.layout.pp, self.microbatches, self.chunks, rank)

    def in_flight_embedding(self):
        """The same of the embedding, in the first stage: where a rank has several, that is the fullest one. For
        interleaved_zb with rounds of other than p micro-batches at most so many."""
        p, m, v = self.layout.pp, self.microbatches, self.chunks
        R = pipeline.round_size(p, m) if v > 1 else 0                          # two rounds of the first chunk
        most = {"gpipe": m, "looped_bfs": m, "1f1b": p, "zb_h1": p, "zb_h2": 2 * p - 1, "zbv": 2 * p,
                "dualpipev": 2 * p, "interleaved": 2 * R or 2 * p - 1, "interleaved_zb": 2 * R or p}[self.schedule]
        return min(m, most)

    def in_flight_head(self):
        """The same of the head: one, where its backward follows at once; all that wait for a weight gradient, else."""
        p, m = self.layout.pp, self.microbatches
        most = {"gpipe": m, "looped_bfs": m, "zb_h1": p, "interleaved_zb": p, "zb_h2": 2 * p - 1}
        return min(m, most.get(self.schedule, 1))
