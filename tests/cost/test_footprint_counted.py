"""Predicted equals counted: what ranks hold in real runs, for random models and layouts, to the byte."""

import random
from dataclasses import replace

import pytest

from refimpl import Layout, run
from refimpl.cost.footprint import footprint
from refimpl.cost.models import of_transformer
from refimpl.cost.training import Training
from refimpl.measure.meter import held_bytes
from refimpl.model import text
from refimpl.model.config import Config
from refimpl.pipeline import FAMILIES
from refimpl.precision import Precision
from refimpl.train.setup import Setup
from refimpl.train.trainer import Trainer

DATA = text.load(None)


def draw(seed):
    """A model, and a setup of at most 16 ranks that fits it."""
    pick = random.Random(seed).choice
    while True:
        family, experts = pick(["gpt2", "llama"]), pick([0, 0, 4])
        config = Config(family, pick([256, 259]), 32, pick([4, 6, 8]), 4, kv_heads=pick([2, 4]), ffn=pick([48, 50]),
                        context=64, experts=experts, top_k=2 if experts else 1, expert_ffn=20 if experts else None,
                        shared_experts=pick([0, 1]) if experts else 0, attention=pick(["naive", "blockwise"]),
                        recompute=pick(["none", "selective", "full"]),
                        dropout=pick([0.0, 0.1]) if family == "gpt2" else 0.0)
        axes = {axis: pick(sizes) for axis, sizes in
                {"dp": [1, 2, 3, 4], "tp": [1, 2, 4], "pp": [1, 1, 2, 3], "cp": [1, 1, 2], "ep": [1, 2, 4],
                 "expert_tp": [None, 1]}.items()}
        name = pick(list(FAMILIES)) if axes["pp"] > 1 else "1f1b"
        precision = Precision(*pick([("float32",), ("float64",), ("float16",), ("bfloat16",), ("bfloat16", "float32")]))
        try:
            layout = Layout(**axes)
            setup = Setup(config, layout, sequence=32, global_batch=12, micro_batch=1, schedule=name,
                          sequence_parallel=pick([False, True]), zero=pick([0, 1, 2, 3]))
            setup = replace(setup, recipe=replace(setup.recipe, precision=precision))
            run_ = Training(of_transformer(config), layout, 32, 1, setup.microbatches, name, None,
                            setup.sequence_parallel, zero=setup.zero, recompute=config.recompute,
                            flash=config.attention == "blockwise", dtype=precision.parameters,
                            grad_dtype=precision.grad_dtype)
        except ValueError:
            continue
        if layout.world <= 16 and (experts or layout.ep == 1):
            return setup, run_


def test_draws_differ_in_everything():
    drawn = [draw(seed) for seed in range(30)]
    assert {setup.zero for setup, _ in drawn} == {0, 1, 2, 3}
    assert len({setup.layout for setup, _ in drawn}) > 15 and len({training.dtype for _, training in drawn}) == 4
    assert any(training.model.experts for _, training in drawn)


def fullest(layout):
    """{rank: its pipeline rank} of the first replica's ranks that are the fullest of their tensor-parallel group."""
    places = {rank: layout.coordinates(rank) for rank in range(layout.world)}
    return {rank: place["pp"] for rank, place in places.items()
            if (place["tp"], place["dp"], place["cp"]) == (layout.tp - 1, 0, 0)}


@pytest.mark.parametrize("seed", range(30))
def test_model_states_are_counted_as_predicted(seed):
    setup, training = draw(seed)
    counted = run(lambda comm: held_bytes(**Trainer(comm, setup, DATA).resident), setup.layout.world)
    for rank, place in fullest(setup.layout).items():
        held, kinds = counted[rank], footprint(training).kinds(place)
        assert [held[kind] for kind in ("parameters", "gradients", "optimizer")] == [
            kinds[kind] for kind in ("weights", "gradients", "optimizer")]


def kept(comm, setup):
    """Most bytes that a rank's layers keep in one step whenever a backward begins: {"saved", "statistics"}."""
    trainer, most = Trainer(comm, setup, DATA), {"saved": 0, "statistics": 0}

    def looking(backward_input):
        def look(dy, saved):
            held = held_bytes(**trainer.resident)
            most.update({kind: max(size, held.get(kind, 0)) for kind, size in most.items()})
            return backward_input(dy, saved)

        return look

    if comm.rank in fullest(setup.layout):
        for stage in trainer.stages.values():
            stage.backward_input = looking(stage.backward_input)
    trainer.gradients()
    return most


def at_once(setup, training):
    """Whether weight gradients follow at once, every chunk has as many layers, and there are no experts' decisions."""
    even = training.model.layers % training.stages == 0 or training.chunks == 1
    return setup.schedule in ("1f1b", "gpipe", "interleaved", "looped_bfs") and even and not training.model.experts


SEEDS = [seed for seed in range(200) if at_once(*draw(seed))]
SEEDS = sorted({*[seed for seed in SEEDS if draw(seed)[0].layout.pp > 1][:18], *SEEDS[:12]})


@pytest.mark.parametrize("seed", SEEDS)
def test_activations_are_counted_as_predicted(seed):
    """Before a backward nothing is held yet that only backward needs."""
    setup, training = draw(seed)
    counted = run(kept, setup.layout.world, setup)
    for rank, place in fullest(setup.layout).items():
        kinds = footprint(training).kinds(place)
        assert counted[rank] == {"saved": kinds["activations"] + kinds["ends"], "statistics": kinds["statistics"]}
