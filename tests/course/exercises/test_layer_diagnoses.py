"""Wrong row-parallel layers, as learners and real codebases write them: each gets the diagnosis meant for it."""

import numpy as np
import pytest

from refimpl.collectives import all_gather, all_reduce
from refimpl.course.exercises.checks import examine


def forward_right(x, w, b, comm):
    return all_reduce(x @ w, comm, algorithm="ring") + b


def forward_by_doubling(x, w, b, comm):
    """Any algorithm of ours is one all-reduce."""
    return all_reduce(x @ w, comm, algorithm="doubling") + b


def forward_with_a_share_of_the_bias(x, w, b, comm):
    """Added on one rank only, before the sum: right, too."""
    return all_reduce(x @ w + b * (comm.rank == 0), comm)


def forward_without_all_reduce(x, w, b, comm):
    return x @ w + b / comm.size


def forward_product_alone(x, w, b, comm):
    return x @ w


def forward_without_all_reduce_whole_bias(x, w, b, comm):
    return x @ w + b


def forward_bias_on_every_rank(x, w, b, comm):
    return all_reduce(x @ w + b, comm)


def forward_without_bias(x, w, b, comm):
    return all_reduce(x @ w, comm)


def forward_mean(x, w, b, comm):
    return (all_reduce(x @ w, comm) + b) / comm.size


def forward_gathers_everything(x, w, b, comm):
    return all_gather(x, comm, axis=1) @ all_gather(w, comm) + b


def forward_side_by_side(x, w, b, comm):
    return all_gather(x @ w, comm, axis=1)


def forward_one_rank_alone(x, w, b, comm):
    return all_reduce(x @ w, comm) + b if comm.rank else x @ w


def forward_nan(x, w, b, comm):
    return all_reduce(x @ w, comm) + b * np.nan


def forward_different_calls(x, w, b, comm):
    return all_reduce(x @ w, comm) + b if comm.rank else all_gather(x @ w, comm)


def backward_right(dy, x, w, comm):
    return dy @ w.T, x.T @ dy, dy.sum(axis=0)


def backward_sums_db(dy, x, w, comm):
    return dy @ w.T, x.T @ dy, all_reduce(dy.sum(axis=0), comm)


def backward_sums_dy(dy, x, w, comm):
    dy = all_reduce(dy, comm)
    return dy @ w.T, x.T @ dy, dy.sum(axis=0)


def backward_averages_dy(dy, x, w, comm):
    """Right numbers, for messages that nobody needs."""
    dy = all_reduce(dy, comm) / comm.size
    return np.rint(dy) @ w.T, x.T @ np.rint(dy), np.rint(dy).sum(axis=0)


def backward_gathers_dx(dy, x, w, comm):
    return all_gather(dy @ w.T, comm, axis=1), x.T @ dy, dy.sum(axis=0)


def backward_reverses_x(dy, x, w, comm):
    return dy @ w.T, x[::-1].T @ dy, dy.sum(axis=0)


def backward_without_db(dy, x, w, comm):
    return dy @ w.T, x.T @ dy


def backward_mean_over_tokens(dy, x, w, comm):
    return dy @ w.T, x.T @ dy, dy.mean(axis=0)


def backward_shares_db(dy, x, w, comm):
    return dy @ w.T, x.T @ dy, dy.sum(axis=0) * (comm.rank == 0)


def bias_right(x, w, b, dy, comm):
    return all_reduce(x @ w, comm) + b, *backward_right(dy, x, w, comm)


def bias_as_given(x, w, b, dy, comm):
    return all_reduce(x @ w + b, comm), *backward_right(dy, x, w, comm)


def bias_without_all_reduce(x, w, b, dy, comm):
    return x @ w + b, *backward_right(dy, x, w, comm)


def bias_left_out(x, w, b, dy, comm):
    return all_reduce(x @ w, comm), *backward_right(dy, x, w, comm)


def bias_and_its_gradient_summed(x, w, b, dy, comm):
    return all_reduce(x @ w, comm) + b, dy @ w.T, x.T @ dy, all_reduce(dy.sum(axis=0), comm)


def bias_gradient_on_one_rank(x, w, b, dy, comm):
    return all_reduce(x @ w, comm) + b, dy @ w.T, x.T @ dy, dy.sum(axis=0) * (comm.rank == 0)


def bias_gradient_not_finite(x, w, b, dy, comm):
    return all_reduce(x @ w, comm) + b, dy @ w.T, x.T @ dy, dy.sum(axis=0) * np.inf


WRONG = [
    (forward_right, "passed", []),
    (forward_by_doubling, "passed", []),
    (forward_with_a_share_of_the_bias, "passed", []),
    (forward_without_all_reduce, "missing all-reduce",
     ["y of rank 0 of 2", "add up to the right one", "only this rank's addend"]),
    (forward_product_alone, "missing all-reduce",
     ["what rank 0 has in its part of x and w", "all_reduce(x @ w, comm)"]),
    (forward_without_all_reduce_whole_bias, "missing all-reduce", ["what rank 0 has in its part of x and w"]),
    (forward_bias_on_every_rank, "bias",
     ["every row is off by the same amount: a bias added on every rank", "after the all-reduce"]),
    (forward_without_bias, "bias", ["or not at all"]),
    (forward_mean, "off by a factor", ["2 times too small"]),
    (forward_gathers_everything, "wrong traffic",
     ["values are right, traffic is not", "one all-reduce sends 12 over all ranks"]),
    (forward_side_by_side, "wrong shape",
     ["has shape (2, 6), expected (2, 3)", "an all-gather where an all-reduce belongs"]),
    (forward_one_rank_alone, "deadlock", ["rank 1 waits", "rank 0 has returned"]),
    (forward_different_calls, "collectives disagree", ["ranks of world disagree", "all_gather"]),
    (forward_nan, "not a number", ["not finite"]),
    (backward_right, "passed", []),
    (backward_sums_db, "off by a factor", ["the gradient db is wrong: 2 times too large", "counts it P times"]),
    (backward_sums_dy, "off by a factor", ["the gradient dx is wrong: 2 times too large"]),
    (backward_averages_dy, "wrong traffic", ["nothing has to be sent", "what is there to send?"]),
    (backward_gathers_dx, "wrong shape", ["dx of rank 0 of 2", "(2, 4), expected (2, 2)"]),
    (backward_reverses_x, "wrong gradient", ["the gradient dw is wrong"]),
    (backward_without_db, "wrong shape", ["returned a tuple of 2, expected 3 arrays: dx, dw, db"]),
    (backward_mean_over_tokens, "off by a factor", ["the gradient db is wrong: 2 times too small"]),
    (backward_shares_db, "wrong gradient", ["the gradient db is wrong", "db of rank 1 of 2"]),
    (bias_right, "passed", []),
    (bias_as_given, "bias", ["every row is off by the same amount", "what every rank has whole"]),
    (bias_without_all_reduce, "missing all-reduce", ["the others' are missing"]),
    (bias_left_out, "bias", ["or not at all"]),
    (bias_and_its_gradient_summed, "off by a factor",
     ["the forward is right, the gradient db is not: 2 times too large"]),
    (bias_gradient_on_one_rank, "wrong gradient",
     ["the forward is right, the gradient db is not", "db of rank 1 of 2"]),
    (bias_gradient_not_finite, "not a number", ["the forward is right, the gradient db is not"]),
]
EXERCISE = {"forward": "row_parallel_forward", "backward": "row_parallel_backward", "bias": "row_parallel_bias"}


@pytest.mark.parametrize("function, diagnosis, says", WRONG, ids=[row[0].__name__ for row in WRONG])
def test_each_version_gets_its_diagnosis(function, diagnosis, says):
    verdict = examine(function, EXERCISE[function.__name__.partition("_")[0]])
    assert verdict.diagnosis == diagnosis, str(verdict)
    assert verdict.passed == (diagnosis == "passed")
    for words in says:
        assert words.lower() in str(verdict).lower(), str(verdict)
