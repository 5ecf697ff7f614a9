"""The fact check: a claim, the learner's guess, and only then what comes out when it is computed again.

    claim  "ZeRO 1 saves 4x, ZeRO 2 saves 8x"      right?  incomplete?  wrong?      then: verdict, number, derivation
    [v][v][x][ ][ ]...                             one cell a claim: guessed right, guessed wrong, not yet

Verdicts are computed by cost/facts when the picture is drawn; nothing here knows one.
"""

import textwrap
from functools import cache

import ipywidgets

from refimpl.cost.facts import VERDICTS, claims
from refimpl.course.widgets.interactive import Explorer, stops
from refimpl.course.widgets.svg import box, picture, text

MEANS = {"right": "its number comes out, always", "incomplete": "in one case, which it does not name",
         "wrong": "it does not come out"}
ACROSS = 122                                               # characters of a line


@cache
def known():
    """{id: Claim}, computed once."""
    return {one.id: one for one in claims()}


def draw_claim(id="h", guess=None, guesses=None):
    """One claim, with the verdict if it has been guessed: a `Picture`. guesses: {id: guess} of all claims so far"""
    guesses = dict(guesses or {}) | ({id: guess} if guess else {})
    found = known()[id]
    shapes, y = [text(12, 26, f"Claim {list(known()).index(id) + 1} of {len(known())}: {id}", 13, kind="faint")], 56
    for row in textwrap.wrap(f"\u201c{found.claim}\u201d", 88):
        shapes.append(text(24, y, row, 17, bold=True))
        y += 25
    for k, name in enumerate(VERDICTS):
        shapes.append(verdict_box(24 + 296 * k, y, name, found.verdict if guess else None, guess))
    y += 76
    if guess is None:
        shapes.append(text(24, y, "Say first: right, incomplete or wrong? The number and its derivation come after it.",
                           13))
        title, words = f"Claim {id}: {found.claim}", "Not guessed yet: right, incomplete or wrong?"
        y += 24
    else:
        hit = guess == found.verdict
        said = "as you said" if hit else f"you said {guess}"
        number = f"{found.value:,.6g} {found.unit}"
        shapes.append(text(24, y, f"{found.verdict.capitalize()}, {said}. What comes out: {number}", 15, bold=True))
        y += 26
        for row in textwrap.wrap(found.derivation, ACROSS):
            shapes.append(text(24, y, row, 13))
            y += 20
        y += 6
        for row in textwrap.wrap(found.source, ACROSS):
            shapes.append(text(24, y, row, 12, kind="faint"))
            y += 18
        title = f"Claim {id} is {found.verdict}, {said}"
        words = f"{found.claim}. {found.value:,.6g} {found.unit}: {found.derivation}. {score(guesses)}"
    shapes.append(tally(y + 8, guesses, id))
    return picture(930, y + 78, *shapes, title=title, words=words)


def verdict_box(x, y, name, right, guess):
    """One of the three answers: marked as the right one, or as the guess that was wrong."""
    kind = "plain" if right is None else "weight" if name == right else "backward" if name == guess else "plain"
    mark = " \u2713" if name == right else " \u2717" if name == guess and right else ""
    return (box(x, y, 282, 34, f"{name}{mark}", kind, 15, bold=name in (right, guess))
            + text(x + 141, y + 50, MEANS[name], 12, "middle", kind="faint"))


def tally(y, guesses, now):
    """A cell for each claim, and how many were right."""
    shapes, across = [], 900 / len(known())
    for k, (id, found) in enumerate(known().items()):
        said = guesses.get(id)
        kind = "plain" if said is None else "weight" if said == found.verdict else "backward"
        label = "" if said is None else "\u2713" if said == found.verdict else "\u2717"
        shapes.append(box(15 + across * k, y, across - 4, 24, label, kind, 13, hint=f"{id}: {found.claim}"))
        if id == now:
            shapes.append(box(15 + across * k, y + 27, across - 4, 3, kind="ink", round=0))
    return "".join(shapes) + text(15, y + 52, score(guesses), 13)


def score(guesses):
    """How many guesses were right, in words."""
    right = sum(known()[id].verdict == said for id, said in guesses.items())
    return f"{right} of {len(guesses)} guessed right, {len(known()) - len(guesses)} to go"


class FactCheck(Explorer):
    """The widget: a slider through the claims, and three buttons. guesses: {id: first guess}, which stay."""

    def __init__(self, claim="h"):
        self.guesses = {}
        which = stops("Claim", claim, list(known()), str)
        buttons = ipywidgets.ToggleButtons(options=[(name, name) for name in VERDICTS], value=None,
                                           description="Your guess", tooltips=list(MEANS.values()))
        super().__init__(self._draw, {"claim": which, "guess": buttons}, name="fact-check")

    def _draw(self, claim, guess):
        if guess is not None:
            self.guesses.setdefault(claim, guess)                  # the first one counts
        return draw_claim(claim, self.guesses.get(claim), self.guesses)

    def _changed(self, change):
        if change["owner"] is self.controls["claim"]:              # another claim: show what was said of it
            moving, self.moving = self.moving, True
            self.controls["guess"].value = self.guesses.get(change["new"])
            self.moving = moving
        super()._changed(change)
