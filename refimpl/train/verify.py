"""Every way to cut a run, and whether it is the run of one device: each layout, ZeRO stage, schedule, kind of context
parallelism and model that goes on so many ranks together.

    full      all combinations that fit together, in K parts if it takes too long in one go
    sample    few of them, so that every value of every axis, and every pair of values of two axes, is in one: what
              breaks most often is two features that do not know of each other ("pairwise testing": Cohen et al. 1997)

Each trains a tiny model for two steps, with a batch, layers and targets that do not divide evenly, and is compared with
one device: loss, every gradient of the first step, every weight after the second.
"""

import itertools
import random
from dataclasses import dataclass, replace
from functools import lru_cache

from refimpl.layout import Layout
from refimpl.model import text
from refimpl.model.adam import Adam
from refimpl.model.config import Config
from refimpl.pipeline import FAMILIES
from refimpl.precision import Precision
from refimpl.train.run import Plan, Truth, differences, on_rank
from refimpl.train.setup import CP_KINDS, Setup
from refimpl.train.single import Recipe
from refimpl.world import run

AXES = ("dp", "pp", "cp", "tp", "ep", "expert_tp", "order", "zero", "schedule", "sp", "cp_kind", "recompute", "model")
ORDERS = ("tp-cp-dp-pp", "dp-pp-cp-tp")
RECOMPUTE = ("none", "selective", "full")
MODELS = {
    "gpt2": Config("gpt2", text.VOCABULARY, hidden=16, layers=3, heads=8, ffn=10, context=16, dropout=0.1),
    "llama": Config("llama", text.VOCABULARY, hidden=16, layers=3, heads=8, kv_heads=4, ffn=10),
    "moe": Config("llama", text.VOCABULARY, hidden=16, layers=3, heads=8, ffn=10, experts=8, top_k=2, expert_ffn=6,
                  balance=0.01, bias_rate=0.01, capacity_factor=1.25),
}
RECIPE = Recipe(Adam(decay=0.01), Precision("float64"), clip=1.0)
SEQUENCE, STEPS, IGNORED = 16, 2, 0.2


@dataclass(frozen=True)
class Case:
    """One way to cut a run: a value of each of AXES."""

    values: tuple

    def __getattr__(self, name):
        if name in AXES:
            return self.values[AXES.index(name)]
        raise AttributeError(name)

    def setup(self):
        """The `Setup`. ValueError where the values do not fit together."""
        family = FAMILIES[self.schedule]
        chunks = 2 if family.any_chunks else family.chunks
        config = replace(MODELS[self.model], layers=max(3, self.pp * chunks + 1), recompute=self.recompute)
        layout = Layout(self.dp, self.pp, self.cp, self.tp, self.ep, self.expert_tp, self.order)
        return Setup(config, layout, SEQUENCE, global_batch=2 * self.dp * self.pp + 1, schedule=self.schedule,
                     chunks=chunks, sequence_parallel=self.sp, cp_kind=self.cp_kind,
                     ulysses=2 if self.cp_kind == "hybrid" else None, zero=self.zero, recipe=RECIPE, ignored=IGNORED)

    def __str__(self):
        most = {"dp": 1, "pp": 1, "cp": 1, "tp": 1, "ep": 1, "order": ORDERS[0], "sp": False, "recompute": "none"}
        shown = [(name, value) for name, value in zip(AXES, self.values) if most.get(name, "") != value]
        hidden = {"schedule"} if self.pp == 1 else set()
        hidden |= {"cp_kind"} if self.cp == 1 else set()
        hidden |= {"expert_tp"} if self.model != "moe" or self.tp == 1 else set()
        return " ".join(f"{name}={value}" for name, value in shown if name not in hidden)


def cases(ranks):
    """All ways to cut a run of so many ranks, in a fixed order. -> [Case]

    Layouts, ZeRO stages, schedules, sequence parallelism, kinds of context parallelism and models in all combinations;
    the order of the axes and recomputation take turns. (Not tried, since refused: expert_tp 1 without SP.)
    """
    found, turns = [], itertools.cycle(itertools.product(RECOMPUTE, ORDERS))
    for dp, pp, cp, tp in itertools.product(range(1, ranks + 1), repeat=4):
        if dp * pp * cp * tp == ranks:
            schedules = list(FAMILIES) if pp > 1 else ["1f1b"]
            kinds = list(CP_KINDS) if cp > 1 else ["zigzag"]
            for model, (ep, expert_tp) in _experts(dp, cp, tp):
                sps = (False, True)[:min(tp, 2)]
                for zero, schedule, sp, kind in itertools.product(range(4), schedules, sps, kinds):
                    if expert_tp == tp or sp:
                        recompute, order = next(turns)
                        found.append(Case((dp, pp, cp, tp, ep, expert_tp, order, zero, schedule, sp, kind, recompute,
                                           model)))
    random.Random(0).shuffle(found)                          # so that every part has some of everything
    return found


def _experts(dp, cp, tp):
    """(model, (ep, expert_tp)) for these sizes: dense models once, experts in all the ways there are."""
    yield from ((model, (1, tp)) for model in MODELS if model != "moe")
    for expert_tp in sorted({1, tp}):
        line = dp * cp if expert_tp == tp else dp * cp * tp
        yield from (("moe", (ep, expert_tp)) for ep in range(1, line + 1) if line % ep == 0)


def valid(ranks):
    """The cases that fit together, and why others do not: ([Case], {reason: how many})"""
    fit, refused = [], {}
    for case in cases(ranks):
        try:
            case.setup()
        except ValueError as error:
            refused[str(error)] = refused.get(str(error), 0) + 1
        else:
            fit.append(case)
    return fit, refused


def sample(found, seed=0, tries=60):
    """Few of the cases, with every pair of values of two axes that occurs in any. Greedy; the same for equal seeds."""
    numbers = {}                                             # of each pair: a bit in the sets below
    sets = [sum(1 << numbers.setdefault(pair, len(numbers))
                for pair in itertools.combinations(zip(AXES, case.values), 2)) for case in found]
    rng, missing, chosen = random.Random(seed), (1 << len(numbers)) - 1, []
    while missing:
        rarest = missing & -missing
        having = [k for k, mine in enumerate(sets) if mine & rarest]
        best = max(rng.sample(having, min(tries, len(having))), key=lambda k: (missing & sets[k]).bit_count())
        chosen.append(found[best])
        missing &= ~sets[best]
    return chosen


def part(found, which, of):
    """Part `which`, from 1, of `of` parts: every of-th case, so that all take about as long."""
    if not 1 <= which <= of:
        raise ValueError(f"part {which}/{of}: expected 1/{of} to {of}/{of}")
    return found[which - 1::of]


@lru_cache(maxsize=64)
def truth(config, layers, global_batch, data):
    """What one device does: computed once for all cases with this model and batch."""
    setup = Setup(replace(config, layers=layers, recompute="none"), sequence=SEQUENCE, global_batch=global_batch,
                  recipe=RECIPE, ignored=IGNORED)
    return Truth(setup, data, STEPS)


def verify(case, data, like=None):
    """Train one case, and compare: `run.differences`. Raises what the run raises."""
    setup = case.setup()
    histories = run(on_rank, setup.layout.world, setup, data, Plan(STEPS, keep=True, measure=False), None, like)
    return differences(setup, truth(MODELS[case.model], setup.config.layers, setup.global_batch, data), histories)
