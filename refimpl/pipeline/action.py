"""Actions: what a rank of a pipeline does, one at a time.

    0F3        stage 0, forward of micro-batch 3
    0B3        its backward, whole: I and W together
    0I3        only the gradient with respect to the input, which the stage before waits for
    0W3        only the gradient of the weights, which nobody waits for; some time after 0I3
    (0F7;7B3)  two of them that run as one: both start when both may, both end together

A schedule is a list of these for every rank, and nothing else: data that can be printed, checked, timed, drawn and run.
The names I and W are PyTorch's; the Zero Bubble paper calls them B and W (Qi et al. 2023, section 2).
"""

import re
from typing import NamedTuple

KINDS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
PAIR = re.compile(rf"\(({ACTION.pattern});({ACTION.pattern})\)")


class Action(NamedTuple):
    """One stage's work on one micro-batch. kind: "F", "B", "I" or "W"."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self):
        return f"{self.stage}{self.kind}{self.microbatch}"


class Pair(NamedTuple):
    """Two actions that run as one, such as a forward whose computing hides the messages of a backward (DualPipe)."""

    first: Action
    second: Action

    def __str__(self):
        return f"({self.first};{self.second})"


def parts(action):
    """The one or two simple actions that `action` is made of."""
    return action if type(action) is Pair else (action,)


def parse(text):
    """The `Action` or `Pair` that `text` names, such as "0F3" or "(0F7;7B3)"; ValueError when it names none."""
    if found := ACTION.fullmatch(text):
        return Action(int(found[1]), found[2], int(found[3]))
    if found := PAIR.fullmatch(text):
        return Pair(parse(found[1]), parse(found[5]))
    raise ValueError(f"{text!r} is no action: write stage, kind (F, B, I or W) and micro-batch, such as 0F3, "
                     "or two as one, such as (0F7;7B3)")
