"""Dropout: the mask is a function of the place in the whole batch."""

import itertools

import numpy as np
import pytest
from backends import device_array
from drawing import draw
from numpy.testing import assert_array_equal

from refimpl.arrays import to_host
from refimpl.model.dropout import _number, dropout, dropout_backward, keep_mask
from refimpl.model.finite_differences import check_gradients

KEY = (0, 3, 2, 1)                                       # seed, step, layer, site


def mask_of(sequences, positions, features, rate=0.3, key=KEY, xp=np):
    return to_host(keep_mask(rate, key, (sequences, positions, features), xp.zeros(1)))


def test_splitmix64_gives_its_published_numbers():
    """Seed 1234567: the first outputs, as many implementations list them."""
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [_number(i, 1234567) for i in range(3)] == outputs


def test_the_array_form_of_the_hash_is_the_scalar_one(xp):
    """Checked at the threshold: an element is kept exactly if its number is below (1 - rate) 2^64."""
    seed = 0
    for number in KEY:
        seed = _number(number, seed)
    for rate in (0.1, 0.5, 0.9):
        want = [[_number(j, _number(i, seed)) < (1 - rate) * 2**64 for j in range(20)] for i in (5, 0, 7)]
        assert_array_equal(to_host(keep_mask(rate, KEY, ([5, 0, 7], range(20)), xp.zeros(1))), want)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_A15_masks_do_not_depend_on_how_positions_are_cut(xp, axis, size):
    whole = mask_of(range(4), range(5), range(6))
    for rank in range(size):
        indices = [range(4), range(5), range(6)]
        n = len(indices[axis])
        indices[axis] = range(n * rank // size, n * (rank + 1) // size)
        cut = [slice(None)] * 3
        cut[axis] = slice(indices[axis].start, indices[axis].stop)
        assert_array_equal(mask_of(*indices, xp=xp), whole[tuple(cut)])


def test_any_order_of_positions_has_its_own_part_of_the_mask(xp):
    """Zigzag, striped: positions need not follow each other; arrays do as well as ranges and lists."""
    whole = mask_of(range(4), range(8), range(6))
    for positions in ([0, 7, 1, 6], np.array([0, 7, 1, 6]), device_array(xp, np.array([0, 7, 1, 6], np.int32))):
        assert_array_equal(mask_of(range(4), positions, range(6), xp=xp), whole[:, [0, 7, 1, 6]])


def test_A15_other_sequences_steps_layers_sites_and_seeds_have_other_masks():
    masks = [mask_of(range(s, s + 4), range(16), range(16)) for s in (0, 4)]
    masks += [mask_of(range(4), range(16), range(16), key=(*KEY[:i], KEY[i] + 1, *KEY[i + 1:])) for i in range(4)]
    masks += [mask_of(range(4), range(16), range(16), key=KEY[::-1])]
    for one, other in itertools.combinations(masks, 2):
        assert 0.3 < (one != other).mean() < 0.54                                    # 2 * 0.3 * 0.7 = 0.42 expected


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.75])
def test_the_share_that_is_dropped_is_the_rate_overall_and_along_every_axis(rate):
    mask = mask_of(range(32), range(32), range(64), rate)
    for axes in [(0, 1, 2), (1, 2), (0, 2), (0, 1)]:
        share = mask.mean(axis=axes)
        deviation = (rate * (1 - rate) / (mask.size / share.size)) ** 0.5
        assert abs(share - (1 - rate)).max() < 4.5 * deviation
    for axis in range(3):                                                            # neighbours are independent
        a, b = np.moveaxis(mask, axis, 0)[:-1] - (1 - rate), np.moveaxis(mask, axis, 0)[1:] - (1 - rate)
        assert abs((a * b).mean() / (rate * (1 - rate))) < 4.5 / a.size**0.5


def test_kept_elements_are_scaled_so_that_the_mean_stays(xp):
    x = xp.ones((40, 50))
    y, (mask, _) = dropout(x, 0.2, KEY, (range(40), range(50)))
    assert mask.dtype == bool and mask.dtype.itemsize == 1
    assert set(np.unique(to_host(y))) == {0, 1.25}
    assert abs(to_host(y).mean() - 1) < 0.05
    assert_array_equal(to_host(y) > 0, to_host(mask))


def test_rate_0_is_exactly_no_dropout(xp):
    x = draw(xp, 4, 5)
    y, saved = dropout(x, 0.0, KEY, (range(4), range(5)))
    assert y is x and saved[0] is None and dropout_backward(y, saved) is y


def test_backward_agrees_with_finite_differences(xp):
    x, dy = draw(xp, 3, 4), draw(xp, 3, 4, seed=1)
    run = lambda x: dropout(x, 0.4, KEY, (range(3), range(4)))
    check_gradients(lambda x: (run(x)[0] * dy).sum(), {"x": x}, {"x": dropout_backward(dy, run(x)[1])})


def test_no_elements_no_mask(xp):
    y, saved = dropout(xp.zeros((0, 3)), 0.5, KEY, ([], range(3)))
    assert y.shape == saved[0].shape == (0, 3)


@pytest.mark.parametrize("indices", [
    (range(1), range(3), range(4)),                      # one mask for both sequences: it would broadcast
    (range(3), range(4)), (range(3), range(3), range(4)), (range(2), range(3), range(4), range(1))])
def test_indices_that_do_not_number_x_are_named(xp, indices):
    lengths = ", ".join(str(len(index)) for index in indices)
    with pytest.raises(ValueError, match=rf"indices number \({lengths}\) elements, but x is \(2, 3, 4\)"):
        dropout(xp.ones((2, 3, 4)), 0.5, KEY, indices)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_a_rate_that_is_none_is_named(rate):
    with pytest.raises(ValueError, match=f"dropout={rate}: expected at least 0 and less than 1"):
        dropout(np.ones(3), rate, KEY, (range(3),))
