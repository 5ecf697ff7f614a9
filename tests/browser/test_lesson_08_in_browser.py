"""Lesson 08 in a real browser: a typed schedule runs, gets stuck, or is refused; menus and sliders obey the arrows."""

ONE_F_ONE_B = "F0 F1 F2 B0 F3 B1 B2 B3\nF0 F1 B0 F2 B1 F3 B2 B3\nF0 B0 F1 B1 F2 B2 F3 B3"


def test_a_schedule_typed_into_lesson_08_is_scored_and_a_circle_is_named(course):
    lesson = course.open("lessons/08_pipelines.ipynb")
    lesson.run_all()
    playground = lesson.page.locator(".schedule-playground").first
    field, words = playground.locator("textarea"), playground.get_by_role("status")
    playground.scroll_into_view_if_needed()
    words.get_by_text("It takes 36, 1f1b 18; it keeps 1 at most").wait_for(state="attached")
    field.fill(ONE_F_ONE_B)
    words.get_by_text("It takes 18, 1f1b 18; it keeps 3 at most, 1f1b 3.").wait_for(state="attached")
    field.fill("F0 B0 F1 B1\nF1 F0 B0 B1")
    words.get_by_text("rank 0 is at 0B0, which needs 1B0 of rank 1").wait_for(state="attached")
    field.press("End")
    field.press_sequentially(" X")
    playground.get_by_text("rank 1: 'X' is no action").wait_for()
    stepper = lesson.page.locator(".pipeline-stepper").first
    stepper.scroll_into_view_if_needed()
    picture, handle = stepper.locator(".refimpl-picture"), stepper.locator(".noUi-handle").last
    before = lesson.fingerprint(picture)
    handle.focus()
    lesson.page.keyboard.press("ArrowRight")
    lesson.wait_for_change(picture, before)
    assert lesson.value(handle) == 1
    explorer = lesson.page.locator(".pipeline-explorer").first
    explorer.scroll_into_view_if_needed()
    picture, menu = explorer.locator(".refimpl-picture"), explorer.locator("select").last
    before = lesson.fingerprint(picture)
    menu.focus()
    lesson.page.keyboard.press("ArrowDown")                 # the menu's own, though JupyterLab has a use for it, too
    lesson.wait_for_change(picture, before)
    assert lesson.troubles() == []
