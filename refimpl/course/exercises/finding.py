"""What a check says: `Wrong` is raised where something is found, a `Verdict` is what the learner reads.

    ring_all_reduce ✗ values are right, traffic is not
      4 ranks, 100 elements: each rank sent 300 elements in 3 messages; a ring sends 150 in 6.
      You seem to send the whole array to every rank. Split it into 4 chunks first.
"""

from dataclasses import dataclass

PASSED = "passed"
NOT_IMPLEMENTED = "not implemented"


class Wrong(Exception):
    """Something is wrong: the diagnosis, a headline, and lines of detail."""

    def __init__(self, diagnosis, headline, *details):
        super().__init__(headline)
        self.diagnosis, self.headline, self.details = diagnosis, headline, details


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check: print it, or leave it as the last line of a cell.

    diagnosis    "passed", or the kind of mistake (see verdict.py)    details    lines
    score        of points
    """

    name: str
    diagnosis: str
    headline: str
    details: tuple = ()
    score: float = 0
    points: float = 0

    @property
    def passed(self):
        """Whether the exercise is solved."""
        return self.diagnosis == PASSED

    def __str__(self):
        mark = "✓" if self.passed else "✗"
        lines = [f"  {line}" for detail in self.details for line in detail.split("\n")]
        return "\n".join([f"{self.name} {mark} {self.headline}", *lines])

    __repr__ = __str__
