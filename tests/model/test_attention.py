"""Attention, plain and blockwise: the same values and gradients, whatever the sizes, positions, masks and logits."""

import itertools

import numpy as np
import pytest
from drawing import draw, relative
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model.attention import NO_DROPOUT, Dropout, attention, attention_backward
from refimpl.model.blockwise import blockwise_attention, blockwise_attention_backward
from refimpl.model.finite_differences import check_gradients

KINDS = {"naive": (attention, attention_backward), "blockwise": (blockwise_attention, blockwise_attention_backward)}

# b, s, t, n, g, d: one of everything; odd; one head; grouped; multi-query; no batch; no queries; no keys
SIZES = [(1, 1, 1, 1, 1, 1), (2, 5, 5, 3, 1, 2), (1, 7, 7, 1, 1, 3), (2, 3, 3, 2, 2, 2), (1, 4, 4, 1, 4, 2),
         (0, 3, 3, 2, 1, 2), (2, 0, 3, 2, 1, 2), (2, 3, 0, 1, 2, 2), (1, 2, 6, 1, 1, 2)]


def example(xp, b, s, t, n, g, d, scale=1.0, dtype="float64"):
    shapes = {"q": (b, s, n, g, d), "k": (b, t, n, d), "v": (b, t, n, d)}
    made = {name: draw(xp, *shape, seed=i, scale=scale, dtype=dtype) for i, (name, shape) in enumerate(shapes.items())}
    return made, draw(xp, b, s, n, g, d, seed=3, dtype=dtype)


def reference(q, k, v, causal):
    """Position by position and head by head, as the definition reads."""
    b, s, n, g, d = q.shape
    out = np.zeros_like(q)
    for i, j, head, member in itertools.product(range(b), range(s), range(n), range(g)):
        last = j + 1 if causal else k.shape[1]
        weights = np.exp(k[i, :last, head] @ q[i, j, head, member] / d**0.5)
        out[i, j, head, member] = weights / weights.sum() @ v[i, :last, head]
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sizes", [size for size in SIZES if size[1] == size[2]])
def test_forward_is_the_definition(xp, kind, causal, sizes):
    inputs, _ = example(xp, *sizes)
    out, _ = KINDS[kind][0](**inputs, causal=causal)
    assert relative(out, reference(*(to_host(x) for x in inputs.values()), causal)) < 1e-15


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_backward_agrees_with_finite_differences(xp, kind, causal, sizes):
    forward, backward = KINDS[kind]
    inputs, dout = example(xp, *sizes)
    gradients = dict(zip(inputs, backward(dout, forward(**inputs, causal=causal)[1]), strict=True))
    check_gradients(lambda **inputs: (forward(**inputs, causal=causal)[0] * dout).sum(), inputs, gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_dropped_probabilities_get_no_gradient(xp, kind):
    forward, backward = KINDS[kind]
    inputs, dout = example(xp, 2, 5, 5, 2, 2, 2)
    drop = Dropout(0.4, (1, 2), range(3, 5), range(4, 8))
    out, saved = forward(**inputs, dropout=drop)
    assert relative(out, forward(**inputs)[0]) > 0.1
    gradients = dict(zip(inputs, backward(dout, saved), strict=True))
    check_gradients(lambda **inputs: (forward(**inputs, dropout=drop)[0] * dout).sum(), inputs, gradients)


@pytest.mark.parametrize("block", [1, 3, 4, 100])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_blockwise_equals_naive(xp, block, causal, rate):
    inputs, dout = example(xp, 2, 11, 11, 2, 3, 4)
    drop = Dropout(rate, (5,), range(2), range(6)) if rate else NO_DROPOUT
    out, saved = attention(**inputs, causal=causal, dropout=drop)
    out2, saved2 = blockwise_attention(**inputs, causal=causal, dropout=drop, block=block)
    assert relative(out2, out) < 1e-13
    for mine, naive in zip(blockwise_attention_backward(dout, saved2), attention_backward(dout, saved), strict=True):
        assert relative(mine, naive) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_causality_goes_by_the_positions_given_in_any_order(xp, kind):
    """A18: what a zigzag rank holds. Each query sees all keys at its position and before, wherever they are."""
    options = {"block": 2} if kind == "blockwise" else {}
    inputs, _ = example(xp, 1, 8, 8, 1, 1, 4)
    whole, _ = attention(**inputs)
    rows = [0, 7, 1, 6]
    q = inputs["q"][:, rows]
    out, _ = KINDS[kind][0](q, inputs["k"], inputs["v"], q_positions=np.array(rows), **options)
    assert relative(out, to_host(whole)[:, rows]) < 1e-15
    order = [3, 1, 7, 0, 6, 2, 5, 4]
    k, v = inputs["k"][:, order], inputs["v"][:, order]
    out, _ = KINDS[kind][0](q, k, v, q_positions=rows, kv_positions=order, **options)
    assert relative(out, to_host(whole)[:, rows]) < 1e-15


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_that_sees_no_key_gets_0_and_gives_no_gradient(xp, kind):
    inputs, dout = example(xp, 1, 3, 2, 1, 1, 4)
    with np.errstate(all="raise"):
        out, saved = KINDS[kind][0](**inputs, q_positions=[4, 5, 6], kv_positions=[5, 9])
        dq, dk, dv = (to_host(g) for g in KINDS[kind][1](dout, saved))
    out = to_host(out)
    assert not out[:, 0].any() and not dq[:, 0].any()
    assert relative(out[:, 1:], np.repeat(to_host(inputs["v"])[:, :1, None, None][..., 0, :, :], 2, axis=1)
                    .reshape(out[:, 1:].shape)) < 1e-15                                # one key: its value
    assert not dk[:, 1].any() and not dv[:, 1].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1000.0, 1e8])
def test_logits_of_any_size_stay_finite(xp, kind, dtype, scale):
    """Scores up to 10^16 in float32: no exponential exceeds 1."""
    inputs, dout = example(xp, 1, 9, 9, 2, 1, 4, scale=scale, dtype=dtype)
    options = {"block": 4} if kind == "blockwise" else {}
    with np.errstate(all="raise", under="ignore"):
        out, saved = KINDS[kind][0](**inputs, **options)
        gradients = KINDS[kind][1](dout, saved)
    for x in (out, *gradients):
        assert np.isfinite(to_host(x)).all()
    rows = to_host(out) / np.abs(to_host(inputs["v"])).max()
    assert np.abs(rows).max() <= 1 + 1e-6                                               # a mean of values


@pytest.mark.parametrize("kind", KINDS)
def test_more_key_heads_with_equal_keys_are_one_shared_head(xp, kind):
    """Grouped queries: n = 1, g = 3 equals n = 3, g = 1 with the key and value repeated; their gradients add up."""
    forward, backward = KINDS[kind]
    inputs, dout = example(xp, 2, 5, 5, 1, 3, 2)
    apart = {"q": inputs["q"].reshape(2, 5, 3, 1, 2)} | {x: xp.concatenate([inputs[x]] * 3, 2) for x in "kv"}
    out, saved = forward(**inputs)
    out3, saved3 = forward(**apart)
    assert relative(out.reshape(2, 5, 3, 1, 2), out3) < 1e-15
    dq, dk, dv = backward(dout, saved)
    dq3, dk3, dv3 = backward(dout.reshape(2, 5, 3, 1, 2), saved3)
    assert relative(dq.reshape(2, 5, 3, 1, 2), dq3) < 1e-14
    assert relative(dk, dk3.sum(axis=2, keepdims=True)) < 1e-14
    assert relative(dv, dv3.sum(axis=2, keepdims=True)) < 1e-14


def test_heads_can_be_computed_apart(xp):
    """Tensor parallelism: a rank with some of the heads has its part of the output, dropped as on one device."""
    inputs, _ = example(xp, 2, 5, 5, 4, 2, 2)
    whole, _ = attention(**inputs, dropout=Dropout(0.3, (0,), range(2), range(8)))
    for first in range(4):
        mine = {name: x[:, :, first:first + 1] for name, x in inputs.items()}
        out, _ = attention(**mine, dropout=Dropout(0.3, (0,), range(2), range(2 * first, 2 * first + 2)))
        assert_array_equal(to_host(out), to_host(whole)[:, :, first:first + 1])


@pytest.mark.parametrize("kind", KINDS)
def test_joining_the_heads_of_the_output_is_a_view(kind):
    """Else the output would be kept twice: by attention and by the next product."""
    out, _ = KINDS[kind][0](**example(np, 2, 5, 5, 2, 2, 3)[0])
    assert out.flags.c_contiguous


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shapes", "options", "says"), [
    ([(1, 2, 3, 4)] * 3, {}, r"q \(1, 2, 3, 4\), k .* do not fit; expected q \(b, s, n, g, d\)"),
    ([(1, 2, 3, 1, 4), (1, 2, 2, 4), (1, 2, 2, 4)], {}, r"k \(1, 2, 2, 4\) and v"),
    ([(1, 2, 3, 1, 4), (1, 2, 3, 4), (1, 3, 3, 4)], {}, r"v \(1, 3, 3, 4\) do not fit"),
    ([(1, 2, 3, 1, 4), (1, 5, 3, 4), (1, 5, 3, 4)], {"kv_positions": range(4)},
     "kv_positions has 4 entries; expected 5, one for each position"),
    ([(2, 2, 3, 2, 4), (2, 2, 3, 4), (2, 2, 3, 4)], {"dropout": Dropout(0.5, (1,), range(1), range(6))},
     r"dropout numbers 1 sequences and 6 heads, but q \(2, 2, 3, 2, 4\) has 2 and 6"),          # it would broadcast
    ([(2, 2, 3, 2, 4), (2, 2, 3, 4), (2, 2, 3, 4)], {"dropout": Dropout(0.5, (1,), range(2), range(3))},
     "dropout numbers 2 sequences and 3 heads"),
    ([(1, 2, 3, 1, 4), (1, 5, 3, 4), (1, 5, 3, 4)], {"q_positions": [1]}, "q_positions has 1 entries; expected 2"),
])
def test_what_does_not_fit_is_named(kind, shapes, options, says):
    with pytest.raises(ValueError, match=says):
        KINDS[kind][0](*map(np.zeros, shapes), **options)


def test_whole_numbers_are_no_queries():
    q, k = np.ones((1, 2, 1, 1, 3), np.int64), np.ones((1, 2, 1, 3))
    with pytest.raises(ValueError, match="q, k and v have dtypes int64, float64 and float64; expected floats"):
        attention(q, k, k)
