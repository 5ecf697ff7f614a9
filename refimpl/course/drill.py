"""A mock interview: questions to choose from and open ones, mixed over topics, against the clock, with a report.

    plan      as many as fit the minutes: one about each topic, open where there is time, then more in turn
    ask       a choice: 1 to 4, at once right or wrong          open: say it aloud, Enter, compare, count the points
    report    by topic: points of points, what to read again, and what was not answered

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

    Each topic gets a question before any gets a second one. Which of them get the long, open ones, and which none
    where time is too short (`without_time`), is drawn: so another interview asks about others.

    lessons    to ask about; ValueError where there is nothing about any of them, or no time for anything
    """
    if not minutes >= CHOICE_MINUTES:
        raise ValueError(f"minutes={minutes:g}: expected time for a question at least; nearest {CHOICE_MINUTES:g}")
    pools = {lesson: _shuffled([o for o in opens if o.lesson == lesson], rng)
             + _shuffled([q for q in questions if q.lesson == lesson], rng) for lesson in lessons}
    if not any(pools.values()):
        raise ValueError(f"there are no questions about {', '.join(lessons)}")
    chosen, left, turns = [], minutes, _shuffled(list(pools), rng)
    kept = sum(map(shortest, pools.values()))                # minutes, for the topics that have no question yet
    while any(pools.values()):
        for lesson in turns:
            least = shortest(pools[lesson])
            kept = max(kept - least, 0)
            room = min(max(left - kept, least), left)
            fitting = next((q for q in pools[lesson] if minutes_of(q) <= room), None)
            if fitting is None:
                pools[lesson] = []
            else:
                pools[lesson].remove(fitting)
                chosen.append(fitting)
                left -= minutes_of(fitting)
    return sorted(chosen, key=lambda q: lessons.index(q.lesson))


def without_time(chosen, questions, opens, lessons):
    """(topics of these lessons that a plan has no question about, the minutes that a question about each would take)"""
    pools = {lesson: [q for q in (*opens, *questions) if q.lesson == lesson] for lesson in lessons}
    missing = [TOPICS[lesson] for lesson in pools if pools[lesson] and lesson not in {q.lesson for q in chosen}]
    return missing, sum(map(shortest, pools.values()))


def shortest(pool):
    """Minutes of the shortest of these questions; 0 where there is none."""
    return min(map(minutes_of, pool), default=0)


def minutes_of(question):
    """How long a question takes."""
    return question.minutes if isinstance(question, Open) else CHOICE_MINUTES


def _shuffled(questions, rng):
    return rng.sample(questions, len(questions))


def hold(chosen, me, minutes, read=input, write=print, rng=random, clock=time.monotonic):
    """Ask them until the time is over, or q. -> {lesson: `Score`}. Every answer is remembered by the progress `me`."""
    end, scores = clock() + 60 * minutes, {}
    for number, question in enumerate(chosen, start=1):
        left = end - clock()
        if left <= 0:
            write("\nTime is over.")
            break
        write(f"\nQuestion {number} of {len(chosen)}    {TOPICS[question.lesson]}    {left / 60:.0f} minutes left, "
              f"{minutes_of(question):g} for this one\n")
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
    write("")
    for k, choice in enumerate(shown.choices, start=1):
        write(wrapped(choice.text, f"    {k}  "))
    choice = typed(shown.choices, read, write)
    if choice == "stop":
        return choice
    if choice is not None:
        record(me, shown, choice, where="drill")
        write("")
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
        write("\n  A good answer")
        left_out = [point for point in question.rubric if not _said(point, read, write)]
    except EOFError:                                     # half a grade is none
        return "stop"
    points, most = len(question.rubric) - len(left_out), len(question.rubric)
    write(f"\n  {points} of {most} points.")
    me.add(KIND, question.id, passed=not left_out, detail={"points": points, "most": most, "left_out": left_out})
    return points, most


def _said(point, read, write):
    """Whether the learner said it. EOFError at the end of the input, which q is, too."""
    write(wrapped(point, "  - "))
    while True:
        line = read("Did you say that? y or n, q stops: ").strip().lower()
        if line in ("y", "yes", "n", "no", ""):
            return line in ("y", "yes")
        if line in ("q", "quit"):
            raise EOFError
        write(f"{line!r} is no answer here.")


def report(scores, chosen=()):
    """The result as text: by topic, what to read again, and which topics of the plan got no answer."""
    unseen = [TOPICS[lesson] for lesson in dict.fromkeys(q.lesson for q in chosen) if lesson not in scores]
    not_answered = [f"Not answered: {', '.join(unseen)}."] if unseen else []
    if not scores:
        return "\n".join(["Nothing answered.", *not_answered])
    lines = [f"{'topic':22} {'points':>8}  lesson"]
    for lesson, score in sorted(scores.items()):
        lines.append(f"{TOPICS[lesson]:22} {f'{score.points} of {score.most}':>8}  {lesson}")
    points, most = sum(s.points for s in scores.values()), sum(s.most for s in scores.values())
    lines.append(f"{'together':22} {f'{points} of {most}':>8}  {points / most:.0%}")
    missed = [q for _, score in sorted(scores.items()) for q in score.missed]
    if missed:
        lines += ["", "Read again:"]
        lines += [f"  {q.id}: lesson {q.lesson}, {TOPICS[q.lesson]}" for q in missed]
    return "\n".join([*lines, *[""] * bool(unseen), *not_answered])
