"""python -m refimpl drill: a mock interview over the topics you choose, against the clock."""

import json
import sys

HELP = "a timed mock interview: questions to choose from and open ones, scored by topic"


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("--topics", metavar="A,B",
                        help="lessons by number or name, such as 01,pipelines,zero (default: all)")
    parser.add_argument("--minutes", type=float, default=30, metavar="M", help="of the interview (default 30)")
    parser.add_argument("--seed", type=int, metavar="N", help="draw the same questions again")
    parser.add_argument("--list", action="store_true", help="print the open questions with their answers; ask nothing")
    parser.add_argument("--json", action="store_true", help="print the open questions as JSON; ask nothing")


def main(args):
    """Hold the interview; the exit status."""
    import random

    from refimpl.course import drill, interview
    from refimpl.course.progress import progress
    from refimpl.course.quiz.questions import load
    from refimpl.course.quiz.terminal import wrapped

    opens, questions = interview.load(), load()
    there = sorted({q.lesson for q in (*opens, *questions)})
    lessons = there if args.topics is None else drill.lessons_of(args.topics.split(","))
    opens = [q for q in opens if q.lesson in lessons]
    if args.json:
        print(json.dumps({"questions": [vars(q) for q in opens]}))
        return 0
    if args.list:
        print("\n\n".join(map(described, opens)))
        return 0
    rng = random.Random(args.seed)
    chosen = drill.plan(questions, opens, lessons, args.minutes, rng)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    me = progress()
    print(f"{len(chosen)} question{'s' * (len(chosen) != 1)}, {args.minutes:g} minutes. "
          "Answer aloud as you would to a person.")
    missing, enough = drill.without_time(chosen, questions, opens, lessons)
    if missing:
        print(wrapped(f"No time for {', '.join(missing)}: one question about each topic takes {enough:g} minutes.", ""))
    scores = drill.hold(chosen, me, args.minutes, input, rng=rng)
    print(f"\n{drill.report(scores, chosen)}")
    for message in me.messages():
        print(f"note: {message}", file=sys.stderr)
    return 0


def described(question):
    """An open question and all there is to it, as text."""
    from refimpl.course.quiz.terminal import wrapped

    lines = [f"{question.id}    {question.topic}, lesson {question.lesson}, {question.minutes} minutes", "",
             wrapped(question.question)]
    for heading, text in (("Answer", question.answer), ("Why", question.intuition), ("In a minute", question.aloud),
                          ("Worked", question.example)):
        lines += ["", f"  {heading}", wrapped(text, "    ")]
    return "\n".join([*lines, "", "  A good answer", *(wrapped(point, "    - ") for point in question.rubric)])
