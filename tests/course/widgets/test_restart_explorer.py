"""The restart explorer: its curve is what many days of failures come to, its best interval is the best."""

import re
import time

import pytest

from refimpl.course.widgets import RestartExplorer
from refimpl.course.widgets import restart_explorer as drawn

CASES = [(30, 2, 10, 160.5), (240, 2, 10, 160.5), (5, 2, 10, 8.0), (60, 0.5, 0, 1000.0)]


@pytest.mark.parametrize("interval, save, restart, between", CASES)
def test_shares_are_those_of_many_days(interval, save, restart, between, monkeypatch):
    monkeypatch.setattr(drawn, "HOURS", 24 * 3000)
    ran = drawn.day(interval, save, restart, between)
    length = sum(end - begin for _, begin, end in ran)
    expected = drawn.shares(interval, save, restart, between)
    assert sum(expected.values()) == pytest.approx(1)
    for what, share in expected.items():
        counted = sum(end - begin for kind, begin, end in ran if kind == what) / length
        assert counted == pytest.approx(share, abs=0.01), what


@pytest.mark.parametrize("save, between", [(2, 160.5), (0.1, 10_000), (20, 30), (10, 5)])
def test_the_best_interval_loses_least(save, between):
    best = drawn.best_interval(save, between)
    work = lambda interval: drawn.shares(interval, save, 10, between)["work"]
    assert all(work(best) >= work(best * factor) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2))


def test_youngs_rule_is_its_first_order():
    for between in (1e3, 1e5, 1e7):
        assert drawn.young(2, between) == pytest.approx(drawn.best_interval(2, between), rel=2 * (2 / between) ** 0.5)


def test_the_day_is_a_day_and_its_pieces_follow_each_other():
    ran = drawn.day(30, 2, 10, 160.5)
    assert ran[0][1] == 0 and ran[-1][2] == 24 * 60
    assert all(one[2] == other[1] for one, other in zip(ran, ran[1:]))
    following = {(one[0], other[0]) for one, other in zip(ran, ran[1:])}
    assert following <= {("work", "save"), ("save", "work"), ("save", "lost"), ("lost", "restart"), ("restart", "work"),
                         ("restart", "lost")}


def test_the_words_name_all_parts():
    shown = drawn.draw_restarts()
    now = drawn.shares(30, 2, 10, drawn.between_failures(16384, 5))
    assert "16,384 GPUs fail every 2.68 h; saved every 30 min: 20% is lost" == shown.title
    for share, words in ((now["save"], "goes into saving"), (now["lost"], "is done again"),
                         (now["restart"], "is spent restarting")):
        assert re.search(rf"{share:.1%} (of the time )?{words}", shown.words)


def test_what_cannot_be_is_refused_and_the_widget_is_quick():
    with pytest.raises(ValueError, match="all must be above 0"):
        drawn.draw_restarts(interval=0)
    explorer = RestartExplorer()
    explorer.set(gpus=65536, years=1, save=10, interval=1)
    assert explorer.shown == drawn.draw_restarts(65536, 1, 10, 10, 1)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        drawn.draw_restarts(65536, 1, 0.1, 0, 1)
        times.append(time.perf_counter() - began)
    assert min(times) < 50e-3
