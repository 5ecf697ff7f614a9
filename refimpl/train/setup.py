"""A training run, in full: the model, how it is cut, and who does what with which part of the batch.

    global batch, B sequences of s positions, the same whatever the layout is

      dp 0   [ 0 1 | 2 3 ]      dp ranks take B/dp sequences each, in m micro-batches       chunk r of n: n*r//P
      dp 1   [ 4 5 | 6   ]      all have the same m, so that they can meet in every one; the last may be smaller
                cp 0 | cp 1     cp ranks take their own positions of each
      pp        layers, in chunks v p                     tp, ep    heads, hidden features, experts: not the batch

Everything is arithmetic on the sizes, the same on every rank; what does not fit is said here, before a rank starts.
"""

import difflib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from refimpl.layout import Layout
from refimpl.model import text
from refimpl.model.config import Config
from refimpl.model.loss import IGNORED
from refimpl.parallel import context, context_layout, heads, sequence, ulysses
from refimpl.parallel.data import share
from refimpl.parallel.expert_groups import check_sizes
from refimpl.pipeline import build, layers_of
from refimpl.train.single import Recipe

CP_KINDS = {                               # how attention reaches other ranks' keys, and who has which positions
    "ring": ("ring", "contiguous"),
    "zigzag": ("ring", "zigzag"),
    "striped": ("ring", "striped"),
    "gather": ("gather", "zigzag"),
    "ulysses": ("ulysses", "contiguous"),
    "hybrid": ("hybrid", "zigzag"),
}


@dataclass(frozen=True)
class Setup:
    """All that decides a run. ValueError for what does not fit together, naming what does."""

    config: Config
    layout: Layout = field(default_factory=Layout)
    sequence: int = 64                     # positions
    global_batch: int = 16                 # sequences a step, over all ranks
    micro_batch: int | None = None         # most sequences of a rank at once; None: what the pipeline needs
    schedule: str = "1f1b"
    chunks: int | None = None              # stages on each pipeline rank
    sequence_parallel: bool = False
    cp_kind: str = "zigzag"
    ulysses: int | None = None             # ranks of cp that exchange heads, where the kind is hybrid
    zero: int = 0
    recipe: Recipe = field(default_factory=Recipe)
    ignored: float = 0.0                   # share of the targets that do not count, as padding would not

    def __post_init__(self):
        for name, least in (("sequence", 1), ("global_batch", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: expected {least} or more; nearest {least}")
        if self.micro_batch is not None and not 1 <= self.micro_batch <= self.global_batch:
            raise ValueError(f"micro_batch={self.micro_batch}: expected 1 to global_batch={self.global_batch} "
                             f"sequences; nearest {min(max(self.micro_batch, 1), self.global_batch)}")
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"zero={self.zero}: expected 0, 1, 2 or 3; nearest {min(max(self.zero, 0), 3)}")
        if self.cp_kind not in CP_KINDS:
            nearest = difflib.get_close_matches(str(self.cp_kind), CP_KINDS, n=1, cutoff=0.0)[0]
            raise ValueError(f"cp_kind={self.cp_kind!r}: expected one of {', '.join(CP_KINDS)}; nearest {nearest!r}")
        if not 0 <= self.ignored < 1:
            raise ValueError(f"ignored={self.ignored}: expected a share of the targets, at least 0 and less than 1")
        if self.config.family == "gpt2" and self.sequence > self.config.context:
            raise ValueError(f"sequence={self.sequence} is longer than context={self.config.context}, the positions "
                             f"that the model learns; nearest {self.config.context}")
        heads.check_heads(self.config, self.layout.tp)
        self._check_experts()
        _ = self.layers                                                    # the schedule and the cut say if they fit
        self._check_context()
        if self.sequence_parallel:
            sequence.check_length(len(self.positions(0)), self.layout.tp)

    def _check_context(self):
        cp, kind = self.layout.cp, CP_KINDS[self.cp_kind][0]
        if (kind == "hybrid") != (self.ulysses is not None):
            raise ValueError(f"ulysses={self.ulysses} with cp_kind={self.cp_kind!r}: give how many ranks exchange "
                             "heads with cp_kind='hybrid', and only there")
        if kind == "hybrid":
            context.check_ulysses(self.ulysses, cp)
        if cp > 1:
            self.positions(0)                                                  # says so if it cannot be cut
        if cp > 1 and kind in ("ulysses", "hybrid"):
            mine = [len(part(self.config, 0, self.layout.tp)) for part in (heads.query_heads, heads.kv_heads)]
            ulysses.check_heads(*mine, cp if kind == "ulysses" else self.ulysses)

    def _check_experts(self):
        layout = self.layout
        if layout.ep > 1 and not self.config.experts:
            raise ValueError(f"ep={layout.ep} with a dense model: there are no experts to deal out; nearest 1, or a "
                             "model with experts")
        if self.config.experts:
            check_sizes(layout.expert_tp, layout.tp, self.sequence_parallel)

    # The batch

    @cached_property
    def microbatches(self):
        """m, the same on every rank; without a size given the pipeline gets 2 a stage, if there are so many."""
        most = -(-self.global_batch // self.layout.dp)
        if self.micro_batch is None:
            return most if most < 2 * self.layout.pp else 2 * self.layout.pp
        return -(-most // self.micro_batch)

    @property
    def tokens(self):
        """Tokens of a step, over all ranks."""
        return self.global_batch * self.sequence

    def sequences(self, dp, k):
        """Which sequences of the global batch micro-batch k of data-parallel rank `dp` has: a range, perhaps empty."""
        return share(self.global_batch, dp, self.layout.dp, self.microbatches)[k]

    def positions(self, cp):
        """Which positions of every sequence context-parallel rank `cp` has: a range, or a list."""
        return context_layout.positions(self.sequence, cp, self.layout.cp, CP_KINDS[self.cp_kind][1])

    def core(self, comm):
        """Attention over the keys of all ranks of `comm`, the cp group; None where it has one rank."""
        if comm.size == 1:
            return None
        kind, layout = CP_KINDS[self.cp_kind]
        return context.core(comm, kind, layout, self.ulysses if kind == "hybrid" else None)

    def batch(self, data, step):
        """The whole global batch: tokens (B, s) and targets (B, s), IGNORED where they do not count; on the host."""
        seed = self.recipe.seed
        windows = text.windows(data, step, self.global_batch, self.sequence, seed).astype(np.int64)
        tokens, targets = windows[:, :-1], windows[:, 1:].copy()
        targets[np.random.default_rng((seed, step, 1)).random(targets.shape) < self.ignored] = IGNORED
        return tokens, targets

    @property
    def data(self):
        """What decides which tokens a step sees: the same for every layout, or it is not the same run."""
        return {"sequence": self.sequence, "global_batch": self.global_batch, "ignored": self.ignored,
                "seed": self.recipe.seed}

    # The model

    @cached_property
    def pipeline(self):
        """The schedule of every pipeline."""
        return build(self.schedule, self.layout.pp, self.microbatches, self.chunks)

    @cached_property
    def layers(self):
        """Which layers each stage has: a list of ranges."""
        S = len(self.pipeline.placement)
        held = layers_of(self.config.layers, self.layout.pp, self.pipeline.chunks, self.pipeline.placement)
        stages = {}
        for rank, ranges in enumerate(held):
            stages |= zip(self.pipeline.stages_of(rank), ranges)
        return [stages[stage] for stage in range(S)]
