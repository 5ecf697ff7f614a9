"""The quiz in a terminal: a question, a number typed, and at once the reason."""

import random
import shutil
import textwrap

from refimpl.course.quiz.session import record

PROMPT = "Answer 1-4, Enter to skip, q to stop: "


def ask(questions, me, read=input, write=print, rng=random):
    """Ask the questions one after the other; (answered, right). Every answer is remembered by the progress `me`.

    read(prompt) returns a line, or raises EOFError at the end of the input, which ends the quiz as q does.
    """
    answered = right = 0
    for number, question in enumerate(questions, start=1):
        shown = question.show(rng)
        write(f"\nQuestion {number} of {len(questions)}    {question.id}, lesson {question.lesson}, {question.level}\n")
        write(wrapped(shown.stem))
        write("")
        for k, choice in enumerate(shown.choices, start=1):
            write(wrapped(choice.text, f"    {k}  "))
        choice = typed(shown.choices, read, write)
        if choice == "stop":
            break
        if choice is None:
            continue
        record(me, shown, choice, where="terminal")
        answered, right = answered + 1, right + choice.right
        write("")
        write(wrapped(feedback(shown, choice)))
        for message in me.messages():
            write(wrapped(f"note: {message}"))
    write(f"\n{right} of {answered} right." if answered else "\nNothing answered.")
    return answered, right


def typed(choices, read, write):
    """The choice that the learner types; None to skip, "stop" to end."""
    while True:
        try:
            line = read(PROMPT).strip().lower()
        except EOFError:
            return "stop"
        if line in ("q", "quit"):
            return "stop"
        if not line:
            return None
        if line in "1234" and len(line) == 1:
            return choices[int(line) - 1]
        write(f"{line!r} is no answer here.")


def feedback(shown, choice):
    """What an answer gets: the reason of a wrong one, and the right one with its reason and source."""
    right = shown.right
    reason = f"{right.why} ({shown.question.source})"
    if choice.right:
        return f"Right. {reason}"
    return f"Not {choice.text!r}. {choice.why}\n\nRight is {right.text!r}. {reason}"


def wrapped(text, first="  "):
    """Text as wide as the terminal, 100 columns at most; fenced code as it is, without its fences."""
    width = min(shutil.get_terminal_size().columns, 100)
    parts = []
    for k, part in enumerate(text.split("```")):
        if k % 2:
            parts.append(textwrap.indent(part.strip("\n"), "      "))
        else:
            parts += [textwrap.fill(" ".join(paragraph.split()), max(width, 40), initial_indent=first,
                                    subsequent_indent=" " * len(first), break_long_words=False, break_on_hyphens=False)
                      for paragraph in part.split("\n\n") if paragraph.strip()]
    return "\n\n".join(parts)
