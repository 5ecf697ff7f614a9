"""The quiz: questions that are data, keys that are computed twice, mistakes that come back.

    from refimpl.course.quiz import quiz
    quiz("05")                           in a notebook: the questions of lesson 05
    quiz(mistakes=True)                  what was answered wrong last time

In a terminal: python -m refimpl quiz. Answers go to the learner's progress file (refimpl/course/progress.py).
"""

import random


def quiz(lesson=None, level=None, mistakes=False, due=False, seed=None):
    """The questions as a notebook widget: of a lesson, a level, the ones missed last time, the ones due by now.

    seed    of the numbers and the order of the choices; None: others every time
    ValueError for a lesson or a level that there is not.
    """
    from refimpl.course.progress import progress
    from refimpl.course.quiz.memory import KIND, memories
    from refimpl.course.quiz.questions import load
    from refimpl.course.quiz.session import choose
    from refimpl.course.quiz.widget import Quiz

    me = progress()
    remembered = memories(me.attempts(KIND))
    questions = choose(load(), remembered, lesson, level, mistakes, due)
    empty = nothing_to_ask(mistakes, due, remembered)
    return Quiz(questions, remembered, me, empty=empty, rng=random.Random(seed))


def nothing_to_ask(mistakes, due, remembered):
    """What to say when no question is left. remembered: {id of a question: `Memory`}, for when the next is due."""
    if mistakes and due:
        return "No mistakes, and nothing is due."
    if due:
        days = sorted(f"{memory.due.astimezone():%Y-%m-%d}" for memory in remembered.values())
        return "Nothing is due by now" + (f"; the next question comes back on {days[0]}." if days else ".")
    return "No mistakes to come back to." if mistakes else "There are no such questions."
