"""The course: pictures, exercises, quiz. In a notebook: from refimpl.course import check, hint."""

from refimpl.course.exercises.learner import check, hint

__all__ = ["check", "hint"]
