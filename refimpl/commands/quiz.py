"""python -m refimpl quiz: questions in the terminal, with the reason at once; mistakes come back."""

import json
import sys

HELP = "answer questions, get the reason at once, and meet your mistakes again"


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("--lesson", metavar="NN", help="only questions of this lesson, such as 05")
    parser.add_argument("--level", metavar="LEVEL", help="only recall, apply or trap")
    parser.add_argument("--mistakes", action="store_true", help="only those whose last answer was wrong")
    parser.add_argument("--due", action="store_true", help="only those that should come back by now")
    parser.add_argument("--list", action="store_true", help="list the questions and how they stand; ask nothing")
    parser.add_argument("--export", metavar="FILE", help="write them to a file: .md to print, .tsv cards, .json data")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else; ask nothing")


def main(args):
    """List, export or ask; the exit status."""
    from refimpl.course.progress import progress
    from refimpl.course.quiz import nothing_to_ask
    from refimpl.course.quiz.export import as_data, check_export_file, export
    from refimpl.course.quiz.memory import KIND, memories
    from refimpl.course.quiz.questions import load
    from refimpl.course.quiz.session import choose

    me = progress()
    remembered = memories(me.attempts(KIND))
    questions = choose(load(), remembered, args.lesson, args.level, args.mistakes, args.due)
    say(me.messages())
    if args.export is not None:
        check_export_file(args.export)
        export(args.export, questions, remembered)
    if args.json:
        print(json.dumps({"questions": [as_data(q, remembered.get(q.id)) for q in questions]}))
    elif args.export is not None:
        print(f"{len(questions)} questions: {args.export}")
    elif args.list:
        print(table(questions, remembered))
    elif not questions:
        print(nothing_to_ask(args.mistakes, args.due, remembered))
    else:
        ask_here(questions, me)
    return 0


def ask_here(questions, me):
    """Ask in this terminal; one that lacks a character shows a question mark for it."""
    from refimpl.course.quiz.terminal import ask

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    ask(questions, me)


def table(questions, remembered):
    """The questions, one a line: id, lesson, level, how it stands."""
    from refimpl.course.quiz.session import standing

    lines = [f"{'question':24} {'lesson':6} {'level':7} standing"]
    lines += [f"{q.id:24} {q.lesson:6} {q.level:7} {standing(remembered.get(q.id))}" for q in questions]
    return "\n".join(lines)


def say(messages):
    """What there is to say about the progress file, beside the output proper."""
    for message in messages:
        print(f"note: {message}", file=sys.stderr)
