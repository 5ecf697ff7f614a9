"""The whole model: every gradient against finite differences, the loss and its masks, training."""

from dataclasses import replace

import numpy as np
import pytest
from backends import device_array
from drawing import draw, draw_integers, relative
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model import transformer as T
from refimpl.model.finite_differences import check_gradients

GPT2 = T.Config("gpt2", 5, 4, 2, 2, ffn=3, context=4, dropout=0.2)
LLAMA = T.Config("llama", 5, 4, 2, 2, kv_heads=1, ffn=3)
CONFIGS = {"gpt2": GPT2, "llama": LLAMA}
by_family = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def parameters(xp, config):
    """None of them 0 or 1, so that none can hide; embeddings large, so that the norms are smooth around them."""
    made = {name: draw(np, *shape, seed=i, scale=1.0 if "embedding" in name else 0.4)
            for i, (name, shape) in enumerate(T.shapes(config).items())}
    return {name: device_array(xp, p + ("norm" in name and name[-1] == "w")) for name, p in made.items()}


def example(xp, config, b=2, s=3, ignored=True):
    tokens, targets = draw_integers(xp, b, s, below=5), to_host(draw_integers(xp, b, s, below=5, seed=1))
    if ignored and targets.size:
        targets[-1, 0] = -1
    return tokens, device_array(xp, targets)


def mean_loss(tokens, targets, p, config, **options):
    total, count, saved = T.loss(tokens, targets, p, config, **options)
    n = max(int(to_host(count)), 1)
    return total / n, T.loss_backward(1 / n, saved)


@by_family
@pytest.mark.parametrize(("b", "s", "layers", "smoothing"), [(2, 3, 2, 0.0), (1, 1, 1, 0.2)])
def test_every_gradient_agrees_with_finite_differences(xp, config, b, s, layers, smoothing):
    config = replace(config, layers=layers)
    p, (tokens, targets) = parameters(xp, config), example(xp, config, b, s, ignored=b > 1)
    place = T.whole(tokens, config, seed=1, step=5)
    options = {"place": place, "smoothing": smoothing}
    _, gradients = mean_loss(tokens, targets, p, config, **options)
    assert {name: g.shape for name, g in gradients.items()} == T.shapes(config)

    def loss(**p):
        total, count, _ = T.loss(tokens, targets, p, config, **options)
        return total / count

    check_gradients(loss, p, gradients, tolerance=1e-7)                # 6e-8 is truncation: it falls with the step^2


@by_family
@pytest.mark.parametrize("how", [{"recompute": "selective"}, {"recompute": "full"},
                                 {"attention": "blockwise", "recompute": "full"}])
def test_recomputation_gives_bitwise_equal_gradients(xp, config, how):
    p, (tokens, targets) = parameters(xp, config), example(xp, config)
    base = replace(config, attention=how.get("attention", "naive"))
    loss, gradients = mean_loss(tokens, targets, p, base)
    loss2, gradients2 = mean_loss(tokens, targets, p, replace(config, **how))
    assert_array_equal(to_host(loss), to_host(loss2))
    for name in gradients:
        assert_array_equal(to_host(gradients[name]), to_host(gradients2[name]))


def test_a_tied_table_gets_both_its_gradients(xp):
    """Of the rows that were looked up, and of all rows through the logits: apart with two tables in place of one."""
    p, (tokens, targets) = parameters(xp, GPT2), example(xp, GPT2)
    _, tied = mean_loss(tokens, targets, p, GPT2)
    x, saved_embed = T.embed(tokens, p, GPT2)
    saved = []
    for layer in range(2):
        x, kept = T.block_forward(x, T.of_block(p, layer), GPT2, layer)
        saved.append(kept)
    logits, saved_head = T.head(x, p | {"embedding.tokens": p["embedding.tokens"].copy()}, GPT2)
    _, count, saved_loss = T.cross_entropy(logits, targets)
    dx, pending = T.head_backward_input(T.cross_entropy_backward(1 / int(to_host(count)), saved_loss), saved_head)
    for kept in reversed(saved):
        dx, _ = T.block_backward(dx, kept)
    rows, table = (g["embedding.tokens"] for g in (T.embed_backward(dx, saved_embed), T.head_backward_weight(pending)))
    assert relative(tied["embedding.tokens"], to_host(rows) + to_host(table)) < 1e-15
    assert np.linalg.norm(to_host(rows)) > 0.01 and np.linalg.norm(to_host(table)) > 0.01


@by_family
def test_logits_do_not_depend_on_later_tokens(xp, config):
    p, (tokens, _) = parameters(xp, config), example(xp, config, s=4)
    logits, _ = T.forward(tokens, p, config)
    start, _ = T.forward(tokens[:, :2], p, config)
    assert relative(start, to_host(logits)[:, :2]) < 1e-14


@by_family
def test_order_matters(xp, config):
    """Without positions the last logits would be the same for the first tokens in any order."""
    p, (tokens, _) = parameters(xp, replace(config, dropout=0.0)), example(xp, config)
    config = replace(config, dropout=0.0)
    other = xp.concatenate([tokens[:, 1:2], tokens[:, :1], tokens[:, 2:]], 1)
    assert (to_host(tokens[:, 0]) != to_host(tokens[:, 1])).any()
    a, b = (to_host(T.forward(t, p, config)[0])[:, -1] for t in (tokens, other))
    assert relative(a, b) > 1e-3


def test_rotary_positions_may_start_anywhere(xp):
    """Llama: only distances matter, so a part of a longer sequence has the logits of one that starts at 0."""
    p, (tokens, _) = parameters(xp, LLAMA), example(xp, LLAMA)
    place = replace(T.whole(tokens, LLAMA), positions=[7, 8, 9])
    assert relative(T.forward(tokens, p, LLAMA, place)[0], T.forward(tokens, p, LLAMA)[0]) < 1e-13


@by_family
def test_the_head_is_the_last_norm_and_the_output_table(xp, config):
    config = replace(config, epsilon=0.1)
    p, x = parameters(xp, config), draw(xp, 2, 3, config.hidden)
    host, p_host = to_host(x), {name: to_host(a) for name, a in p.items()}
    centred = host - host.mean(-1, keepdims=True) if config.family == "gpt2" else host
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 0.1) * p_host["norm.w"] + p_host.get("norm.b", 0)
    table = p_host["embedding.tokens" if config.family == "gpt2" else "head.tokens"]
    assert relative(T.head(x, p, config)[0], normed @ table.T) < 1e-15


@by_family
def test_another_number_may_stand_for_ignored_positions(xp, config):
    p, (tokens, targets) = parameters(xp, config), example(xp, config)
    other = xp.where(targets == -1, 2, xp.where(targets == 2, 3, targets))           # 2 is a class, too
    first, second = (mean_loss(tokens, t, p, config, ignore_index=i)
                     for t, i in ((xp.where(other == 2, -1, other), -1), (other, 2)))
    assert_array_equal(to_host(first[0]), to_host(second[0]))
    for name, gradient in first[1].items():
        assert_array_equal(to_host(gradient), to_host(second[1][name]))


@by_family
def test_a_part_of_the_positions_is_embedded_as_in_the_whole(xp, config):
    """Learned positions and masks go by what the positions are; the gradients of the parts add up."""
    p, (tokens, _) = parameters(xp, config), example(xp, config, s=4)
    dx = draw(xp, 2, 4, config.hidden)
    whole, saved = T.embed(tokens, p, config)
    expected, sums = T.embed_backward(dx, saved), {}
    for part in ([0, 3], [2, 1]):
        x, saved = T.embed(tokens[:, part], p, config, replace(T.whole(tokens, config), positions=part))
        assert_array_equal(to_host(x), to_host(whole)[:, part])
        sums = T.added(sums, T.embed_backward(dx[:, part], saved))
    assert sums.keys() == expected.keys()
    for name, gradient in expected.items():
        assert relative(sums[name], to_host(gradient)) < 1e-15


def test_the_embedding_has_a_mask_of_its_own():
    """None of its layers' sites', for one: dropped alike, an element would have no other way through."""
    config = replace(GPT2, hidden=64)
    p, (tokens, _) = parameters(np, config), example(np, config, s=4)
    (_, _, (embedding, _)), blocks, _ = T.forward(tokens, p, config)[1]
    for saved in blocks:
        for mask, _ in (saved[4], saved[7]):                                     # projection and MLP, as it (b, s, h)
            assert 0.2 < (mask != embedding).mean() < 0.44                       # 2 * 0.2 * 0.8 = 0.32 expected


@by_family
def test_A06_the_gradient_does_not_depend_on_how_the_batch_is_split(xp, config):
    p, (tokens, targets) = parameters(xp, config), example(xp, config, b=4)
    total, count, saved = T.loss(tokens, targets, p, config)
    whole = T.loss_backward(1 / int(to_host(count)), saved)
    sums = {name: 0 for name in p}
    for part in (slice(0, 1), slice(1, 4)):
        place = replace(T.whole(tokens[part], config), sequences=range(part.start, part.stop))
        _, _, saved = T.loss(tokens[part], targets[part], p, config, place)
        sums = {name: sums[name] + g for name, g in T.loss_backward(1 / int(to_host(count)), saved).items()}
    for name in p:
        assert relative(sums[name], whole[name]) < 1e-12 or np.linalg.norm(to_host(whole[name])) < 1e-12


@by_family
def test_ignored_positions_everywhere_give_no_loss_and_no_gradient(xp, config):
    p, (tokens, targets) = parameters(xp, config), example(xp, config)
    loss, gradients = mean_loss(tokens, targets * 0 - 1, p, config, smoothing=0.1)
    assert float(to_host(loss)) == 0
    assert not any(to_host(g).any() for g in gradients.values())


@by_family
@pytest.mark.parametrize(("b", "s"), [(0, 3), (2, 0)])
def test_no_tokens_no_loss(xp, config, b, s):
    p, (tokens, targets) = parameters(xp, config), example(xp, config, b, s)
    loss, gradients = mean_loss(tokens, targets, p, config)
    assert float(to_host(loss)) == 0
    assert {name: g.shape for name, g in gradients.items()} == T.shapes(config)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("layers", [0, 1])
def test_a_model_learns_to_count(family, layers):
    """Gradient descent on 0 1 2 3 ...: what comes next is certain, and the loss falls from log 7 to nearly nothing."""
    c = T.Config(family, 7, 16, layers, 4, context=6)
    p = T.init(c, np.random.default_rng(0))
    before = {name: x.copy() for name, x in p.items()}
    tokens = (np.arange(7)[:, None] + np.arange(6)) % 7
    losses = []
    for _ in range(100):
        loss, gradients = mean_loss(tokens, (tokens + 1) % 7, p, c)
        losses.append(loss)
        for name, g in gradients.items():
            p[name] -= 0.5 * g
    assert abs(losses[0] - np.log(7)) < 0.1 and losses[-1] < 0.1 * losses[0]
    assert all((p[name] != before[name]).any() for name in p)


def test_tokens_and_positions_that_do_not_fit_are_named():
    p = parameters(np, GPT2)
    with pytest.raises(ValueError, match=r"ids contains 5; expected 0\.\.4, nearest 4"):
        T.forward(np.array([[0, 5]]), p, GPT2)
    with pytest.raises(ValueError, match="position 4 is beyond context=4, the positions that this model has learned; a "
                                         "sequence may have at most 4"):
        T.forward(np.zeros((1, 5), int), p, GPT2)
    assert T.forward(np.zeros((1, 9), int), parameters(np, LLAMA), LLAMA)[0].shape == (1, 9, 5)      # no such limit


@by_family
def test_parameters_and_places_of_another_model_are_named(config):
    """A bias that is missing would make a LayerNorm an RMSNorm, and one number for two sequences one mask for both."""
    p, (tokens, _) = parameters(np, config), example(np, config)
    last = list(p)[-1]
    for changed, says in (({name: x for name, x in p.items() if name != last}, f"{last} is missing, but the model has"),
                          (p | {"norm.w": np.ones(3)}, r"norm.w is \(3,\), but the model has \(4,\)"),
                          (p | {"norm.w": np.ones(4, int)}, "norm.w has dtype int64; expected a float")):
        with pytest.raises(ValueError, match=says):
            T.forward(tokens, changed, config)
    for changes, says in (({"sequences": range(1)}, r"place numbers 1 sequences and 3 positions, but tokens are \(2,"),
                          ({"positions": range(4)}, "place numbers 2 sequences and 4 positions"),
                          ({"positions": [0, -1, 1]}, "position -1: expected 0 or more")):
        with pytest.raises(ValueError, match=says):
            T.forward(tokens, p, config, replace(T.whole(tokens, config), **changes))
    with pytest.raises(ValueError, match=r"tokens \(3,\): expected \(b, s\); tokens\[None\] makes a batch of one"):
        T.forward(tokens[0], p, config)
