"""The watchdog: a wait that lasts too long is reported with the rank's stack, on all ranks, and ends the job once."""

import threading
import time

import pytest

from refimpl.world import watchdog
from refimpl.world.watchdog import Watchdog, timeout_seconds


@pytest.fixture
def quick(monkeypatch):
    """A watchdog with this time-out and no grace; and the list of its aborts."""
    monkeypatch.setattr(watchdog, "GRACE", 0.0)

    def make(seconds, **bells):
        monkeypatch.setenv("REFIMPL_TIMEOUT", str(seconds))
        aborted = threading.Event()
        return Watchdog(2, 4, aborted.set, **bells), aborted

    return make


def test_a_wait_that_lasts_too_long_is_reported_with_the_stack_and_ends_the_job(quick, capsys):
    rung = []
    dog, aborted = quick(0.1, ring=lambda: rung.append(True))
    with dog.of_this_thread().waits(lambda: "for a message from rank 1 of world, at lesson.py:12"):
        assert aborted.wait(5)                                       # this very line is in the stack
    text = capsys.readouterr().err
    assert "rank 2 of 4 has waited 0." in text
    assert " s for a message from rank 1 of world, at lesson.py:12 (REFIMPL_TIMEOUT=0.1); its stack:" in text
    assert "assert aborted.wait(5)" in text
    assert rung == [True]


def test_many_short_waits_are_no_long_one(quick, capsys):
    dog, aborted = quick(0.2)
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        with dog.of_this_thread().waits(lambda: "for something"):
            time.sleep(0.01)
    assert not aborted.is_set() and capsys.readouterr().err == ""


def test_computing_is_not_waiting_and_a_wait_that_fails_is_over(quick, capsys):
    dog, aborted = quick(0.1)
    with pytest.raises(ArithmeticError), dog.of_this_thread().waits(lambda: "for something"):
        raise ArithmeticError
    assert not aborted.wait(0.4) and capsys.readouterr().err == ""


def test_a_rank_that_hears_the_bell_reports_whatever_it_does_and_leaves_the_end_to_others(quick, capsys):
    heard = threading.Event()
    dog, aborted = quick(0.2, rung=heard.is_set)
    heard.set()
    time.sleep(0.5)
    text = capsys.readouterr().err
    assert text.count("rank 2 of 4 does not wait (REFIMPL_TIMEOUT=0.2); its stack:") == 1 and "time.sleep(0.5)" in text
    assert not aborted.is_set() and dog.of_this_thread().waiting is None


def test_a_time_out_of_0_means_no_watchdog(quick):
    before = threading.active_count()
    quick(0)
    assert threading.active_count() == before


@pytest.mark.parametrize("text, seconds", [("", 120), ("0", 0), ("2.5", 2.5), ("1e3", 1000)])
def test_the_time_out_is_a_number_of_seconds(monkeypatch, text, seconds):
    monkeypatch.setenv("REFIMPL_TIMEOUT", text)
    assert timeout_seconds() == seconds


@pytest.mark.parametrize("text", ["-1", "soon", "nan"])
def test_another_time_out_is_refused(monkeypatch, text):
    monkeypatch.setenv("REFIMPL_TIMEOUT", text)
    with pytest.raises(ValueError, match=f"REFIMPL_TIMEOUT='{text}': must be a number of seconds, or 0 to wait"):
        timeout_seconds()
