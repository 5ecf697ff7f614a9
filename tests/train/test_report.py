"""What a run took: every message belongs to one dimension, memory by kind, and time."""

import pytest
from trainer_models import setup_of, train

from refimpl import Ledger
from refimpl.train import report

LAYOUTS = [
    ("gpt2", {"dp": 2, "pp": 2, "cp": 2, "tp": 2, "zero": 1}), ("llama", {"tp": 8}), ("gpt2", {"dp": 3, "zero": 3}),
    ("llama", {"cp": 4, "cp_kind": "hybrid", "ulysses": 2}), ("llama", {"cp": 2, "cp_kind": "gather", "tp": 2}),
    ("biased", {"dp": 2, "tp": 2, "ep": 2, "sequence_parallel": True}),
    ("moe", {"tp": 2, "ep": 2, "expert_tp": 1, "sequence_parallel": True, "dp": 2})]


@pytest.mark.parametrize("family, how", LAYOUTS, ids=str)
def test_every_message_belongs_to_exactly_one_dimension_and_to_none_that_has_one_rank(family, how):
    setup, log = setup_of(family, **how), Ledger()
    train(setup, 1, ledger=log)
    world, found = setup.layout.world, report.sent(log, setup.layout.world)
    for rank in range(world):
        assert sum(counts["bytes"][rank] for counts in found.values()) == log.bytes_sent(rank=rank)
        assert sum(counts["messages"][rank] for counts in found.values()) == log.messages(rank=rank)
    for axis in ("tp", "cp", "pp", "ep"):
        assert (sum(found[axis]["bytes"]) > 0) is (getattr(setup.layout, axis) > 1), axis
    assert (sum(found["dp"]["bytes"]) > 0) is (setup.layout.dp * setup.layout.cp > 1 or how.get("expert_tp") == 1)


def test_memory_is_that_of_every_rank_at_rest_and_at_its_most():
    histories = train(setup_of(dp=2, zero=2), 1, measure=True)
    for found, history in zip(report.memory(histories), histories, strict=True):
        assert found == {"at_rest": history.live, "peak": history.peak, "total_peak": history.total_peak}
        assert found["total_peak"] > sum(found["at_rest"].values()) > 0


def test_without_a_network_time_is_real_and_ranks_of_one_process_wait_for_nothing():
    log = Ledger()
    histories = train(setup_of(dp=2), 2, ledger=log)
    found = report.time(log, histories)
    assert found == {"total": max(history.seconds for history in histories), "virtual": False, "step": None,
                     "compute": None, "communication": None, "waiting": None, "waiting_share": None}
    log.record_time(0, histories[0].seconds, "tp", (), "wait")
    share = histories[0].seconds / sum(history.seconds for history in histories)
    assert report.time(log, histories)["waiting_share"] == pytest.approx(share)
