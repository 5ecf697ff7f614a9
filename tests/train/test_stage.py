"""The stages of a pipeline: one after the other they are the model; time passes by the FLOPs that they declare."""

import numpy as np
import pytest
from trainer_models import DATA, on_ranks, setup_of

from refimpl import Ledger
from refimpl.model import transformer
from refimpl.testing import norm_of_all, relative_difference
from refimpl.train.stage import parts_of
from refimpl.train.trainer import first_parameters


def test_the_parts_of_all_stages_are_those_of_the_model_in_order():
    setup = setup_of(layers=5, pp=2, schedule="interleaved", chunks=2)
    parts = [part for stage in range(4) for part in parts_of(setup, stage)]
    assert parts == ["embedding", *(f"blocks.{layer}" for layer in range(5)), "head"]


@pytest.mark.parametrize("family", ["gpt2", "llama", "moe"])
def test_stage_after_stage_is_the_model_forward_and_backward(family):
    """All stages of a pipeline rank in turn, without a schedule: zbv has the first and the last on one rank."""
    setup = setup_of(family, pp=1, schedule="zbv", chunks=2, batch=2, micro_batch=2)
    tokens, targets = setup.batch(DATA, 0)
    place = transformer.whole(tokens, setup.config)
    expected, saved = transformer.forward(tokens, first_parameters(setup), setup.config, place)
    dy = np.random.default_rng(0).standard_normal(expected.shape)
    gradients = transformer.backward(dy, saved, 1.0)                   # 1: of the auxiliary losses, as of a fresh Stage

    def program(trainer):
        x, kept, dx = tokens, [], dy
        for number in sorted(trainer.stages):
            x, saved = trainer.stages[number].forward(x, 0)
            kept.append(saved)
        logits = x
        for number, saved in reversed(list(zip(sorted(trainer.stages), kept))):
            dx, pending = trainer.stages[number].backward_input(dx, saved)
            assert trainer.stages[number].backward_weight(pending) == {}         # handed over, nothing left to add up
            assert not trainer.stages[number].kept
        assert dx is None                                                        # below the embedding there is nothing
        for zero in trainer.zeros:
            zero.finish()
        return logits, {name: g.copy() for name, (_, g) in trainer.held("gradients").items()}

    (logits, mine), = on_ranks(setup, program)
    assert relative_difference(logits[..., :expected.shape[-1]], expected) < 1e-13
    norm = norm_of_all(gradients.values())
    assert mine.keys() == gradients.keys()
    for name, g in mine.items():
        assert relative_difference(g.reshape(gradients[name].shape), gradients[name], norm) < 1e-12, name


def test_whoever_watches_sees_every_array_that_is_computed():
    setup = setup_of("llama", layers=2, batch=1)
    seen = []

    def program(trainer):
        for stage in trainer.stages.values():
            stage.watch = lambda part, what, x: seen.append((part, what))
        trainer.gradients()

    on_ranks(setup, program)
    outputs = [part for part, what in seen if what == "output"]
    assert outputs == ["embedding", "blocks.0", "blocks.1", "head"]
    assert [part for part, what in seen if what == "input gradient"] == ["head", "blocks.1", "blocks.0"]
    gradients = [what.removeprefix("gradient of ") for _, what in seen if what.startswith("gradient")]
    assert sorted(gradients) == sorted(first_parameters(setup))


@pytest.mark.parametrize("recompute, factor", [("none", 3), ("full", 4)])
@pytest.mark.parametrize("how", [{}, {"tp": 2}, {"pp": 2}, {"dp": 2}, {"cp": 2, "cp_kind": "ring"}], ids=str)
def test_the_declared_flops_are_those_of_every_product_of_matrices(how, recompute, factor):
    """Forward 2 FLOPs a weight and token, backward twice as many; 4 h s a token and layer for attention."""
    setup = setup_of("llama", recompute=recompute, **how)
    c, tokens = setup.config, setup.tokens
    per_layer = c.hidden * c.hidden * 2 + 2 * c.hidden * c.hidden * c.kv_heads // c.heads + 3 * c.hidden * c.ffn
    layers = 2 * tokens * c.layers * per_layer
    head = 2 * tokens * c.hidden * 256
    core = 4 * tokens * setup.sequence * c.hidden * c.layers
    log = Ledger()
    on_ranks(setup, lambda trainer: trainer.gradients(), ledger=log)
    if "cp" in how:
        core = 0                                                     # declared by its own operators, and tested there
    assert log.flops(kind="matmul") == factor * (layers + core) + 3 * head
