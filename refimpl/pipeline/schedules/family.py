"""What a file in this folder says about its schedule.

Letters in all of them: p ranks, m micro-batches, v chunks on a rank; a row is the list of one rank, r or `rank`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from refimpl.pipeline.action import Action


@dataclass(frozen=True)
class Family:
    """A way to make schedules of any size.

    name         what `build` and the command call it
    about        one line for people who choose
    row          row(rank, p, m, v) -> list of one rank
    placement    "loop" or "v"
    chunks       v, unless the caller says otherwise; `any_chunks`: whether he may
    limits       limits(p, m, v) raises ValueError, which says what works, where there is no such schedule
    """

    name: str
    about: str
    row: Callable
    placement: str = "loop"
    chunks: int = 1
    any_chunks: bool = False
    limits: Callable | None = None


class Lane:
    """One stage of a rank, which takes its micro-batches in order, one kind of action at a time."""

    def __init__(self, stage):
        self.stage, self.done = stage, dict.fromkeys("FIW", 0)

    def next(self, kind):
        """The stage's next action of this kind; a B is the next I and the next W in one."""
        k = self.done["I" if kind == "B" else kind]
        for half in "IW" if kind == "B" else kind:
            self.done[half] = k + 1
        return Action(self.stage, kind, k)
