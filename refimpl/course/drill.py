"""A mock interview: questions to choose from and open ones, mixed over topics, against the clock, with a report.

    plan      as many as fit the minutes: for each topic in turn an open question, then shorter ones
    ask       a choice: 1 to 4, at once right or wrong          open: say it aloud, Enter, compare, count the points
    report    by topic: points of points, and what to read again

Topics are lessons, by number or name. Every answer is remembered as the quiz's are (progress.py); open ones as `drill`.
"""

import random
import time
from dataclasses import dataclass
from difflib import get_close_matches

from refimpl.course.interview import Open
from refimpl.course.quiz.session import record
from refimpl.course.quiz.terminal import feedback, typed, wrapped

KIND = "drill"                                           # of the attempts at open questions in the progress file
CHOICE_MINUTES = 1.25                                    # for a question with choices
TOPICS = {
    "00": "the map", "01": "collectives", "02": "data parallelism", "03": "memory", "04": "zero",
    "05": "tensor parallelism", "06": "sequence parallelism", "07": "context parallelism", "08": "pipelines",
    "09": "experts", "10": "composing", "11": "layouts", "12": "clusters", "13": "facts",
}


@dataclass
class Score:
    """Of one topic: points reached, points there were, and the questions that were missed, each with its lesson."""

    points: int = 0
    most: int = 0
    missed: tuple = ()


def lessons_of(topics):
    """The lessons that these topics are about: "8", "08", "pipelines". ValueError with the nearest for any other."""
    found = []
    for topic in topics:
        word = topic.strip().lower()
        lesson = word.zfill(2) if word.isdigit() else next((n for n, name in TOPICS.items() if name == word), None)
        if lesson not in TOPICS:
            near = get_close_matches(word, TOPICS.values(), n=1, cutoff=0.3)
            hint = f"nearest {near[0]!r}" if near else f"expected a lesson's number or {', '.join(TOPICS.values())}"
            raise ValueError(f"topic {topic!r}: {hint}")
        found.append(lesson)
    return found


def plan(questions, opens, lessons, minutes, rng=random):
    """What is asked in so many minutes: [Question or Open], topic by topic, the open ones first.

    lessons    to ask about, in turn; ValueError where there is nothing about any of them, or no time for anything
    """
    if not minutes >= CHOICE_MINUTES:
        raise ValueError(f"minutes={minutes:g}: expected time for a question at least; nearest {CHOICE_MINUTES:g}")
    pools = {lesson: _shuffled([o for o in opens if o.lesson == lesson], rng)
             + _shuffled([q for q in questions if q.lesson == lesson], rng) for lesson in lessons}
    if not any(pools.values()):
        raise ValueError(f"there are no questions about {', '.join(lessons)}")
    chosen, left = [], minutes
    while any(pools.values()):
        for lesson in lessons:
            fitting = next((q for q in pools[lesson] if minutes_of(q) <= left), None)
            if fitting is None:
                pools[lesson] = []
            else:
                pools[lesson].remove(fitting)
                chosen.append(fitting)
                left -= minutes_of(fitting)
    return sorted(chosen, key=lambda q: lessons.index(q.lesson))


def minutes_of(question):
    """How long a question takes."""
    return question.minutes if isinstance(question, Open) else CHOICE_MINUTES


def _shuffled(questions, rng):
    return rng.sample(questions, len(questions))


def hold(chosen, me, minutes, read=input, write=print, rng=random, clock=time.monotonic):
    """Ask them until the time is over. -> {lesson: `Score`}. Every answer is remembered by the progress `me`."""
    end, scores = clock() + 60 * minutes, {}
    for number, question in enumerate(chosen, start=1):
        left = end - clock()
        if left <= 0:
            write("\nTime is over.")
            break
        write(f"\nQuestion {number} of {len(chosen)}    {TOPICS[question.lesson]}    {left / 60:.0f} minutes left\n")
        answer = _ask_open if isinstance(question, Open) else _ask_choice
        reached = answer(question, me, read, write, rng)
        if reached == "stop":
            break
        score = scores.setdefault(question.lesson, Score())
        points, most = reached
        score.points, score.most = score.points + points, score.most + most
        if points < most:
            score.missed += (question,)
    return scores


def _ask_choice(question, me, read, write, rng):
    shown = question.show(rng)
    write(wrapped(shown.stem))
    for k, choice in enumerate(shown.choices, start=1):
        write(wrapped(choice.text, f"    {k}  "))
    choice = typed(shown.choices, read, write)
    if choice == "stop":
        return choice
    if choice is not None:
        record(me, shown, choice, where="drill")
        write(wrapped(feedback(shown, choice)))
    return (1, 1) if choice is not None and choice.right else (0, 1)


def _ask_open(question, me, read, write, rng):
    write(wrapped(question.question))
    try:
        if read("Say your answer aloud; Enter shows ours, q stops: ").strip().lower() in ("q", "quit"):
            return "stop"
        for heading, text in (("Answer", question.answer), ("Why, without formulas", question.intuition),
                              ("In a minute", question.aloud), ("Worked", question.example)):
            write(f"\n  {heading}")
            write(wrapped(text, "    "))
        met = []
        for point in question.rubric:
            write(wrapped(point, "  - "))
            met.append(read("Did you say that? y or n: ").strip().lower() in ("y", "yes"))
    except EOFError:
        return "stop"
    me.add(KIND, question.id, passed=all(met), detail={"points": sum(met), "most": len(met)})
    return sum(met), len(met)


def report(scores):
    """The result as text: by topic, and what to read again."""
    if not scores:
        return "Nothing answered."
    lines = [f"{'topic':22} {'points':>8}  lesson"]
    for lesson, score in sorted(scores.items()):
        lines.append(f"{TOPICS[lesson]:22} {f'{score.points} of {score.most}':>8}  {lesson}")
    points, most = sum(s.points for s in scores.values()), sum(s.most for s in scores.values())
    lines.append(f"{'together':22} {f'{points} of {most}':>8}  {points / most:.0%}")
    missed = [q for _, score in sorted(scores.items()) for q in score.missed]
    if missed:
        lines += ["", "Read again:"]
        lines += [f"  {q.id}: lesson {q.lesson}, {TOPICS[q.lesson]}" for q in missed]
    return "\n".join(lines)
