"""What is known of an exercise before anybody tries it."""

from dataclasses import dataclass, field

KINDS = ("implement", "count", "find the bug", "design")


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    difficulty    1 to 3    minutes    for a learner who has just done the lesson    hints    each more explicit
    points        for who keeps count    advice    {diagnosis: a sentence that says what to do about it, here}
    kind          "implement" an operator; "count" bytes, FLOPs or bubbles, held against a count; "find the bug" in code
                  that was wrong somewhere; "design" a layout that fits, and is about as fast as par
    """

    number: int
    name: str
    title: str
    lesson: str
    difficulty: int
    minutes: int
    hints: tuple
    points: int = 10
    advice: dict = field(default_factory=dict)
    kind: str = "implement"

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} of exercise {self.name}: expected one of {', '.join(KINDS)}")

    @property
    def filename(self):
        """The name of its file, in exercises/ and in solutions/."""
        return f"{self.number:02}_{self.name}.py"

    @property
    def heading(self):
        """The first line of its file."""
        return (f"Exercise {self.number:02}: {self.title} (lesson {self.lesson}, about {self.minutes} minutes, "
                f"difficulty {self.difficulty} of 3).")
