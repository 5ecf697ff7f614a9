"""One sitting: which questions are asked, in which order, and how an answer is written down."""

from datetime import UTC, datetime

from refimpl.course.quiz.memory import KIND
from refimpl.course.quiz.questions import LEVELS


def choose(questions, memories, lesson=None, level=None, mistakes=False, due=False, now=None):
    """The questions to ask: those of the lesson and level, in the order of the files.

    lesson     "05", "5" or 5; None: of all lessons          level    recall, apply or trap; None: of all
    mistakes   only those whose last answer was wrong         due      only those that should come back by now, the
               longest overdue first; with both, those of either kind
    ValueError for a lesson or a level that there is not.
    """
    lessons = sorted({question.lesson for question in questions})
    if lesson is not None:
        given, lesson = lesson, str(lesson).zfill(2)
        if lesson not in lessons:
            raise ValueError(f"lesson={given!r}: there are questions for {', '.join(lessons)}")
    if level not in (None, *LEVELS):
        raise ValueError(f"level={level!r}: expected {', '.join(LEVELS)}")
    now = now or datetime.now(UTC)
    chosen = [q for q in questions if lesson in (None, q.lesson) and level in (None, q.level)]
    if mistakes or due:
        known = [q for q in chosen if q.id in memories]
        chosen = [q for q in known if mistakes and not memories[q.id].passed or due and memories[q.id].due <= now]
    if due:
        chosen.sort(key=lambda q: memories[q.id].due)
    return chosen


def record(me, shown, choice, retry=False, where=None):
    """Append the answer `choice` to a question as `shown` to the progress `me`. retry: the reason was just shown."""
    detail = {"choice": choice.text, "numbers": shown.numbers, "retry": retry, "where": where}
    return me.add(KIND, shown.question.id, passed=choice.right, detail=detail)


def standing(memory, now=None):
    """A question's state in words: new, missed, due, or the day on which it comes back."""
    if memory is None:
        return "new"
    if not memory.passed:
        return "missed"
    return "due" if memory.due <= (now or datetime.now(UTC)) else f"due {memory.due:%Y-%m-%d}"
