"""Questions as data and as files: JSON for programs, a sheet to print, cards for another learning program."""

import json
import os
import random
from pathlib import Path

from refimpl.course.plots.files import write_text
from refimpl.course.quiz.markup import as_field

SUFFIXES = (".md", ".tsv", ".json")


def as_data(question, memory=None):
    """A question, the choices with one set of numbers, and what is remembered of it, as plain data."""
    shown = question.show(random.Random(question.id))    # the same numbers and order every time
    return {
        "id": question.id, "lesson": question.lesson, "level": question.level, "template": bool(question.draw),
        "stem": shown.stem, "numbers": shown.numbers,
        "choices": [{"text": c.text, "right": c.right, "why": c.why} for c in shown.choices],
        "source": question.source,
        "asked": memory.asked if memory else 0,
        "passed": memory.passed if memory else None,
        "due": memory.due.isoformat() if memory else None,
    }


def check_export_file(path):
    """ValueError unless questions can be written to `path`: said before the work, not after it."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"--export {path}: the name must end in {', '.join(SUFFIXES)}: a sheet to print, cards, "
                         "or data")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--export {path}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise ValueError(f"--export {path}: cannot be written there")


def export(path, questions, memories):
    """Write the questions to `path`; its suffix says how. Under a temporary name first. ValueError if it cannot be."""
    check_export_file(path)
    path = Path(path)
    data = [as_data(question, memories.get(question.id)) for question in questions]
    text = {".md": sheet, ".tsv": cards, ".json": as_json}[path.suffix](data)
    try:
        write_text(path, text)
    except OSError as error:
        raise ValueError(f"--export {path}: cannot be written: {error.strerror}") from None


def as_json(data):
    """The questions as one JSON object."""
    return json.dumps({"questions": data}, indent=2) + "\n"


def sheet(data):
    """Markdown: the questions, then the answers, so that the first part can be printed by itself."""
    lines, answers = ["# Questions", ""], ["# Answers", ""]
    for number, q in enumerate(data, start=1):
        lines += [f"**{number}.** {q['stem']}", ""]
        lines += [f"- {letter}) {c['text']}" for letter, c in zip("abcd", q["choices"])] + [""]
        choices = sorted(zip("abcd", q["choices"]), key=lambda pair: not pair[1]["right"])        # the right one first
        (letter, right), *wrong = choices
        answers += [f"**{number}. {letter})** {right['why']} ({q['source']})", ""]
        answers += [f"- {letter}) {c['why']}" for letter, c in wrong] + [""]
    return "\n".join([*lines, *answers])


def cards(data):
    """Lines of front, tab, back, which flash-card programs import; line breaks as <br>."""
    lines = []
    for q in data:
        right = next(c for c in q["choices"] if c["right"])
        front = q["stem"] + "\n\n" + "\n".join(f"- {c['text']}" for c in q["choices"])
        back = f"{right['text']}\n\n{right['why']} ({q['source']})"
        lines.append("\t".join(map(as_field, (front, back))))
    return "\n".join([*lines, ""])
