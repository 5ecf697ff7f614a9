"""What is known of an exercise before anybody tries it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    difficulty    1 to 3    minutes    for a learner who has just done the lesson    hints    each more explicit
    points        for who keeps count    advice    {diagnosis: a sentence that says what to do about it, here}
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

    @property
    def filename(self):
        """The name of its file, in exercises/ and in solutions/."""
        return f"{self.number:02}_{self.name}.py"

    @property
    def heading(self):
        """The first line of its file."""
        return (f"Exercise {self.number:02}: {self.title} (lesson {self.lesson}, about {self.minutes} minutes, "
                f"difficulty {self.difficulty} of 3).")
