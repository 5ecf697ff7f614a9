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
    from refimpl.course import interview
    from refimpl.course import mistakes as book
    from refimpl.course.plots.files import check_plot_file, write_text
    from refimpl.course.progress import progress
    from refimpl.course.quiz.questions import load

    if args.plot is not None:
        check_plot_file(args.plot)
    if args.export is not None:
        check_plot_file(args.export, suffixes=(".md", ".txt"), option="--export")
    me, questions = progress(), load()
    attempts = me.attempts()
    for message in me.messages():
        print(f"note: {message}", file=sys.stderr)
    topics, found = book.topics(questions, attempts), book.mistakes(questions, attempts)
    gaps = book.gaps(interview.load(), attempts)
    if args.export is not None:
        written = book.as_markdown if args.export.lower().endswith(".md") else book.as_cards
        write_text(args.export, written(found, gaps))
    if args.plot is not None:
        draw(args.plot, book.over_time(questions, attempts))
    print(json.dumps(as_data(topics, found, gaps)) if args.json else describe(topics, found, gaps, args))
    return 0


def as_data(topics, found, gaps):
    """The book as plain data."""
    from dataclasses import asdict

    return {"topics": [asdict(topic) for topic in topics],
            "mistakes": [{"id": m.question.id, "lesson": m.question.lesson, "given": m.given, "numbers": m.numbers,
                          "when": m.when.isoformat(), "times": m.times} for m in found],
            "interview": [{"id": gap.question.id, "lesson": gap.question.lesson, "points": gap.points,
                           "left_out": gap.left_out, "when": gap.when.isoformat()} for gap in gaps]}


def describe(topics, found, gaps, args):
    """The book as text."""
    from refimpl.course.mistakes import explained
    from refimpl.course.quiz.terminal import wrapped

    lines = [f"{'lesson':8} {'questions':>9} {'asked':>6} {'known':>6} {'missed':>6} {'due':>5}"]
    lines += [f"{t.lesson:8} {t.questions:>9} {t.asked:>6} {t.known:>6} {t.missed:>6} {t.due:>5}" for t in topics]
    for mistake in found:
        stem, why_not, right = explained(mistake)
        lines += ["", f"{mistake.question.id}, lesson {mistake.question.lesson}, {mistake.when:%Y-%m-%d}"]
        lines += [wrapped(stem), wrapped(f"Not {mistake.given!r}. {why_not}"), wrapped(f"Right: {right}")]
    for gap in gaps:
        lines += ["", f"{gap.question.id}, lesson {gap.question.lesson}, {gap.when:%Y-%m-%d}, "
                  f"{gap.points} of {len(gap.question.rubric)} points", wrapped(gap.question.question)]
        lines += [wrapped(point, "    left out: ") for point in gap.left_out]
    if not found and not gaps:
        lines += ["", "No open mistakes. quiz asks, and quiz --due what should come back."]
    else:
        lines += [""] + [f"{len(found)} open. quiz --mistakes asks them again."] * bool(found)
        topics = ",".join(sorted({gap.question.lesson for gap in gaps}))
        lines += [f"Interview questions not answered in full: {len(gaps)}. See drill --topics {topics}."] * bool(gaps)
    lines += [f"written: {path}" for path in (args.export, args.plot) if path]
    return "\n".join(lines)


def draw(path, curves):
    """What was known of each lesson after each answer."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    from refimpl.course.plots.files import save
    from refimpl.course.plots.losses import STYLES

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for k, (lesson, points) in enumerate(curves.items()):
        times, known = zip(*points)
        axes.step(times, known, where="post", label=f"lesson {lesson}", **STYLES[k % len(STYLES)])
    axes.set(title="Questions whose last answer was right", xlabel="when (UTC)", ylabel="questions")
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    if curves:
        axes.legend(frameon=False)
    save(figure, path)
