"""The quiz in a notebook: for each question its choices, a button that grades, the reason, another try.

    Question 2 of 14 · trap
    ( ) factor 2.0    (•) factor 1.0    ...
    [Check answer] [Try again]
    Right: factor 1.0. Forward sums the output ...      a live region: screen readers say it

Choosing grades nothing, so that one can change one's mind, and walk through the choices with the keyboard. Each
question is a box of the class quiz-ID. A second try at a template has new numbers. Only this file needs ipywidgets.
"""

import random

import ipywidgets

from refimpl.course.quiz.markup import as_html, escaped, inline
from refimpl.course.quiz.session import record

RIGHT, WRONG = "#009E73", "#D55E00"                       # of the bar beside the words, which say it, too
RULE = "1px solid var(--jp-border-color2, #ccc)"          # between questions, in the theme's own grey
PROSE = "jp-RenderedHTMLCommon"                           # JupyterLab's style of text and code, in either theme
WRAP = """<style>.refimpl-quiz .widget-radio-box label { height: auto; white-space: normal; display: flex;
    flex-direction: row-reverse; justify-content: flex-end; align-items: flex-start; gap: 4px; }
    .refimpl-quiz .widget-radio-box input { flex: none; }</style>"""         # a long choice wraps beside its circle
KEYS = "With the keyboard: Tab goes to the choices, arrows and Space choose."
PREPARE = """
const begin = tries => {
    const quiz = element.closest('.refimpl-quiz');          // not there before the page has put the pieces together
    if (!quiz) return tries && setTimeout(begin, 100, tries - 1);
    const prepare = () => quiz.querySelectorAll('.widget-radio-box').forEach(box => {
        box.dataset.group ??= `choices-${Math.random()}`;
        box.querySelectorAll('input').forEach(input => {
            input.name = box.dataset.group;
            input.dataset.lmSuppressShortcuts = 'true';
        });
    });
    prepare();
    new MutationObserver(prepare).observe(quiz, {childList: true, subtree: true});
    quiz.addEventListener('click', ({target}) => {          // before the button has it: what is chosen goes ahead
        const box = target.closest('.refimpl-check')?.closest('.refimpl-question');
        if (!box) return;
        const at_click = box.querySelector('.refimpl-at-click input');
        at_click.value = [...box.querySelectorAll('.widget-radio-box input')].findIndex(input => input.checked);
        at_click.dispatchEvent(new Event('change', {bubbles: true}));
    }, true);
};
begin(50);
"""     # ipywidgets does not say which choices belong together; JupyterLab would take their arrows for its own. And a
#         second choice waits in the page until the kernel has had the first; a click does not: it would overtake it.


class Quiz(ipywidgets.VBox):
    """The questions, one below the other, and how many were right.

    questions, memories    as `session.choose` gave and took them        me     progress to append to
    empty                  what to say if there are no questions          rng    draws numbers, shuffles choices
    """

    def __init__(self, questions, memories, me, empty="There are no such questions.", rng=random):
        self.me, self.notes = me, me.messages()
        self.summary = ipywidgets.HTML()
        self.boxes = [
            QuestionBox(question, memories.get(question.id), f"Question {k} of {len(questions)}", self.answered, rng)
            for k, question in enumerate(questions, start=1)]
        self.empty = empty
        prepare = ipywidgets.Output(outputs=[{"output_type": "display_data", "metadata": {},
                                              "data": {"application/javascript": PREPARE, "text/plain": ""}}])
        super().__init__([self.summary, *self.boxes, prepare])
        self.add_class("refimpl-quiz")
        self.summarize()

    def answered(self, shown, choice, retry):
        """Remember an answer and count anew; what there is to say about the progress file, a list of sentences."""
        record(self.me, shown, choice, retry, where="notebook")
        self.summarize()
        return self.me.messages()

    def summarize(self):
        """Bring the first line up to date."""
        graded = [box for box in self.boxes if box.first is not None]
        right = sum(box.first for box in graded)
        missed = sum(box.missed_before for box in self.boxes)
        words = f"{len(self.boxes)} questions, {len(graded)} answered, {right} right at the first try."
        if missed:
            words += f" {missed} of them you missed last time."
        texts = [f"{words} {KEYS}" if self.boxes else self.empty, *self.notes]
        self.summary.value = WRAP + prose("".join(f"<p>{escaped(text)}</p>" for text in texts))


class QuestionBox(ipywidgets.VBox):
    """One question. `answered(shown, choice, retry)` is told of every answer; what it returns goes below the reason."""

    def __init__(self, question, memory, title, answered, rng=random):
        self.question, self.answered, self.rng = question, answered, rng
        self.missed_before = memory is not None and not memory.passed
        self.first = None                                # was the first answer right? None before there is one
        self.graded = False
        self.title = f"{title} · {question.level}" + (" · you missed this one last time" if self.missed_before else "")
        self.stem, self.feedback = ipywidgets.HTML(), ipywidgets.HTML()
        self.radio = ipywidgets.RadioButtons(layout={"width": "max-content", "max_width": "100%"})
        self.at_click = ipywidgets.IntText(-1, layout={"display": "none"})     # which choice the page showed; -1: none
        self.at_click.add_class("refimpl-at-click")
        self.check = ipywidgets.Button(description="Check answer")
        self.check.add_class("refimpl-check")
        self.again = ipywidgets.Button(description="Try again")
        self.check.on_click(lambda _: self.grade())
        self.again.on_click(lambda _: self.ask())
        super().__init__([self.stem, self.radio, ipywidgets.HBox([self.check, self.again]), self.feedback,
                          self.at_click], layout={"border_top": RULE, "padding": "8px 0"})
        self.add_class("refimpl-question")
        self.add_class(f"quiz-{question.id}")
        self.shown = None
        self.ask()

    def ask(self):
        """Show the question, with new numbers where it draws some, ready to be answered."""
        if self.shown is None or self.question.draw:
            self.shown = self.question.show(self.rng)
        self.stem.value = prose(f"<p><b>{escaped(self.title)}</b></p>{as_html(self.shown.stem)}")
        self.radio.options = [(choice.text, k) for k, choice in enumerate(self.shown.choices)]
        self.radio.value, self.at_click.value = None, -1
        self.graded = False
        self.enable()
        self.say("")

    def grade(self):
        """Grade what was chosen when the button was pressed, once, and say why."""
        if self.graded:                                  # a second click, sent before the button was off
            return
        chosen = self.at_click.value if self.at_click.value >= 0 else self.radio.value
        if chosen is None:
            self.say("<p>Choose an answer first.</p>")
            return
        choice, retry = self.shown.choices[chosen], self.first is not None
        self.graded = True
        if not retry:
            self.first = choice.right
        notes = self.answered(self.shown, choice, retry)
        self.enable(after_wrong=not choice.right)
        source = f"<p><small>{escaped(self.question.source)}</small></p>" if choice.right else ""
        bar = f"border-left: 4px solid {RIGHT if choice.right else WRONG}; padding-left: 8px"
        verdict = f"<b>{'Right' if choice.right else 'Not this one'}:</b> {escaped(choice.text)}"
        self.say(f'<div style="{bar}"><p>{verdict}</p><p>{inline(choice.why)}</p>{source}'
                 + "".join(f"<p>{escaped(note)}</p>" for note in notes) + "</div>")

    def enable(self, after_wrong=False):
        """Switch on what can be used now."""
        self.radio.disabled = self.check.disabled = self.graded
        self.again.disabled = not after_wrong

    def say(self, text):
        """Put HTML into the live region."""
        region = f'<div role="status" aria-live="polite" class="{PROSE}" style="margin-top: 8px">'
        self.feedback.value = f"{region}{text}</div>"


def prose(text):
    """HTML in the style that JupyterLab gives to text."""
    return f'<div class="{PROSE}">{text}</div>'
