"""The router: which experts, with which weights and gradients; capacity, balance and bias."""

import itertools
import math

import numpy as np
import pytest
from backends import device_array
from drawing import draw
from numpy.testing import assert_allclose, assert_array_equal

from refimpl.arrays import to_host
from refimpl.model import router
from refimpl.model.finite_differences import check_gradients

KINDS = pytest.mark.parametrize("kind", router.ROUTERS)


def routed(xp, logits, k, kind, bias=None):
    """Of these scores: choice, weights, p on the host; and d of sum(weights * dweights) / d scores."""
    z = device_array(xp, np.asarray(logits, float))
    one = device_array(xp, np.eye(z.shape[-1]))
    choice, weights, p, saved = router.route(z, one, k, kind, bias)

    def backward(dweights, dp=0):
        return to_host(router.route_backward_input(device_array(xp, np.asarray(dweights, float)), dp, saved)[0])

    return to_host(choice), to_host(weights), to_host(p), backward


def test_A28_softmax_before_top_1_keeps_a_gradient_and_after_it_none(xp):
    """NVIDIA/Megatron-LM #894."""
    choice, weights, _, backward = routed(xp, [[2.0, 1, 0]], 1, "softmax-topk")
    assert_array_equal(choice, [[0]])
    assert_allclose(weights, [[0.665241]], atol=5e-7)
    assert_allclose(backward([[1.0]]), [[0.222695, -0.162803, -0.059892]], atol=5e-7)
    for kind in ("topk-softmax", "sigmoid"):
        choice, weights, _, backward = routed(xp, [[2.0, 1, 0]], 1, kind)
        assert_array_equal(choice, [[0]])
        assert_array_equal(weights, [[1.0]])
        assert_array_equal(backward([[1.0]]), [[0.0, 0, 0]])


def test_A28_softmax_after_top_2_is_the_whole_one_renormalised(xp):
    for logits in ([[2.0, 1, 0]], [[1.0, 0, 2]], [[-1.0, -2, -7]]):
        choice, weights, p, _ = routed(xp, logits, 2, "topk-softmax")
        assert_allclose(weights, [[0.731059, 0.268941]], atol=5e-7)
        assert_allclose(weights, p[0, choice] / p[0, choice].sum(), rtol=1e-14)


@KINDS
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_largest_scores_are_chosen_best_first(xp, kind, k):
    z = to_host(draw(np, 4, 7, 5))
    choice, weights, p, _ = routed(xp, z, k, kind)
    assert choice.shape == weights.shape == (4, 7, k) and p.shape == (4, 7, 5)
    for place in np.ndindex(4, 7):
        assert choice[place].tolist() == sorted(range(5), key=lambda e: -z[place][e])[:k]
    assert_allclose(p.sum(-1), 1)
    score = np.exp(z) if kind != "sigmoid" else 1 / (1 + np.exp(-z))
    chosen = np.take_along_axis(score, choice, -1)
    assert_allclose(weights, chosen / (score if kind == "softmax-topk" else chosen).sum(-1, keepdims=True), rtol=1e-13)


@KINDS
def test_of_equal_scores_the_lowest_expert_comes_first(xp, kind):
    """A26; alike on every library: it is by stable sorting, not by chance."""
    choice, _, _, _ = routed(xp, np.zeros((3, 64)), 5, kind)
    assert_array_equal(choice, [range(5)] * 3)
    z = np.tile([0.0, 1, 0, 1, 1, 0, 2], (2, 40))                           # 280 experts: sorts of other lengths, too
    best = [e for value in (2, 1, 0) for e in range(280) if z[0, e] == value]
    assert_array_equal(routed(xp, z, 200, kind)[0], [best[:200]] * 2)


@KINDS
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_backward_agrees_with_finite_differences(xp, kind, k, bias):
    x, w = draw(xp, 2, 3, 5), draw(xp, 5, 4)
    bias = device_array(xp, np.array([0.4, -0.3, 0.1, 0.2])) if bias else None
    dweights, dp = draw(xp, 2, 3, k, seed=1), draw(xp, 2, 3, 4, seed=2)

    def loss(x, w):
        _, weights, p, _ = router.route(x, w, k, kind, bias)
        return (weights * dweights).sum() + (p * dp).sum()

    _, _, _, saved = router.route(x, w, k, kind, bias)
    dx, pending = router.route_backward_input(dweights, dp, saved)
    check_gradients(loss, {"x": x, "w": w}, {"x": dx, "w": router.route_backward_weight(pending)})


@KINDS
def test_the_bias_has_a_say_in_the_choice_and_none_in_the_weights(xp, kind):
    z, bias = [[2.0, 1, 0, -1]], device_array(xp, np.array([-9.0, 0, 0, 9]))
    choice, weights, p, _ = routed(xp, z, 2, kind, bias)
    assert choice.tolist() == [[3, 1]]
    chosen = p[0, [3, 1]]
    assert_allclose(weights, [chosen if kind == "softmax-topk" else chosen / chosen.sum()])
    assert_array_equal(p, routed(xp, z, 2, kind)[2])


@KINDS
def test_large_scores_do_not_overflow(kind):
    with np.errstate(all="raise", under="ignore"):
        choice, weights, p, backward = routed(np, [[1000.0, 999, -1000, -999]], 2, kind)
        assert choice.tolist() == [[0, 1]] and np.isfinite(p).all() and np.isfinite(weights).all()
        assert np.isfinite(backward([[1.0, 2.0]])).all()


# -- capacity ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("k", "s", "experts", "factor", "least", "room"), [
    (1, 5, 4, 1, 4, 4), (2, 4, 2, 4, 0, 4), (1, 5, 4, 1, 0, 2), (1, 8, 4, 1.0, 0, 2), (1, 3, 4, 1, 4, 3),
    (2, 4096, 8, 1.25, 0, 1280), (1, 10, 1, 1.1, 0, 10), (1, 100, 10, 1.1, 0, 11), (1, 7, 4, 0.5, 0, 1),
    (1, 0, 4, 1, 4, 0)])
def test_A26_capacity_is_the_share_times_the_factor_and_no_more_than_the_tokens(k, s, experts, factor, least, room):
    """deepspeedai/DeepSpeed #1658 (minimum 4), PR #8155 (16 of 4 tokens); 1.1 is 11/10: no 12th place by rounding."""
    assert router.capacity(k, s, experts, factor, least) == room


def kept_one_by_one(choice, weights, positions, room, drop):
    """The definition: those who want in, in order; the first so many get in."""
    found = np.zeros(choice.shape, bool)
    key = {"position": lambda at: positions[at[1]], "probability": lambda at: (-weights[at], positions[at[1]])}[drop]
    for b, e in itertools.product(range(choice.shape[0]), range(9)):
        wants = [(b, s, j) for s, j in np.ndindex(*choice.shape[1:]) if choice[b, s, j] == e]
        for at in sorted(wants, key=key)[:room]:
            found[at] = True
    return found


@pytest.mark.parametrize("drop", router.DROPS)
@pytest.mark.parametrize("room", [0, 1, 2, 5])
@pytest.mark.parametrize("positions", [range(6), [0, 5, 1, 4, 3, 2]], ids=["in order", "zigzag"])
def test_an_expert_takes_the_first_or_the_heaviest_tokens_of_each_sequence(xp, drop, room, positions):
    rng = np.random.default_rng(3)
    choice = np.argsort(rng.random((3, 6, 5)))[..., :2]
    weights = np.round(rng.random((3, 6, 2)), 1)                                     # with ties: the first one stays
    kept = router.kept(device_array(xp, choice), device_array(xp, weights), positions, room, 5, drop)
    assert_array_equal(to_host(kept), kept_one_by_one(choice, weights, positions, room, drop))


def test_A26_the_fifth_token_of_four_places_is_dropped(xp):
    z = np.tile([1.0, 0, 0, 0], (1, 5, 1))
    choice, weights, _, _ = routed(xp, z, 1, "softmax-topk")
    room = router.capacity(1, 5, 4, 1, least=4)
    kept = router.kept(device_array(xp, choice), device_array(xp, weights), range(5), room, 4)
    assert to_host(kept)[0, :, 0].tolist() == [True, True, True, True, False]


def test_what_the_router_does_not_know_is_named():
    """An unknown kind would else be taken for one of the known ones, and too large a k be cut off silently."""
    x, w = np.zeros((1, 2, 3)), np.zeros((3, 4))
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"k={k} of 4 experts: expected 1 to 4"):
            router.route(x, w, k)
    with pytest.raises(ValueError, match="kind='softmax': expected one of softmax-topk, .*; nearest '.*softmax"):
        router.route(x, w, 2, "softmax")
    with pytest.raises(ValueError, match="drop='heaviest': expected one of position, probability; nearest"):
        router.kept(np.zeros((1, 2, 1), int), np.ones((1, 2, 1)), range(2), 1, 4, "heaviest")


# -- balance ----------------------------------------------------------------------------------------------------------

def balance(choice, p, experts):
    """The auxiliary loss a token, of one sequence; f counted one by one."""
    s, k = choice.shape
    f = [experts / (k * s) * sum(e in row for row in choice.tolist()) for e in range(experts)]
    assert_allclose(router.frequency(router.load(choice[None], experts), k, s, np.float64)[0], f, rtol=1e-15)
    return float((p @ f).sum() / s)


@KINDS
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_balance_loss_is_1_where_all_have_as_much_to_do_and_more_where_the_probable_have_more(kind, k):
    """Fedus et al. 2022, section 2.2: minimised by a uniform distribution. One expert with everything: E/k."""
    experts, losses = 8, []
    shifts = np.stack([np.roll(np.linspace(0.7, 0, experts), shift) for shift in range(experts)])
    for skew in (0.0, 0.5, 2.0, 800.0):
        logits = shifts + skew * np.linspace(1, 0, experts) * (1 if kind != "sigmoid" else 0.5)
        choice, _, p, _ = routed(np, logits, k, kind)
        losses.append(balance(choice, p, experts))
    assert_allclose(losses[0], 1, rtol=1e-14)
    assert 1.001 < losses[1] < losses[2]
    if kind != "sigmoid":
        assert losses[2] < losses[3] and math.isclose(losses[3], experts / k, rel_tol=1e-12)


def test_the_bias_rises_where_the_load_is_below_the_mean_and_falls_above_it(xp):
    bias, load = device_array(xp, np.array([0.5, 0.0, -1.0, 0.25])), device_array(xp, np.array([9, 3, 5, 3]))
    assert_array_equal(to_host(router.update_bias(bias, load, 0.125)), [0.375, 0.125, -1.0, 0.375])
    assert_array_equal(to_host(bias), [0.5, 0, -1, 0.25])                                 # the old one stays as it is


def test_the_bias_balances_a_router_that_prefers_some(xp):
    """Wang et al. 2024: without any gradient. It ends within what one step of the bias moves."""
    z = draw(np, 200, 8) + np.linspace(1.5, 0, 8)
    bias, loads = device_array(xp, np.zeros(8)), []
    for _ in range(120):
        choice, _, _, _ = routed(xp, z, 2, "sigmoid", bias)
        loads.append(np.bincount(choice.ravel(), minlength=8))
        bias = router.update_bias(bias, device_array(xp, loads[-1]), 0.01)
    worst = [load.max() / load.mean() for load in loads]
    assert worst[0] > 1.7 and max(worst[-5:]) < 1.2
