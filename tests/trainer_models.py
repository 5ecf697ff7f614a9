"""Small runs of the trainer for its tests: models, batches, layers and targets that do not divide evenly; the truth."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from refimpl import Layout, run
from refimpl.model import text
from refimpl.model.adam import Adam
from refimpl.model.config import Config
from refimpl.precision import LossScale, Precision
from refimpl.train.run import Plan, Truth, differences, on_rank
from refimpl.train.setup import Setup
from refimpl.train.single import Recipe
from refimpl.train.trainer import Trainer

DATA = text.load()[:20_000]
CONFIGS = {                                              # a tied table; dropped tokens; biased routers
    "gpt2": Config("gpt2", text.VOCABULARY, hidden=8, layers=3, heads=4, ffn=6, context=8, dropout=0.1),
    "llama": Config("llama", text.VOCABULARY, hidden=16, layers=3, heads=8, kv_heads=4, ffn=6),
    "moe": Config("llama", text.VOCABULARY, hidden=8, layers=3, heads=4, kv_heads=2, ffn=6, experts=4, top_k=2,
                  expert_ffn=5, balance=0.01, capacity_factor=1.25),
    "biased": Config("llama", text.VOCABULARY, hidden=8, layers=3, heads=4, ffn=6, experts=4, top_k=1, expert_ffn=5,
                     bias_rate=0.01),
}
SCALE = LossScale(value=2.0**10)


def setup_of(family="gpt2", dtype="float64", grad_dtype=None, sequence=8, batch=7, ignored=0.2, layers=None, adam=None,
             scale=None, clip=1.0, recompute="none", attention="naive", **how):
    """A `Setup`. how: sizes of the layout, and options of the setup by name."""
    config = CONFIGS[family]
    config = replace(config, layers=layers or config.layers, recompute=recompute, attention=attention)
    sizes = {axis: how.pop(axis) for axis in ("dp", "pp", "cp", "tp", "ep", "expert_tp", "order") if axis in how}
    if scale is None and dtype == "float16":
        scale = SCALE
    recipe = Recipe(adam or Adam(decay=0.01), Precision(dtype, grad_dtype), clip, scale)
    return Setup(config, Layout(**sizes), sequence, batch, recipe=recipe, ignored=ignored, **how)


@lru_cache(maxsize=128)
def truth(config, sequence, batch, recipe, ignored, steps):
    """What one device does."""
    return Truth(Setup(config, sequence=sequence, global_batch=batch, recipe=recipe, ignored=ignored), DATA, steps)


def truth_of(setup, steps=2):
    """The same for the run of a `Setup`, computed once for all of its layouts."""
    return truth(setup.config, setup.sequence, setup.global_batch, setup.recipe, setup.ignored, steps)


def train(setup, steps=2, like=None, ledger=None, **plan):
    """Every rank's `History`."""
    plan = {"keep": True, "measure": False} | plan
    return run(on_rank, setup.layout.world, setup, DATA, Plan(steps, **plan), None, like, ledger=ledger)


def compared(setup, steps=2, like=None):
    """Train, and compare with one device: `differences`."""
    return differences(setup, truth_of(setup, steps), train(setup, steps, like))


def assert_equals_one_device(setup, steps=2, like=None):
    """A run of this setup is the run of one device; both did change every weight."""
    found = compared(setup, steps, like)
    assert found["passed"], {name: found[name] for name in ("first", "last", "worst", "changed", "skipped_alike")}
    return found


def on_ranks(setup, program, **options):
    """program(trainer) on every rank, with a fresh `Trainer`: the list of what it returns."""
    return run(lambda comm: program(Trainer(comm, setup, DATA)), setup.layout.world, **options)


def bits(arrays):
    """Arrays by name as bytes, to compare bit by bit."""
    return {name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()}
