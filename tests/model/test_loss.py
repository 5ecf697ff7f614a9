"""Softmax cross-entropy: values, gradient, and no overflow."""

import math

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model.finite_differences import check_gradients
from refimpl.model.loss import (
    cross_entropy,
    cross_entropy_backward,
    softmax_cross_entropy,
    softmax_cross_entropy_backward,
)


def example(xp, leading, classes=5, scale=1.0, dtype=np.float64):
    rng = np.random.default_rng((len(leading), classes))
    logits = (scale * rng.standard_normal((*leading, classes))).astype(dtype)
    return device_array(xp, logits), device_array(xp, rng.integers(0, classes, leading))


def number(loss):
    return float(to_host(loss))


def test_one_position_costs_the_logarithm_of_its_odds(xp):
    """Logits 0..7, target 2: the unsmoothed value of A12."""
    loss, saved = softmax_cross_entropy(device_array(xp, np.arange(8.0)), device_array(xp, np.array(2)))
    assert abs(number(loss) - 5.4583396) < 5e-8
    gradient = to_host(softmax_cross_entropy_backward(1.0, saved))
    assert abs(gradient.sum()) < 1e-15
    assert abs(gradient[2] - (math.exp(-5.458339625) - 1)) < 1e-9


def test_equal_logits_cost_log_classes_whatever_the_target(xp):
    loss, _ = softmax_cross_entropy(device_array(xp, np.full((3, 256), 7.0)), device_array(xp, np.array([0, 100, 255])))
    assert abs(number(loss) - math.log(256)) < 1e-14


def test_the_loss_is_the_mean_over_positions(xp):
    logits, targets = example(xp, (2, 3))
    one_by_one = [number(softmax_cross_entropy(logits[i, j], targets[i, j])[0]) for i in range(2) for j in range(3)]
    assert abs(number(softmax_cross_entropy(logits, targets)[0]) - sum(one_by_one) / 6) < 1e-15


@pytest.mark.parametrize("leading", [(), (1,), (4,), (2, 3)])
def test_backward_agrees_with_finite_differences(xp, leading):
    logits, targets = example(xp, leading)
    _, saved = softmax_cross_entropy(logits, targets)
    check_gradients(lambda logits: 3 * softmax_cross_entropy(logits, targets)[0],
                    {"logits": logits}, {"logits": softmax_cross_entropy_backward(3.0, saved)})


def test_no_positions_cost_nothing_and_give_no_nan(xp):
    logits, targets = example(xp, (0,))
    loss, saved = softmax_cross_entropy(logits, targets)
    assert number(loss) == 0
    assert softmax_cross_entropy_backward(1.0, saved).shape == (0, 5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_a_thousand_times_larger_stay_finite(xp, dtype):
    logits, targets = example(xp, (6,), scale=1000.0, dtype=dtype)
    with np.errstate(all="raise", under="ignore"):
        loss, saved = softmax_cross_entropy(logits, targets)
        gradient = to_host(softmax_cross_entropy_backward(1.0, saved))
    assert 0 < number(loss) < np.inf
    assert np.isfinite(gradient).all()


def test_a_class_ruled_out_by_minus_infinity_gets_no_gradient(xp):
    logits, targets = np.array([[0.0, -np.inf, 0.0]]), np.array([2])
    loss, saved = softmax_cross_entropy(device_array(xp, logits), device_array(xp, targets))
    assert abs(number(loss) - math.log(2)) < 1e-15
    assert_array_equal(to_host(softmax_cross_entropy_backward(1.0, saved)), [[0.5, 0, -0.5]])


def test_float32_stays_float32_and_near_float64(xp):
    loss, saved = softmax_cross_entropy(*example(np, (40,), classes=30))
    logits, targets = example(xp, (40,), classes=30, dtype=np.float32)
    loss32, saved32 = softmax_cross_entropy(logits, targets)
    gradient, gradient32 = softmax_cross_entropy_backward(1.0, saved), softmax_cross_entropy_backward(1.0, saved32)
    assert loss32.dtype == gradient32.dtype == np.float32
    assert abs(number(loss32) - loss) <= 1e-5 * loss
    assert np.linalg.norm(to_host(gradient32) - gradient) <= 1e-5 * np.linalg.norm(gradient)


def test_small_integer_targets_will_do(xp):
    """Bytes of text are uint8."""
    logits, targets = example(xp, (4,))
    loss, loss_of_bytes = (softmax_cross_entropy(logits, t)[0] for t in (targets, targets.astype(np.uint8)))
    assert number(loss) == number(loss_of_bytes)


@pytest.mark.parametrize(("targets", "says"), [
    (np.array([0, 5]), r"targets contains 5; expected 0\.\.4, nearest 4"),
    (np.array([-1, 0]), r"targets contains -1; expected 0\.\.4, nearest 0"),
    (np.array([0.0, 1.0]), "targets has dtype float64; expected integers"),
    (np.array([0, 1, 2]), r"targets \(3,\) do not fit logits \(2, 5\); expected \(2,\)"),
])
def test_bad_targets_are_named(targets, says):
    with pytest.raises(ValueError, match=says):
        softmax_cross_entropy(np.zeros((2, 5)), targets)


# Ignored positions, smoothing, and a sum instead of a mean.

def masked(xp, leading=(3, 4), ignore_index=-1, **options):
    """Logits and targets, every other one of them ignored."""
    logits, targets = example(xp, leading, **options)
    host = to_host(targets).copy()
    host.reshape(-1)[1::2] = ignore_index
    return logits, device_array(xp, host)


def test_the_sum_and_the_count_make_the_mean(xp):
    logits, targets = example(xp, (2, 3))
    total, count, _ = cross_entropy(logits, targets)
    assert number(count) == 6
    assert abs(number(total) / 6 - number(softmax_cross_entropy(logits, targets)[0])) < 1e-15


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignore_index", [-1, -100, 2])
def test_ignored_positions_have_no_loss_no_gradient_and_are_not_counted(xp, smoothing, ignore_index):
    """A12, pytorch #73205: smoothing, too, leaves them alone. 2 is a class: those that have it are ignored as well."""
    logits, targets = masked(xp, ignore_index=ignore_index)
    total, count, saved = cross_entropy(logits, targets, ignore_index, smoothing)
    gradient = to_host(cross_entropy_backward(1.0, saved))
    kept = to_host(targets) != ignore_index
    only_kept = (device_array(xp, to_host(x)[kept]) for x in (logits, targets))
    total_of_kept, count_of_kept, _ = cross_entropy(*only_kept, -7, smoothing)
    assert number(count) == kept.sum() == number(count_of_kept)
    assert abs(number(total) - number(total_of_kept)) < 1e-14
    assert not gradient[~kept].any() and gradient[kept].any(axis=-1).all()


def test_all_positions_ignored_give_0_and_no_nan(xp):
    logits, targets = example(xp, (4,))
    with np.errstate(all="raise"):
        total, count, saved = cross_entropy(logits, targets * 0 - 1, smoothing=0.1)
        gradient = cross_entropy_backward(1.0, saved)
    assert number(total) == number(count) == 0 and not to_host(gradient).any()


def test_A12_smoothing_spreads_eps_over_all_classes(xp):
    """Megatron-LM #7464, #737. With eps/(V-1) on the others it would be 5.2869111."""
    logits, targets = device_array(xp, np.arange(8.0)[None]), device_array(xp, np.array([2]))
    total, _, saved = cross_entropy(logits, targets, smoothing=0.1)
    gradient = to_host(cross_entropy_backward(1.0, saved))
    assert abs(number(total) - 5.3083396) < 5e-8
    assert abs(gradient.sum()) < 1e-15
    assert abs(gradient[0, 2] - -0.9082394) < 5e-8
    assert abs(number(cross_entropy(logits, targets)[0]) - 5.4583396) < 5e-8
    assert abs(number(cross_entropy(logits, targets, smoothing=0.1 * 8 / 7)[0]) - 5.2869111) < 5e-8    # Megatron's


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("leading", [(), (1,), (2, 3), (0,)])
def test_backward_of_the_sum_agrees_with_finite_differences(xp, leading, smoothing):
    logits, targets = masked(xp, leading)
    _, _, saved = cross_entropy(logits, targets, smoothing=smoothing)
    check_gradients(lambda logits: 3 * cross_entropy(logits, targets, smoothing=smoothing)[0],
                    {"logits": logits}, {"logits": cross_entropy_backward(3.0, saved)})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_A12_smoothed_logits_a_thousand_times_larger_stay_finite(xp, dtype):
    logits, targets = masked(xp, (6,), scale=1000.0, dtype=dtype)
    with np.errstate(all="raise", under="ignore"):
        total, _, saved = cross_entropy(logits, targets, smoothing=0.1)
        gradient = to_host(cross_entropy_backward(1.0, saved))
    assert 0 < number(total) < np.inf
    assert gradient.dtype == dtype and np.isfinite(gradient).all()


def test_A06_loss_and_gradient_do_not_depend_on_how_positions_are_split(xp):
    """Sums and counts add up over ranks and micro-batches; means of means do not."""
    logits, targets = masked(xp, (7,))
    total, count, saved = cross_entropy(logits, targets)
    parts = [cross_entropy(logits[part], targets[part]) for part in (slice(0, 1), slice(1, 2), slice(2, 7))]
    assert [number(part[1]) for part in parts] == [1, 0, 3]
    assert abs(sum(number(part[0]) for part in parts) - number(total)) < 1e-14
    dtotal = 1 / sum(number(part[1]) for part in parts)
    gradients = np.concatenate([to_host(cross_entropy_backward(dtotal, part[2])) for part in parts])
    assert_array_equal(gradients, to_host(cross_entropy_backward(1 / number(count), saved)))


def test_bytes_can_be_ignored_when_they_are_no_class():
    logits = np.zeros((3, 5))
    total, count, _ = cross_entropy(logits, np.array([0, 255, 4], np.uint8), ignore_index=255)
    assert count == 2 and abs(total - 2 * math.log(5)) < 1e-15


@pytest.mark.parametrize(("targets", "options", "says"), [
    (np.array([0, 5]), {}, r"targets contains 5; expected 0\.\.4, nearest 4"),
    (np.array([0, -2]), {}, r"targets contains -2; expected 0\.\.4"),
    (np.array([0, 1]), {"smoothing": 1.0}, "smoothing=1.0: expected at least 0 and less than 1; nearest 0.9"),
    (np.array([0, 1]), {"smoothing": -0.1}, "smoothing=-0.1: .*nearest 0.0"),
])
def test_what_does_not_fit_the_sum_is_named(targets, options, says):
    with pytest.raises(ValueError, match=says):
        cross_entropy(np.zeros((2, 5)), targets, **options)
