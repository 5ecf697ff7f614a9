"""What is wrong, where, and why: each kind of wrong program gets its own diagnosis, told from the numbers alone."""

import re

import numpy as np
import pytest

from refimpl.collectives import all_gather, all_reduce, reduce_scatter
from refimpl.testing import assert_sharded_equal, compare

SHARD = {"x": 1, "w": 0, "b": "replicated", "dy": "replicated", "y": "replicated"}


def reference(x, w, b, dy):
    """y = x w + b, as on one device."""
    return {"y": x @ w + b, "dx": dy @ w.T, "dw": x.T @ dy, "db": dy.sum(0)}


def program(comm, x, w, b, dy):
    """The same with the features cut: a row-parallel linear layer."""
    return {"y": all_reduce(x @ w, comm) + b, "dx": dy @ w.T, "dw": x.T @ dy, "db": dy.sum(0)}


def complaint(**changes):
    """What is said on 3 ranks about the program with some results changed: name=function(comm, right, x, w, b, dy)."""
    def changed(comm, **local):
        right = program(comm, **local)
        return right | {name: change(comm, right[name], **local) for name, change in changes.items()}

    rng = np.random.default_rng(0)
    shapes = {"x": (5, 7), "w": (7, 3), "b": (3,), "dy": (5, 3)}
    with pytest.raises(AssertionError) as caught:
        assert_sharded_equal(changed, reference, {name: rng.standard_normal(shape) for name, shape in shapes.items()},
                             ranks=3, shard=SHARD)
    return str(caught.value)


WRONG = {                                     # what is wrong: (the result, how it is computed, what is said)
    "no all-reduce": ("y", lambda c, y, x, w, b, dy: x @ w + b / 3,
                      "y of rank 0 of 3 is wrong: relative difference .*missing all-reduce: the ranks' arrays add up"),
    "reduced twice": ("y", lambda c, y, **_: all_reduce(y, c),
                      "y .*3 times too large: counted on each of 3 ranks, where once"),
    "three times": ("y", lambda c, y, **_: 9 * y, "y .*9 times too large: counted on each of 3 ranks, twice, where"),
    "doubled": ("y", lambda c, y, **_: 2 * y, "y .*2 times too large: counted twice, where once is right"),
    "a mean": ("y", lambda c, y, **_: y / 3, "y .*3 times too small: a mean taken once too often"),
    "a factor": ("y", lambda c, y, **_: 1.5 * y, "y .*likely: 1.5 times what it should be"),
    "a sign": ("y", lambda c, y, **_: -y, "y .*likely: sign wrong"),
    "a bias too many": ("y", lambda c, y, x, w, b, dy: all_reduce(x @ w + b, c),
                        "y .*every row is off by the same amount: a bias added on every rank before the sum"),
    "no bias": ("y", lambda c, y, b, **_: y - b, "y .*every row is off by the same amount: a bias .* or not at all"),
    "one rank": ("y", lambda c, y, **_: y + (c.rank == 1) * np.eye(5, 3),
                 "y of rank 1 of 3 is wrong.*wrong on rank 1 of 3"),
    "two ranks": ("y", lambda c, y, **_: y + (c.rank > 0) * np.eye(5, 3),
                  "y of rank 1 of 3 is wrong.*wrong on ranks 1, 2 of 3"),
    "NaN": ("y", lambda c, y, **_: y + np.where(c.rank == 2, np.diag([np.nan] * 5)[:, :3], 0),
            "y of rank 2 of 3 is wrong: .*likely: 3 of 15 elements are not finite"),
    "float32 inside": ("y", lambda c, y, **_: y.astype("float32").astype("float64"),
                       "y .*likely: right to some digits: computed in a lower precision"),
    "float32 outside": ("y", lambda c, y, **_: y.astype("float32"),
                        "y of rank 0 of 3 has shape .* and dtype float32, expected .* and float64"),
    "a slice": ("y", lambda c, y, **_: reduce_scatter(y, c),
                r"y of rank 0 of 3 has shape \(1, 3\).* expected \(5, 3\).*a slice of axis 0 .*an all-gather is"),
    "side by side": ("y", lambda c, y, x, w, b, dy: all_gather(x @ w, c, axis=1),
                     r"y of rank 0 of 3 has shape \(5, 9\).*side by side along axis 1: an all-gather where"),
    "transposed": ("y", lambda c, y, **_: y.T, r"y of rank 0 of 3 has shape \(3, 5\).*likely: transposed"),
    "a gradient": ("dx", lambda c, dx, **_: dx * 3,
                   r"dx of rank 0 of 3 \(\[0:2\] of axis 1\) is wrong.*3 times too large"),
    "a whole": ("dx", lambda c, dx, **_: all_gather(dx, c, axis=1),
                r"dx of rank 0 of 3 \(\[0:2\] of axis 1\) has shape .*the whole tensor where .*own slice is wanted"),
    "another's": ("dx", lambda c, dx, **_: all_gather(dx, c, axis=1)[:, [slice(2), slice(2), slice(4, 7)][c.rank]],
                  r"dx of rank 1 of 3 \(\[2:4\] of axis 1\) is wrong.*what rank 0 should have: shards in the wrong"),
    "backwards": ("dw", lambda c, dw, **_: all_gather(dw, c)[[slice(4, 7), slice(2, 4), slice(0, 2)][c.rank]],
                  r"dw of rank 0 of 3 \(\[0:2\] of axis 0\) has shape .*what rank 2 should have: shards in the wrong"),
    "a copy's gradient": ("db", lambda c, db, **_: all_reduce(db, c), "db of rank 0 of 3 is wrong.*3 times too large"),
    "the last rank": ("dw", lambda c, dw, **_: dw + (c.rank == 2) * np.eye(*dw.shape),
                      r"dw of rank 2 of 3 \(\[4:7\] of axis 0\) is wrong.*wrong on rank 2 of 3"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_program_is_told_where_and_why(what):
    name, change, says = WRONG[what]
    assert re.match(says, complaint(**{name: change}), re.DOTALL)


def test_a_square_matrix_transposed_is_seen():
    square = {"x": np.arange(16.0).reshape(4, 4)}
    with pytest.raises(AssertionError, match="(?s)y of rank 0 of 1 .* is wrong.*likely: transposed"):
        assert_sharded_equal(lambda comm, x: {"y": x.T}, lambda x: {"y": x}, square, shard={"x": 0, "y": 0},
                             gradients=False)


def test_a_wrong_gradient_under_a_right_forward_says_so():
    text = complaint(dw=lambda c, dw, **_: 3 * dw)
    assert "the outputs are right: look at the backward" in text
    both = complaint(dw=lambda c, dw, **_: 3 * dw, y=lambda c, y, **_: 3 * y)
    assert both.startswith("y of rank 0") and "look at the backward" not in both


def test_outputs_are_compared_before_gradients_whatever_their_order():
    expected = {"dx": np.ones(2), "y": np.ones(2)}
    shard = {"dx": "replicated", "y": "replicated"}
    with pytest.raises(AssertionError, match="^y of rank 0"):
        compare([{"dx": np.zeros(2), "y": np.zeros(2)}], expected, shard, gradients={"dx"})


def test_whole_arrays_where_addends_are_wanted_are_told_apart():
    with pytest.raises(AssertionError, match="(?s)y, summed over 3 ranks, is wrong.*3 times too large"):
        assert_sharded_equal(lambda comm, x: {"y": x}, lambda x: {"y": x}, {"x": np.arange(5.0)}, ranks=3,
                             shard={"x": "replicated", "y": "partial"}, gradients=False)


@pytest.mark.parametrize("dtype, wrong_by", [("int8", 3), ("float16", 3), ("float32", 3), ("complex128", 3)])
def test_causes_are_found_in_every_dtype_without_overflow(dtype, wrong_by):
    x = np.full((4, 4), 20).astype(dtype)
    with pytest.raises(AssertionError, match="3 times too large"):
        assert_sharded_equal(lambda comm, x: {"y": x * wrong_by}, lambda x: {"y": x}, {"x": x}, ranks=3,
                             shard={"x": 0, "y": 0}, gradients=False)
