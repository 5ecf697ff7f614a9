"""A training run as the formulas see it: what `cost` says that each rank sends, to put beside what was counted.

    Setup (train)  -->  Training (cost): the same sizes without arrays          Seat: one of its ranks

A mixture's rows go where its routers send them, which no formula knows: `routed` reads it off the ledger, and all else
is a formula again.
"""

from refimpl.cost import models
from refimpl.cost.seat import Seat
from refimpl.cost.step_traffic import DIMENSIONS, rows, totals
from refimpl.cost.training import Training


def training_of(setup):
    """The `Training` of a `Setup`; its micro-batch is the largest one of any rank."""
    config, precision = setup.config, setup.recipe.precision
    largest = max(len(setup.sequences(dp, k)) for dp in range(setup.layout.dp) for k in range(setup.microbatches))
    return Training(models.of_transformer(config), setup.layout, setup.sequence, max(largest, 1), setup.microbatches,
                    setup.schedule, setup.pipeline.chunks, setup.sequence_parallel, setup.cp_kind,
                    setup.ulysses if setup.cp_kind == "hybrid" else None, setup.zero, config.recompute,
                    config.attention == "blockwise", precision.parameters, precision.grad_dtype)


def seat_of(setup, rank, training=None):
    """One rank of it: `Seat`."""
    narrow = 4 if setup.recipe.precision.parameters == "bfloat16" else None       # NumPy has none to add up in
    return Seat(training or training_of(setup), rank, narrow, setup.config.balance > 0, setup.config.bias_rate > 0,
                setup.recipe.scale is not None)


def sizes_of(setup, rank):
    """Sequences in each micro-batch of a rank."""
    dp = setup.layout.coordinates(rank)["dp"]
    return [len(setup.sequences(dp, k)) for k in range(setup.microbatches)]


def routed(log, setup, rank):
    """(rows that a rank sent to other ranks' experts in all forwards of a run, rows that it was sent), counted."""
    width = setup.config.hidden * seat_of(setup, rank).training.item
    forwards = 2 if setup.config.recompute == "full" else 1            # full: backward dispatches once more
    ways = log.bytes_sent(rank=rank, phase="dispatch"), log.bytes_sent(rank=rank, phase="combine")
    return tuple(nbytes // width // forwards for nbytes in ways)


def sent(setup, log, steps=1, skipped=0):
    """What the formulas say that every rank sent in a run, as report.sent counts it: {dimension: {"messages": [...],
    "bytes": [...]}}. log: the run's `Ledger`, for a mixture's routing    skipped: of the steps, those that overflowed
    """
    found = {dimension: {"messages": [], "bytes": []} for dimension in DIMENSIONS.values()}
    training = training_of(setup)
    for rank in range(setup.layout.world):
        each = rows(seat_of(setup, rank, training), sizes_of(setup, rank), (0, 0))
        sums, updates = totals(each, "group"), totals([row for row in each if of_update(row, setup.zero)], "group")
        for dimension, counts in found.items():
            for kind, name in enumerate(counts):
                once, if_updated = sums.get(dimension, (0, 0))[kind], updates.get(dimension, (0, 0))[kind]
                counts[name].append(steps * once - skipped * if_updated)
        if setup.layout.ep > 1:
            ways = 3 if setup.config.recompute == "full" else 2        # forward, backward, forward again
            found["ep"]["bytes"][-1] += ways * sum(routed(log, setup, rank)) * setup.config.hidden * training.item
    return found


def of_update(row, zero):
    """Whether a step that overflowed does not send this: norm, routers' load, and what was updated."""
    return row.phase in ("gradient norm", "loads") or row.phase == "zero gather" and zero < 3
