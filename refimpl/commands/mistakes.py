"""python -m refimpl mistakes: what you got wrong, by topic and over time, and what is due."""

import json
import sys

HELP = "look at your mistakes, by topic and over time; make cards of them"


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("--plot", metavar="FILE", help="draw what you knew over time (.png, .svg or .pdf)")
    parser.add_argument("--export", metavar="FILE", help="write the mistakes: .md to read, .txt for Anki to import")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")


def main(args):
    """Show, draw, export; the exit status."""
    from refimpl.course import mistakes as book
    from refimpl.course.plots.files import check_plot_file, write_text
    from refimpl.course.progress import progress
    from refimpl.course.quiz.memory import KIND
    from refimpl.course.quiz.questions import load

    if args.plot is not None:
        check_plot_file(args.plot)
    if args.export is not None:
        check_plot_file(args.export, suffixes=(".md", ".txt"), option="--export")
    me, questions = progress(), load()
    attempts = me.attempts(KIND)
    for message in me.messages():
        print(f"note: {message}", file=sys.stderr)
    topics, found = book.topics(questions, attempts), book.mistakes(questions, attempts)
    if args.export is not None:
        write_text(args.export, (book.as_markdown if args.export.endswith(".md") else book.as_cards)(found))
    if args.plot is not None:
        draw(args.plot, book.over_time(questions, attempts))
    print(json.dumps(as_data(topics, found)) if args.json else describe(topics, found, args))
    return 0


def as_data(topics, found):
    """The book as plain data."""
    from dataclasses import asdict

    return {"topics": [asdict(topic) for topic in topics],
            "mistakes": [{"id": m.question.id, "lesson": m.question.lesson, "given": m.given, "numbers": m.numbers,
                          "when": m.when.isoformat(), "times": m.times} for m in found]}


def describe(topics, found, args):
    """The book as text."""
    from refimpl.course.mistakes import explained
    from refimpl.course.quiz.terminal import wrapped

    lines = [f"{'lesson':8} {'questions':>9} {'asked':>6} {'known':>6} {'missed':>6} {'due':>5}"]
    lines += [f"{t.lesson:8} {t.questions:>9} {t.asked:>6} {t.known:>6} {t.missed:>6} {t.due:>5}" for t in topics]
    for mistake in found:
        stem, why_not, right = explained(mistake)
        lines += ["", f"{mistake.question.id}, lesson {mistake.question.lesson}, {mistake.when:%Y-%m-%d}"]
        lines += [wrapped(stem), wrapped(f"Not {mistake.given!r}. {why_not}"), wrapped(f"Right: {right}")]
    if not found:
        lines += ["", "No open mistakes. quiz asks, and quiz --due what should come back."]
    else:
        lines += ["", f"{len(found)} open. quiz --mistakes asks them again."]
    lines += [f"written: {path}" for path in (args.export, args.plot) if path]
    return "\n".join(lines)


def draw(path, curves):
    """What was known of each lesson after each answer."""
    from matplotlib.figure import Figure

    from refimpl.course.plots.files import save
    from refimpl.course.plots.losses import STYLES

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for k, (lesson, points) in enumerate(curves.items()):
        times, known = zip(*points)
        axes.step(times, known, where="post", label=f"lesson {lesson}", **STYLES[k % len(STYLES)])
    axes.set(title="Questions known", xlabel="when", ylabel="known")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    if curves:
        axes.legend(frameon=False)
    figure.autofmt_xdate()
    save(figure, path)
