"""A32: a score of 0 is 0, an exception is 0, nothing returned is full marks, NaN never passes."""

import math

import numpy as np
import pytest

from refimpl.course.exercises.checks import examine
from refimpl.course.exercises.grading import grade


@pytest.mark.parametrize("outcome, score, passed", [
    (None, 5, True), (True, 5, True), (False, 0, False),
    (0, 0, False), (0.0, 0, False), (-0.0, 0, False), (np.float64(0), 0, False), (np.int64(0), 0, False),
    (2.5, 2.5, False), (5, 5, True), (7, 5, True), (math.inf, 5, True),
    (math.nan, 0, False), (np.float64("nan"), 0, False), (-1, 0, False),
])
def test_partial_scores_count_as_they_are(outcome, score, passed):
    given = grade(lambda: outcome, 5)
    assert (given.score, given.passed, given.points) == (score, passed, 5)


def test_an_exception_is_0_points_and_is_kept():
    given = grade(lambda: 1 / 0, 5)
    assert given.score == 0 and not given.passed and isinstance(given.error, ZeroDivisionError)


@pytest.mark.parametrize("outcome", [None, 0, 0.0, 3])
def test_an_exercise_of_no_points_passes_without_them(outcome):
    given = grade(lambda: outcome, 0)
    assert given.score == 0 and given.passed


@pytest.mark.parametrize("check", [lambda: 1 / 0, lambda: math.nan, lambda: False])
def test_an_exercise_of_no_points_does_not_pass_with_an_error(check):
    assert not grade(check, 0).passed


def test_what_is_no_score_is_a_fault_of_the_check():
    with pytest.raises(TypeError, match="a check returned 'yes'"):
        grade(lambda: "yes", 5)


def test_ctrl_c_is_nobodys_mistake():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade(stop, 5)


@pytest.mark.parametrize("name, nothing", [
    ("ring_reduce_scatter", lambda x, comm: np.full(25, np.nan)),
    ("ring_all_gather", lambda block, comm: np.full(100, np.nan)),
    ("ring_all_reduce", lambda x, comm: np.full(100, np.nan)),
    ("row_parallel_forward", lambda x, w, b, comm: np.full((2, 3), np.nan)),
    ("row_parallel_backward", lambda dy, x, w, comm: (x * np.nan, w * np.nan, dy[0] * np.nan)),
    ("row_parallel_bias", lambda x, w, b, dy, comm: (dy * np.nan, x * np.nan, w * np.nan, dy[0] * np.nan)),
])
def test_nan_fails_every_exercise(name, nothing):
    verdict = examine(nothing, name)
    assert verdict.diagnosis == "not a number" and verdict.score == 0
