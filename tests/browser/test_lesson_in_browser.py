"""Lesson 01 as a learner meets it: JupyterLab in Chromium, with keys and a mouse, and no network."""

from refimpl.course.progress import Progress
from refimpl.course.quiz.questions import load

QUESTION = next(question for question in load() if question.lesson == "01" and not question.draw)


def test_lesson_01_moves_by_key_and_mouse_and_remembers_a_mistake(course):
    lesson = course.open("lessons/01_ring_all_reduce.ipynb")
    lesson.run_all()
    move_the_stepper(lesson)
    answer_wrong(lesson)
    lesson.restart()
    lesson.run_all()
    lesson.page.locator(f".quiz-{QUESTION.id}").get_by_text("you missed this one last time").wait_for()
    assert [(a.name, a.passed) for a in Progress(course.progress).attempts("quiz")] == [(QUESTION.id, False)]
    assert lesson.troubles() == []


def move_the_stepper(lesson):
    """The slider for the step, by an arrow key, then with the mouse: each time there is another picture."""
    stepper = lesson.page.locator(".all-reduce-stepper").first
    handle = stepper.locator(".noUi-handle").last
    picture = stepper.locator(".widget-html-content").filter(has=lesson.page.locator("svg"))
    begin, value = lesson.fingerprint(picture), lesson.value(handle)
    handle.focus()
    lesson.page.keyboard.press("ArrowRight")
    after_key = lesson.wait_for_change(picture, begin)
    assert lesson.value(handle) == value + 1
    lesson.drag(handle, 80)
    lesson.wait_for_change(picture, after_key)
    assert lesson.value(handle) > value + 1


def answer_wrong(lesson):
    """Choose a wrong answer and check it: it gets its own reason."""
    wrong = next(choice for choice in QUESTION.show().choices if not choice.right)
    box = lesson.page.locator(f".quiz-{QUESTION.id}")
    box.get_by_label(wrong.text, exact=True).check()
    box.get_by_role("button", name="Check answer").click()
    feedback = box.get_by_role("status")
    feedback.get_by_text("Not this one:").wait_for()
    assert wrong.why.replace("`", "") in feedback.inner_text()
