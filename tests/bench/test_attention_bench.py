"""The bench of context parallelism: what it measures; how fast it is, only a quiet machine can say."""

import pytest

from refimpl import Ledger, run
from refimpl.bench import attention
from refimpl.commands.bench import IN_A_JOB
from refimpl.cost import context as cost

SMALL = {"heads": 6, "features": 4, "batch": 2, "sequence": 12}


@pytest.mark.parametrize("P", [1, 2, 3])
def test_all_do_the_same_work_and_each_sends_what_it_should(P):
    """One warm-up and 2 rounds of each; then their times are shared."""
    log = Ledger()
    results = run(lambda comm: attention.bench(comm, rounds=2, **SMALL), P, ledger=log)
    for result in results:
        rows = {row["variant"]: row for row in result["rows"]}
        assert list(rows) == ["alone", "ring of 1", "ceiling", "ring", "gather", "ulysses"]
        assert rows["ceiling"]["share_of_ceiling"] == 1
        assert result["share_of_ceiling"] == rows["ring"]["share_of_ceiling"] > 0
        assert result["one_rank_ratio"] > 0
    ring, ulysses = cost.ring_attention(2, 12, 6, 4, P, 4), cost.ulysses_attention(2, 12, 6, 6, 4, P, 4)
    one = cost.pairs(12 // P, 1, 0)
    for rank in range(P):
        assert log.bytes_sent(rank, collective="ring_attention") == 3 * sum(ring.values())
        assert log.bytes_sent(rank, collective="all_gather") == 3 * 2 * ring["forward"]
        assert log.bytes_sent(rank, collective="reduce_scatter") == 3 * (ring["backward"] - ring["forward"])
        assert log.bytes_sent(rank, collective="all_to_all") == 3 * sum(ulysses.values())
        pairs = one + 3 * cost.pairs(12, P, rank)                # the ring of 1; ring, gather, ulysses as much each
        assert log.flops(rank) == 3 * sum(cost.attention_flops(2, 6, 4, pairs).values())


def test_its_report_names_the_claims():
    [result] = run(lambda comm: attention.bench(comm, rounds=1, **SMALL), 1)
    *_, ceiling, ring, gather, ulysses, share, one = attention.describe(result).splitlines()
    assert ceiling.endswith("100%") and "80% of the ceiling" in share and "at most 1.15 are claimed" in one


def test_it_can_be_called_by_name():
    assert IN_A_JOB["attention"] == "attention"
