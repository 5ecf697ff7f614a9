"""What is remembered of each question, and when it should come back: spaced repetition, replayed from the attempts.

    attempts   ring-bits wrong (Monday)   ring-bits right (Tuesday)
    replayed   due Tuesday                due later and later, the more often it was right

Nothing but the attempts is stored. The schedule is what the `fsrs` library makes of them, oldest first, without its
random fuzz and its steps of minutes: the same attempts give the same days, whoever wrote them in whatever order.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from fsrs import Card, Rating, Scheduler

KIND = "quiz"                                            # of the attempts in the progress file


@dataclass(frozen=True)
class Memory:
    """What is known of one question: times asked, whether the last answer was right, when it is due (UTC)."""

    asked: int
    passed: bool
    due: datetime


def memories(attempts):
    """{id of a question: `Memory`} from attempts of any order and kind.

    A second try, right after the reason was shown, is no sign of memory: it counts for nothing here.
    """
    scheduler = Scheduler(learning_steps=(), relearning_steps=(), enable_fuzzing=False)
    cards, found = {}, {}
    for attempt in sorted(filter(counts, attempts), key=lambda attempt: (attempt.when, attempt.name, attempt.passed)):
        card = cards.get(attempt.name) or Card(card_id=1)
        rating = Rating.Good if attempt.passed else Rating.Again
        cards[attempt.name], _ = scheduler.review_card(card, rating, attempt.when.astimezone(UTC))
        asked = found[attempt.name].asked if attempt.name in found else 0
        found[attempt.name] = Memory(asked + 1, attempt.passed, cards[attempt.name].due)
    return found


def counts(attempt):
    """Whether an attempt says something about memory: an answer to a question, and not a second try."""
    second_try = isinstance(attempt.detail, dict) and attempt.detail.get("retry")
    return attempt.kind == KIND and attempt.passed is not None and not second_try
