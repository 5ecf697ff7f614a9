"""A whole run on one rank: steps, checkpoints, faults on purpose, and what is remembered of it all.

    results = run(on_rank, setup.layout.world, setup, data, Plan(steps=20), ledger=log)        a History from every rank
    report = differences(setup, Truth(setup, data, steps), results)                        how far it is from the truth
"""

import math
import time
from dataclasses import dataclass, field, replace

from refimpl.arrays import to_host
from refimpl.measure.meter import Meter
from refimpl.precision import LossScale, wide
from refimpl.testing import norm_of_all, relative_difference
from refimpl.train import checkpoint, single
from refimpl.train.faults import Anomaly, maybe_crash
from refimpl.train.pieces import whole
from refimpl.train.trainer import Trainer, first_parameters

ALLOWED = {                            # relative difference of gradients and losses in the first step; of all later on
    "float64": (1e-12, 1e-10),
    "float32": (1e-4, 1e-4),
    "float16": (5e-3, 5e-3),
    "bfloat16": (2e-2, 2e-2),
}


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
    keep: bool = False                 # gradients of the first step that is not skipped, and the last parameters

    def __post_init__(self):
        for name in ("steps", "every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected 1 or more; nearest 1")


@dataclass
class History:
    """What one rank remembers."""

    first: int = 0                     # steps that were done before, by the run that was resumed
    resumed: str | None = None         # the checkpoint that this one goes on from
    steps: list = field(default_factory=list)          # [single.Step]
    saved: list = field(default_factory=list)          # steps after which a checkpoint was complete
    gradients: dict = field(default_factory=dict)      # pieces, see Plan.keep and pieces.py
    parameters: dict = field(default_factory=dict)
    biases: dict = field(default_factory=dict)         # of experts' routers, whole
    live: dict = field(default_factory=dict)           # bytes by kind, at rest after the first step
    peak: dict = field(default_factory=dict)           # bytes by kind, each at its most in the first step
    total_peak: int = 0
    began: float = 0.0                 # virtual seconds when the last step began,
    clock: float = 0.0                 # and when it had ended
    seconds: float = 0.0               # real ones, of all steps
    settled: float = 0.0               # and of all but the first

    @property
    def losses(self):
        """The loss of each step."""
        return [step.loss for step in self.steps]


def on_rank(comm, setup, data, plan, on_step=None, like=None):
    """Train as one rank; a program for `run`. -> `History`

    on_step    called with the loss after every step        like    an array of the library to compute with
    `Failure` ends it: a NaN that was looked for, a crash on purpose, a checkpoint that cannot be written.
    """
    watch = Anomaly(comm) if plan.detect else None
    trainer = Trainer(comm, setup, data, like=like, watch=watch)
    history = History()
    if plan.resume is not None:
        history.resumed = str(checkpoint.restore(trainer, plan.resume))
        history.first = trainer.number
    meter = Meter(**trainer.resident)
    start = settled = time.perf_counter()
    while trainer.number < plan.steps:
        first = not history.steps
        maybe_crash(comm, plan.crash_at, trainer.number + 1, plan.save or plan.resume)
        trainer.observe(meter.sample if first and plan.measure else None)
        if watch:
            watch.step = trainer.number + 1
        history.began = comm.clock
        history.steps.append(_step(trainer, history, plan))
        history.clock = comm.clock
        if first:
            history.live, history.peak, history.total_peak = meter.sample(), meter.peak, meter.total_peak
            settled = time.perf_counter()
        if plan.save is not None and (trainer.number % plan.every == 0 or trainer.number == plan.steps):
            checkpoint.save(trainer, plan.save)
            history.saved.append(trainer.number)
        if on_step:
            on_step(history.steps[-1].loss)
    end = time.perf_counter()
    history.seconds, history.settled = end - start, end - settled
    if plan.keep:
        history.parameters = {name: (at, p.copy()) for name, (at, p) in trainer.held("parameter").items()}
        history.biases = {name: to_host(bias).copy() for name, bias in trainer.buffers.items()}
    return history


def _step(trainer, history, plan):
    loss = trainer.gradients()
    if plan.keep and all(step.skipped for step in history.steps):            # the first that counts
        history.gradients = {name: (at, g.copy()) for name, (at, g) in trainer.held("gradients").items()}
    return trainer.update(loss)


class Truth:
    """The same run on one device: losses, gradients of the first step that is not skipped, weights before and after."""

    def __init__(self, setup, data, steps, on_step=None):
        batches = [setup.batch(data, step) for step in range(steps)]
        self.fresh = first_parameters(setup)
        state = single.fresh(self.fresh, setup.recipe, setup.config)
        self.steps = single.train(state, batches, setup.config, setup.recipe, on_step)
        self.parameters, self.biases = state.masters, state.buffers
        first = next((number for number, step in enumerate(self.steps) if not step.skipped), 0)
        recipe = replace(setup.recipe, scale=LossScale(self.steps[first].scale) if setup.recipe.scale else None)
        _, self.gradients = single.loss_and_gradients(single.fresh(self.fresh, recipe, setup.config), *batches[first],
                                                      setup.config, recipe, first)


def differences(setup, truth, ranks):
    """How far a run is from one device.

    truth    `Truth`        ranks    every rank's `History`, with Plan.keep, from the run's beginning
    ->       {"losses": [...] of the one device, "first": {"loss", "gradients"}, "last": {"loss", "weights"},
             "worst": what is off, the furthest array of its kind; None if nothing is, "allowed": {"first", "last"},
             "changed": whether training changed every weight, "skipped_alike", "passed"}
    """
    mine = {kind: whole(setup.config, setup.layout, [getattr(history, kind) for history in ranks])
            for kind in ("gradients", "parameters")}
    precision = setup.recipe.precision
    losses = [max(relative_difference(history.losses[step], one.loss) for history in ranks)
              for step, one in enumerate(truth.steps)]
    gradient, of_gradients = largest(mine["gradients"], truth.gradients)
    weight, of_weights = largest(mine["parameters"], truth.parameters, precision.parameters != "float64")
    of_biases = max((relative_difference(bias, truth.biases[name]) for history in ranks
                     for name, bias in history.biases.items()), default=0.0)
    first, last = (max(pair) for pair in zip(ALLOWED[precision.parameters], ALLOWED[precision.grad_dtype]))
    suspects = {f"gradient of {gradient}": of_gradients > first,
                "some router's bias": of_biases > max(of_weights, last),
                weight: of_weights > last, "the loss": max(losses) > last}
    found = {
        "losses": [step.loss for step in truth.steps],
        "first": {"loss": losses[0], "gradients": of_gradients},
        "last": {"loss": max(losses), "weights": max(of_weights, of_biases)},
        "worst": next((name for name, off in suspects.items() if off), None),
        "allowed": {"first": first, "last": last},
        "changed": all((truth.parameters[name] != p).any() for name, p in truth.fresh.items()),
        "skipped_alike": all([step.skipped for step in history.steps] == [step.skipped for step in truth.steps]
                             for history in ranks),
    }
    found["passed"] = found["changed"] and found["skipped_alike"] and all(
        value <= found["allowed"][when] for when in ("first", "last") for value in found[when].values())
    return found


def largest(mine, truth, together=False):
    """The array that is furthest off, and its relative difference: dicts by name, of the same names. NaN is furthest.

    together    of all arrays as one, not of the furthest: of weights that were trained in less than float64. Adam
                divides by a gradient's size, so where the truth is 0, as for the keys' bias, rounding becomes steps
    """
    if mine.keys() != truth.keys():
        raise ValueError(f"the ranks have {', '.join(sorted(mine.keys() ^ truth.keys()))} more or less than one device")
    mine, truth = ({name: wide(array) for name, array in arrays.items()} for arrays in (mine, truth))
    norm = norm_of_all(truth.values())
    found = {name: relative_difference(mine[name], truth[name], norm) for name in truth}
    worst = max(found, key=lambda name: (math.isnan(found[name]), found[name]))
    if together:
        return worst, norm_of_all(mine[name] - truth[name] for name in truth) / norm
    return worst, found[worst]
