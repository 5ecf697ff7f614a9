"""bench all-reduce: `auto` is, at any size, nearly what the best of all algorithms is."""

from collections import defaultdict

import pytest
from slow import only_all

from refimpl.bench import report

ALLOWED = 1.1


@only_all
@pytest.mark.parametrize("ranks", [2, 4])
def test_auto_is_never_much_slower_than_the_best(ranks, monkeypatch):
    """From 4 KiB to 256 MiB. What else the machine does only ever adds: a size that looks slow is measured again."""
    monkeypatch.setenv("REFIMPL_CHECK", "0")                  # as outside of tests
    best = defaultdict(lambda: float("inf"))
    for _ in range(3):
        [found] = report.collect(["all-reduce"], ["--full", "--ranks", str(ranks)])
        seconds = defaultdict(dict)
        for row in found.result["rows"]:
            seconds[row["size_bytes"]][row["algorithm"]] = row["median_s"]
        for size, times in seconds.items():
            others = [time for name, time in times.items() if name != "auto"]
            best[size] = min(best[size], times["auto"] / min(others))
        print(ranks, {size: round(ratio, 2) for size, ratio in best.items()})
        if all(ratio <= ALLOWED for ratio in best.values()):
            break
    assert min(best) == 4 * 2**10 and max(best) == 256 * 2**20
    assert all(ratio <= ALLOWED for ratio in best.values()), dict(best)
    assert found.seconds < report.LIMIT_SECONDS
