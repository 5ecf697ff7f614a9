"""What a rank sends in a step, to the message: formulas beside a ledger, on random layouts."""

from dataclasses import replace

import pytest
from random_layouts import DATA, random_setup

from refimpl.cost import step_traffic
from refimpl.measure.ledger import Ledger
from refimpl.precision import LossScale
from refimpl.train import predicted, report
from refimpl.train.run import Plan, on_rank
from refimpl.world import run

PHASES = ("forward", "backward", "finish", "loss", "pp forward", "pp backward", "pp tied", "zero reduce", "zero gather",
          "valid targets", "gradient norm", "overflow", "balance", "loads")
NESTED = {"finish": "backward", "zero reduce": "backward"}              # inside another one, which counts them, too


def counted(log, rank):
    """{(group, phase): (messages, bytes)} of one rank, what is nested counted once."""
    ask = lambda group, phase: (log.messages(rank=rank, group=group, phase=phase),
                                log.bytes_sent(rank=rank, group=group, phase=phase))
    found = {}
    for group in step_traffic.DIMENSIONS:
        for phase in PHASES:
            messages, nbytes = ask(group, phase)
            for inner, outer in NESTED.items():
                if phase == outer:
                    messages, nbytes = messages - ask(group, inner)[0], nbytes - ask(group, inner)[1]
            if messages:
                found[group, phase] = messages, nbytes
    return found


def formulas(setup, log, rank):
    """The same, from the formulas."""
    choices = predicted.routed(log, setup, rank) if setup.config.experts else None
    found = {}
    for row in step_traffic.rows(predicted.seat_of(setup, rank), predicted.sizes_of(setup, rank), choices):
        key = row.group, {"total loss": "loss"}.get(row.phase, row.phase)
        before = found.get(key, (0, 0))
        found[key] = before[0] + row.messages, before[1] + row.bytes
    return found


@pytest.mark.parametrize("seed", range(30))
def test_a_step_sends_what_the_formulas_say(seed):
    setup, log = random_setup(seed), Ledger()
    run(on_rank, setup.layout.world, setup, DATA, Plan(steps=1, measure=False), ledger=log)
    for rank in range(setup.layout.world):
        assert formulas(setup, log, rank) == counted(log, rank)
    of_all = sum(sum(counts["bytes"]) for counts in predicted.sent(setup, log).values())
    assert of_all == log.bytes_sent()                                  # nothing was sent under another name


@pytest.mark.parametrize("seed", [0, 5, 8, 31])
def test_a_run_of_several_steps_sent_what_the_report_says(seed):
    setup, log = random_setup(seed), Ledger()
    ranks = run(on_rank, setup.layout.world, setup, DATA, Plan(steps=3, measure=False), ledger=log)
    skipped = sum(step.skipped for step in ranks[0].steps)
    said, found = report.formula(setup, log, 3, skipped), report.sent(log, setup.layout.world)
    for dimension, counts in found.items():
        assert counts == {name: said[name][dimension] for name in ("messages", "bytes")}


def test_steps_that_overflow_send_less():
    """float16 with a loss scale that is far too large: no norm, and no parameters to gather."""
    base = next(setup for setup in map(random_setup, range(200)) if setup.recipe.precision.parameters == "float16"
                and setup.zero in (1, 2) and setup.layout.dp * setup.layout.cp > 1)
    setup, log = replace(base, recipe=replace(base.recipe, scale=LossScale(2.0**40))), Ledger()
    ranks = run(on_rank, setup.layout.world, setup, DATA, Plan(steps=2, measure=False), ledger=log)
    assert all(step.skipped for step in ranks[0].steps)
    said = report.formula(setup, log, 2, 2)
    assert {name: {dimension: counts[name] for dimension, counts in report.sent(log, setup.layout.world).items()}
            for name in said} == said
