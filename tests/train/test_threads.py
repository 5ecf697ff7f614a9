"""Products take one thread while a command trains, and as many as before afterwards."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from refimpl.train.threads import CHOSEN, one_blas_thread


def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.fixture
def two_threads(monkeypatch):
    """A BLAS with two threads, and an environment that says nothing about them."""
    for name in CHOSEN:
        monkeypatch.delenv(name, raising=False)
    np.ones((2, 2)) @ np.ones((2, 2))
    with threadpool_limits(2, user_api="blas"):
        if blas_threads() and set(blas_threads()) == {1}:
            pytest.skip("not run: this BLAS has one thread only")
        yield


def test_there_is_one_thread_inside_and_as_many_as_before_outside(two_threads):
    before = blas_threads()
    with one_blas_thread():
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


@pytest.mark.parametrize("name", CHOSEN)
def test_what_the_environment_says_stays(two_threads, monkeypatch, name):
    monkeypatch.setenv(name, "2")
    before = blas_threads()
    with one_blas_thread():
        assert blas_threads() == before
