"""What the tests of all exercises ask: a version gets its diagnosis; the solution passes, and the stub is one."""

from refimpl.course.exercises.checks import examine_file
from refimpl.course.exercises.stubs import folder


def assert_diagnosed(verdict, diagnosis, says):
    """The verdict is this diagnosis, in words that contain all of `says`, and has points only where it has passed."""
    assert verdict.diagnosis == diagnosis, str(verdict)
    assert verdict.passed == (diagnosis == "passed") and (verdict.score == verdict.points) == verdict.passed
    for words in says:
        assert words.lower() in str(verdict).lower(), str(verdict)


def assert_solution_passes_and_stub_is_not_implemented(name):
    """Of the exercise `name`, as they stand in the two folders."""
    for impl, diagnosis in (("solutions", "passed"), ("exercises", "not implemented")):
        path, = folder(impl).glob(f"*_{name}.py")
        assert examine_file(path, name).diagnosis == diagnosis
