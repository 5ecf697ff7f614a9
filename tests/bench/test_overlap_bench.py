"""bench overlap: what share of an all-reduce is hidden, by one definition for all who ask."""

import pytest

from refimpl import run
from refimpl.bench import overlap
from refimpl.bench.overlap import hidden_share


@pytest.mark.parametrize(("compute", "communicate", "both", "share"), [
    (3, 2, 3, 1.0), (3, 2, 5, 0.0), (3, 2, 4, 0.5),           # all, nothing, half of the communication costs no time
    (1, 4, 4, 0.25),                                          # as much as there is computation to hide it
    (3, 2, 6, -0.5)])                                         # worse than one after the other
def test_the_share_is_that_of_the_communication(compute, communicate, both, share):
    assert hidden_share(compute, communicate, both) == share


def test_the_bench_reports_the_median_of_the_rounds_shares(monkeypatch):
    monkeypatch.setattr(overlap, "measure", lambda comm, variants, rounds: {
        "compute": [1.0, 1.0, 1.0], "communicate": [4.0, 2.0, 4.0], "both": [4.0, 2.0, 5.0]})
    monkeypatch.setattr(overlap, "products_as_long_as", lambda communicate, comm: 1)
    [result] = run(lambda comm: overlap.bench(comm, [1024, 4096], 3), 1)
    assert [row["hidden_share"] for row in result["rows"]] == [0.25, 0.25] and result["hidden_share"] == 0.25
