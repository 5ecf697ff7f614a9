"""Pipelines: schedules as data, checked, timed, drawn and executed.

    schedule = build("1f1b", stages=4, microbatches=8)       who does what, in which order
    check(schedule)                                          can it run at all?
    t = simulate(schedule, hop=0.1)                          how long does it take, who waits for whom, what is kept
    execute(schedule, comm, stages, inputs, loss)            do it, as one of its ranks
"""

from refimpl.pipeline.action import Action, Pair, parse
from refimpl.pipeline.check import ScheduleError, check, happens_before
from refimpl.pipeline.runner import Step, execute
from refimpl.pipeline.schedule import Schedule, layers_of
from refimpl.pipeline.schedules import ABOUT, FAMILIES, NAMES, build
from refimpl.pipeline.stage import Layers
from refimpl.pipeline.timeline import Times, simulate

__all__ = ["ABOUT", "FAMILIES", "NAMES", "Action", "Layers", "Pair", "Schedule", "ScheduleError", "Step", "Times",
           "build", "check", "execute", "happens_before", "layers_of", "parse", "simulate"]
