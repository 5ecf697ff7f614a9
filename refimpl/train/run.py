"""A whole run on one rank: steps, checkpoints, faults on purpose, and what is remembered of it all.

    results = run(on_rank, setup.layout.world, setup, data, Plan(steps=20), ledger=log)        a History from every rank
    report = differences(setup, Truth(setup, data, steps), results)                            how far it is from the truth
"""

import math
import os
import signal
import time
from dataclasses import dataclass, field

from refimpl.arrays import array_namespace, to_host
from refimpl.measure.meter import Meter
from refimpl.precision import wide
from refimpl.testing import norm_of_all, relative_difference
from refimpl.train import checkpoint, single
from refimpl.train.pieces import whole
from refimpl.train.trainer import Trainer, first_parameters
from refimpl.world.launch import under_mpi

ALLOWED = {                            # relative difference of gradients and losses in the first step, and of all later on
    "float64": (1e-12, 1e-10),
    "float32": (1e-4, 1e-4),
    "float16": (5e-3, 5e-3),
    "bfloat16": (2e-2, 2e-2),
}


class Crash(Exception):
    """A rank was told to die here, to see what becomes of the others."""


class NotFinite(Exception):
    """A number became NaN or infinite."""


class Anomaly:
    """Looks at everything a stage computes, and raises `NotFinite` at the first NaN or infinity: see stage.py."""

    def __init__(self, comm):
        self.rank, self.step = comm.rank, 1

    def __call__(self, part, what, arrays):
        """Look at these arrays."""
        for x in arrays:
            if x.dtype.kind != "i" and not bool(to_host(array_namespace(x).isfinite(wide(x)).all())):
                raise NotFinite(f"step {self.step}, rank {self.rank}: the {what} of {part} is the first to have a number "
                                "that is NaN or infinite; look at what goes into it, or lower the learning rate")


@dataclass(frozen=True)
class Plan:
    """What to do beside training. ValueError for what cannot be done."""

    steps: int = 20                    # after which to stop, counted from the run's beginning
    save: str | None = None            # folder of checkpoints
    every: int = 1                     # steps between two of them
    resume: str | None = None          # folder to go on from
    crash_at: tuple | None = None      # (step, rank), steps counted from 1: dies when the step begins
    detect: bool = False               # look for the first NaN
    measure: bool = True               # memory in the first step
    keep: bool = False                 # the pieces of the first step's gradients and the last parameters, to compare

    def __post_init__(self):
        for name in ("steps", "every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected 1 or more; nearest 1")


@dataclass
class History:
    """What one rank remembers."""

    first: int = 0                     # steps that were done before, by the run that was resumed
    steps: list = field(default_factory=list)          # [single.Step]
    saved: list = field(default_factory=list)          # steps after which a checkpoint was complete
    gradients: dict = field(default_factory=dict)      # pieces, see Plan.keep
    parameters: dict = field(default_factory=dict)
    live: dict = field(default_factory=dict)           # bytes by kind, at rest after the first step
    peak: dict = field(default_factory=dict)           # bytes by kind, each at its most in the first step
    total_peak: int = 0
    clock: float = 0.0                 # virtual seconds at the end
    seconds: float = 0.0               # real ones, of all steps
    settled: float = 0.0               # and of all but the first

    @property
    def losses(self):
        """The loss of each step."""
        return [step.loss for step in self.steps]


def on_rank(comm, setup, data, plan, on_step=None, like=None):
    """Train as one rank; a program for `run`. -> `History`

    on_step    called with the loss after every step        like    an array of the library to compute with
    """
    watch = Anomaly(comm) if plan.detect else None
    trainer = Trainer(comm, setup, data, like=like, watch=watch)
    history = History()
    if plan.resume is not None:
        checkpoint.restore(trainer, plan.resume)
        history.first = trainer.number
    meter = Meter(**trainer.resident)
    start = settled = time.perf_counter()
    while trainer.number < plan.steps:
        first = not history.steps
        maybe_crash(comm, plan, trainer.number + 1)
        trainer.observe(meter.sample if first and plan.measure else None)
        if watch:
            watch.step = trainer.number + 1
        history.steps.append(_step(trainer, history, plan, first))
        if first:
            history.live, history.peak, history.total_peak = meter.sample(), meter.peak, meter.total_peak
            settled = time.perf_counter()
        if plan.save is not None and (trainer.number % plan.every == 0 or trainer.number == plan.steps):
            checkpoint.save(trainer, plan.save)
            history.saved.append(trainer.number)
        if on_step:
            on_step(history.steps[-1].loss)
    end = time.perf_counter()
    history.seconds, history.settled, history.clock = end - start, end - settled, comm.clock
    if plan.keep:
        history.parameters = {name: (at, p.copy()) for name, (at, p) in trainer.held("parameter").items()}
    return history


def _step(trainer, history, plan, first):
    loss = trainer.gradients()
    if first and plan.keep:
        history.gradients = {name: (at, g.copy()) for name, (at, g) in trainer.held("gradients").items()}
    return trainer.update(loss)


def maybe_crash(comm, plan, step):
    """Die if it is this rank's turn: a process by SIGKILL, as when a machine fails; a rank of one process by `Crash`."""
    if plan.crash_at == (step, comm.rank):
        if under_mpi():
            os.kill(os.getpid(), signal.SIGKILL)
        raise Crash(f"rank {comm.rank} was told to die at step {step} (--crash-at)")


class Truth:
    """The same run on one device: the losses, the first gradients, the weights before and after."""

    def __init__(self, setup, data, steps, on_step=None):
        batches = [setup.batch(data, step) for step in range(steps)]
        self.fresh = first_parameters(setup)
        state = single.fresh(self.fresh, setup.recipe, setup.config)
        _, self.gradients = single.loss_and_gradients(state, *batches[0], setup.config, setup.recipe)
        self.steps = single.train(state, batches, setup.config, setup.recipe, on_step)
        self.parameters = state.masters


def differences(setup, truth, ranks):
    """How far a run is from one device.

    truth    `Truth`        ranks    every rank's `History`, with Plan.keep, from the run's beginning
    ->       {"losses": [...] of the one device, "first": {"loss", "gradients"}, "last": {"loss", "weights"},
             "worst": the name of the array that is furthest off, "allowed": {"first", "last"},
             "changed": whether training changed every weight, "skipped_alike", "passed"}
    """
    mine = {kind: whole(setup.config, setup.layout, [getattr(history, kind) for history in ranks])
            for kind in ("gradients", "parameters")}
    losses = [max(relative_difference(history.losses[step], one.loss) for history in ranks)
              for step, one in enumerate(truth.steps)]
    gradient, of_gradients = largest(mine["gradients"], truth.gradients)
    weight, of_weights = largest(mine["parameters"], truth.parameters)
    first, last = ALLOWED[setup.recipe.precision.parameters]
    found = {
        "losses": [step.loss for step in truth.steps],
        "first": {"loss": losses[0], "gradients": of_gradients},
        "last": {"loss": max(losses), "weights": of_weights},
        "worst": f"gradient of {gradient}" if of_gradients > first else weight,
        "allowed": {"first": first, "last": last},
        "changed": all((truth.parameters[name] != p).any() for name, p in truth.fresh.items()),
        "skipped_alike": all([s.skipped for s in history.steps] == [s.skipped for s in truth.steps] for history in ranks),
    }
    found["passed"] = found["changed"] and found["skipped_alike"] and all(
        value <= found["allowed"][when] for when in ("first", "last") for value in found[when].values())
    return found


def largest(mine, truth):
    """The array that is furthest off, and its relative difference: dicts by name, of the same names. NaN is furthest."""
    if mine.keys() != truth.keys():
        raise ValueError(f"the ranks have {', '.join(sorted(mine.keys() ^ truth.keys()))} more or less than one device")
    norm = norm_of_all(truth.values())
    found = {name: relative_difference(mine[name], truth[name], norm) for name in truth}
    worst = max(found, key=lambda name: (math.isnan(found[name]), found[name]))
    return worst, found[worst]
