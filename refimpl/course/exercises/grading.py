"""How what a check does becomes points: one rule for all, since the corner cases are where graders go wrong.

    returns nothing                 all points        raises                          0
    returns True or False           all, or 0         returns a number                that many, but not more than all
    returns NaN, or below 0         0                 returns anything else           an error of the check

An exercise of 0 points is passed by whoever gets its 0 points without an error.
"""

import math
from numbers import Real
from typing import NamedTuple


class Grade(NamedTuple):
    """score of points; error: the exception that the check raised, or None."""

    score: float
    points: float
    error: Exception | None = None

    @property
    def passed(self):
        """Whether all points were reached, and nothing was raised."""
        return self.error is None and self.score >= self.points


def grade(check, points):
    """Run `check()`, whose exercise is worth `points`; the `Grade`. Ctrl-C is nobody's mistake and goes on."""
    try:
        outcome = check()
    except Exception as error:
        return Grade(0, points, error)
    if outcome is None or outcome is True:
        return Grade(points, points)
    if not isinstance(outcome, Real):
        raise TypeError(f"a check returned {outcome!r}: expected nothing, True, False or a number of points")
    if math.isnan(outcome) or outcome < 0:
        return Grade(0, points, ValueError(f"a check returned {outcome!r} points"))
    return Grade(min(outcome, points) if outcome is not False else 0, points,
                 ValueError("the check says no") if outcome is False else None)
