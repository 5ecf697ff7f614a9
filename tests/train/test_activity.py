"""What a rank did, moment by moment: compute, communicate, wait; and that the three add up to the time that passed."""

import pytest
from trainer_models import DATA, setup_of

from refimpl import Ledger, Link, Network, run
from refimpl.measure.ledger import Message, Span
from refimpl.train import report
from refimpl.train.activity import Stretch, activity, seconds
from refimpl.train.run import Plan, on_rank

GROUPS = {"tp": ("tp", "tp kv"), "dp": ("dp_cp",)}


def log_of(spans=(), messages=()):
    log = Ledger(trace=True)
    log.spans += [Span(rank, start, end, None, (), kind) for rank, start, end, kind in spans]
    log.trace += [Message(0, dst, 8, group, (), None, start, end) for dst, start, end, group in messages]
    return log


def test_gaps_between_computing_are_communication_while_a_message_is_on_its_way_else_waiting():
    log = log_of([(0, 1, 3, "matmul"), (0, 6, 7, "attention"), (0, 3, 6, "wait")],
                 [(0, 2, 4, "tp"), (0, 4.5, 5, "dp_cp"), (0, 6.2, 6.8, "tp"), (1, 0, 9, "tp"), (0, 7, 9, "world")])
    found, other = activity(log, GROUPS, [0, 0], [8, 0])
    assert found == [
        Stretch(0, 1, "waiting"), Stretch(1, 3, "compute"), Stretch(3, 4, "tp"), Stretch(4, 4.5, "waiting"),
        Stretch(4.5, 5, "dp"), Stretch(5, 6, "waiting"), Stretch(6, 7, "compute"), Stretch(7, 8, "waiting")]
    assert other == []
    assert seconds(found) == {"waiting": 3.5, "compute": 3, "tp": 1, "dp": 0.5}


def test_of_two_messages_the_one_that_was_sent_first_counts_and_neighbours_are_joined():
    log = log_of([(0, 0, 1, "matmul"), (0, 1, 2, "matmul")], [(0, 2, 4, "tp"), (0, 3, 5, "dp_cp"), (0, 5, 6, "dp_cp")])
    assert activity(log, GROUPS, [0], [6]) == [[Stretch(0, 2, "compute"), Stretch(2, 4, "tp"), Stretch(4, 6, "dp")]]


def test_what_lies_outside_the_window_is_cut_off():
    log = log_of([(0, 0, 3, "matmul"), (0, 8, 12, "matmul")], [(0, 1, 5, "tp")])
    assert activity(log, GROUPS, [2], [10]) == [[
        Stretch(2, 3, "compute"), Stretch(3, 5, "tp"), Stretch(5, 8, "waiting"), Stretch(8, 10, "compute")]]


@pytest.mark.parametrize("how", [
    {}, {"dp": 2, "zero": 3}, {"pp": 2, "tp": 2}, {"cp": 2, "cp_kind": "ring", "dp": 2}], ids=str)
def test_of_a_real_step_compute_communication_and_waiting_add_up_to_the_step(how):
    setup, log = setup_of("llama", **how), Ledger(trace=True)
    network = Network(Link(1e-6, 1e-10), Link(1e-5, 1e-9), node_size=2, flops=1e10)
    ranks = run(on_rank, setup.layout.world, setup, DATA, Plan(2, measure=False), ledger=log, network=network)
    stretches = report.stretches(log, ranks)
    found = report.time(log, ranks, stretches)
    for history, mine in zip(ranks, stretches):
        assert mine[0].start == history.began and mine[-1].end == history.clock
        assert all(a.end == b.start and a.what != b.what for a, b in zip(mine, mine[1:]))
    mean = sum(history.clock - history.began for history in ranks) / len(ranks)
    assert found["step"] == pytest.approx(mean)
    assert found["compute"] + found["communication"] + found["waiting"] == pytest.approx(found["step"])
    assert found["compute"] * 2 * len(ranks) == pytest.approx(log.time() - log.time(kind="wait"), rel=1e-9)
    assert (found["communication"] > 0) is (len(ranks) > 1)


def test_in_a_pipeline_of_one_micro_batch_the_other_stage_waits():
    setup, log = setup_of("llama", layers=4, pp=2, batch=1), Ledger(trace=True)
    ranks = run(on_rank, 2, setup, DATA, Plan(2, measure=False), ledger=log, network=Network(Link(0, 1e-15), flops=1e9))
    for mine in report.stretches(log, ranks):
        spent = seconds(mine)
        assert spent["waiting"] == pytest.approx(sum(spent.values()) - spent["compute"], rel=1e-3)
        assert 0.25 < spent["waiting"] / sum(spent.values()) < 0.75                   # a bubble of about (p-1)/p
