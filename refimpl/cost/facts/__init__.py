"""What popular material claims about large-scale training, computed again.

Every claim is a function that computes: what the claim is about, from the formulas that the operators are measured
against, and whether the claim's number comes out. So a verdict is found, not written down:

    right         the number comes out, whenever what it says is given
    incomplete    it comes out in one case, which the claim does not name, and not in others
    wrong         it does not come out

Letters a to t are claims as they circulate; the others are the usual answers to the usual questions.
"""

from dataclasses import dataclass
from importlib import import_module

RIGHT, INCOMPLETE, WRONG = VERDICTS = "right", "incomplete", "wrong"
FILES = ("layouts", "memory", "traffic", "pipelines")


@dataclass(frozen=True)
class Claim:
    """A claim and what became of it.

    value         the number that is right, in `unit`        derivation    how it comes about, with its numbers
    source        where the right one can be read
    """

    id: str
    claim: str
    verdict: str
    value: float
    unit: str
    derivation: str
    source: str


_computed = []                             # (id, claim, source, function), as the files are imported


def claim(id, says, source):
    """Registers a function() -> verdict, value, unit, derivation."""
    def register(function):
        _computed.append((id, says, source, function))
        return function

    return register


def verdict(holds, always=True):
    """Of whether a claim's number comes out in the case that it is about, and whenever what it says is given."""
    return (RIGHT if always else INCOMPLETE) if holds else WRONG


def claims():
    """All of them, computed: a to t, then the others."""
    for file in FILES:
        import_module(f"refimpl.cost.facts.{file}")
    found = [Claim(id, says, *function(), source) for id, says, source, function in _computed]
    return sorted(found, key=lambda one: (len(one.id) > 1, one.id if len(one.id) == 1 else ""))


def close(a, b, within=0.005):
    """Whether two numbers are the same, as printed."""
    return abs(a - b) <= within * abs(b)
