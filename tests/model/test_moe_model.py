"""Experts in a layer and in a whole model: every gradient, the auxiliary losses, recomputation, the bias, training."""

from dataclasses import replace

import numpy as np
import pytest
from drawing import draw, draw_integers
from numpy.testing import assert_allclose, assert_array_equal

from refimpl.arrays import to_host
from refimpl.model import block, moe, router
from refimpl.model import transformer as T
from refimpl.model.config import Config, block_shapes, init, shapes
from refimpl.model.finite_differences import check_gradients

LLAMA = Config("llama", 5, 6, 1, 3, ffn=5, experts=4, top_k=2)
GPT2 = Config("gpt2", 5, 6, 1, 3, ffn=5, context=9, dropout=0.2, experts=3, shared_experts=2, expert_ffn=3)
MODELS = {"gpt2": replace(GPT2, layers=2, balance=0.1, capacity_factor=0.75, top_k=2),
          "llama": replace(LLAMA, layers=2, router="sigmoid", bias_rate=0.1, balance=0.05, shared_experts=1),
          "llama without loss": replace(LLAMA, router="topk-softmax")}
by_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)


def model_example(xp, config, b=2, s=5):
    p = {name: draw(xp, *shape, seed=i, scale=1.0 if "embedding" in name or "router" in name else 0.7)
         for i, (name, shape) in enumerate(shapes(config).items())}
    state = moe.buffers(p, config)
    for i, name in enumerate(state):
        state[name] = draw(xp, config.experts, seed=i, scale=0.1)
    tokens, targets = (draw_integers(xp, b, s, below=5, seed=seed) for seed in (0, 1))
    targets[0, :2] = -1
    return tokens, targets, p, state


@by_model
def test_the_gradients_of_the_whole_model_agree_with_finite_differences(config):
    """The mean loss, auxiliary losses included: one count divides both."""
    tokens, targets, p, state = model_example(np, config, s=4)
    place = block.whole(tokens, config, seed=3)

    def mean(**some):
        total, count, _ = T.loss(tokens, targets, p | state | some, config, place)
        return total / count

    total, count, saved = T.loss(tokens, targets, p | state, config, place)
    gradients = T.loss_backward(1 / count, saved)
    assert gradients.keys() == p.keys()
    some = [name for name in p if "moe" in name or "norm" in name]
    check_gradients(mean, {name: p[name] for name in some}, {name: gradients[name] for name in some})
    assert_allclose(total, T.loss(tokens, targets, p | state, replace(config, balance=0.0), place)[0]
                    + T.balance(saved[0]), rtol=1e-14)


@by_model
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_gives_the_same_bits_and_reports_once(xp, config, recompute):
    tokens, targets, p, state = model_example(xp, config)
    results = []
    for how in ("none", recompute):
        total, count, saved = T.loss(tokens, targets, p | state, replace(config, recompute=how))
        gradients = T.loss_backward(1 / to_host(count), saved)
        reports = {(name, field): value for name, report in T.routed(saved[0]).items()
                   for field, value in zip(report._fields, report, strict=True)}
        assert len(reports) == 3 * config.layers
        results.append(gradients | reports | {"total": total})
    for name, mine in results[0].items():
        assert_array_equal(to_host(mine), to_host(results[1][name]))


def test_a_layer_with_an_auxiliary_loss_asks_for_the_scale():
    config = replace(LLAMA, balance=0.3)
    x, p = draw(np, 2, 3, 6), {name: draw(np, *shape) for name, shape in block_shapes(config).items()}
    for how in ("none", "full"):
        _, saved = block.forward(x, p, replace(config, recompute=how))
        with pytest.raises(ValueError, match="no scale, but balance=0.3 makes an auxiliary loss; expected what the"):
            block.backward_input(x, saved)
        block.backward(x, saved, 1.0)
    _, saved = block.forward(x, p, replace(config, balance=0.0))
    block.backward(x, saved)
    assert to_host(block.routed(saved).load).sum() == 12


def test_buffers_are_the_biases_of_all_routers_and_no_parameters():
    config = MODELS["llama"]
    p = init(config, np.random.default_rng(0), "float32")
    state = moe.buffers(p, config)
    assert {name: (a.shape, a.dtype.name) for name, a in state.items()} == {
        f"blocks.{layer}.moe.bias": ((4,), "float32") for layer in range(2)}
    assert moe.buffers(p, replace(config, bias_rate=0.0)) == {} and not state.keys() & shapes(config).keys()


def test_a_mixture_learns_and_every_parameter_changes():
    config = Config("llama", 7, 16, 1, 4, experts=4, top_k=2, expert_ffn=8, router="sigmoid", balance=0.01,
                    bias_rate=0.01, shared_experts=1, capacity_factor=1.5)
    p = init(config, np.random.default_rng(0))
    state, before, losses = moe.buffers(p, config), {name: a.copy() for name, a in p.items()}, []
    tokens = (np.arange(7)[:, None] + np.arange(6)) % 7
    for _ in range(100):
        total, count, saved = T.loss(tokens, (tokens + 1) % 7, p | state, config)
        losses.append(total / count)
        for name, g in T.loss_backward(1 / count, saved).items():
            p[name] -= 0.5 * g
        for name, report in T.routed(saved[0]).items():
            state[f"{name}.bias"] = router.update_bias(state[f"{name}.bias"], report.load, config.bias_rate)
    assert losses[-1] < 0.15 * losses[0]
    assert all((p[name] != before[name]).any() for name in p) and state["blocks.0.moe.bias"].any()
