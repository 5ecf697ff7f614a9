"""bench all-reduce: `auto` is, at any size, nearly what the best of all algorithms is."""

from collections import defaultdict

import pytest
from slow import only_all

from refimpl.bench import report

ALLOWED = 1.1


@only_all
@pytest.mark.parametrize("ranks", [2, 4])
def test_auto_is_never_much_slower_than_the_best(ranks, monkeypatch):
    """From 4 KiB to 256 MiB. What else the machine does only ever adds, to any of them: each counts by its best try.

    It adds most to ours: at 4 and 8 MiB this goes red where another program uses the cache all the time.
    """
    monkeypatch.setenv("REFIMPL_CHECK", "0")                  # as outside of tests
    fastest = defaultdict(lambda: defaultdict(lambda: float("inf")))
    for _ in range(4):
        [found] = report.collect(["all-reduce"], ["--full", "--ranks", str(ranks)])
        for row in found.result["rows"]:
            times = fastest[row["size_bytes"]]
            times[row["algorithm"]] = min(times[row["algorithm"]], row["median_s"])
        to_best = {size: times["auto"] / min(time for name, time in times.items() if name != "auto")
                   for size, times in fastest.items()}
        print(ranks, {size: round(ratio, 2) for size, ratio in to_best.items()})
        if max(to_best.values()) <= ALLOWED:
            break
    assert min(to_best) == 4 * 2**10 and max(to_best) == 256 * 2**20
    assert max(to_best.values()) <= ALLOWED, to_best
    assert found.seconds < report.LIMIT_SECONDS
