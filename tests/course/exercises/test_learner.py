"""What a learner meets: files of their own, hints that go on, mistakes that are shown with their line, one progress."""

import threading
import time

import pytest

from refimpl.course import check, hint
from refimpl.course.exercises import checks, learner, stubs
from refimpl.course.exercises.catalogue import ALL
from refimpl.course.progress import progress

HEADER = "from refimpl.collectives import all_reduce\n\n\ndef row_parallel_forward(x, w, b, comm):\n"
NAME = "row_parallel_forward"


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("REFIMPL_PROGRESS", str(tmp_path / "progress.sqlite"))


@pytest.fixture
def file(tmp_path):
    """Write a learner's file; its path."""
    def write(body, header=HEADER):
        path = tmp_path / "04_row_parallel_forward.py"
        path.write_text(header + body, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_the_solution_passes_and_the_stub_is_not_implemented(exercise):
    for impl, diagnosis in (("solutions", "passed"), ("exercises", "not implemented")):
        source = stubs.read(stubs.folder("solutions") / exercise.filename)
        text = source if impl == "solutions" else stubs.stub(source)      # not the file: a learner may have begun
        function = checks.load(text, exercise.filename, exercise.name, seconds=10)
        verdict = checks.examine(function, exercise.name)
        assert verdict.diagnosis == diagnosis, str(verdict)
        assert (verdict.score, verdict.passed) == ((exercise.points, True) if impl == "solutions" else (0, False))


@pytest.mark.parametrize("body, diagnosis, says", [
    ("    return all_reduce(x @ w, comm) + b\n", "passed", []),
    ("    y = x @ w\n    return y / comm.sise\n", "exception",
     ["AttributeError", "2 ranks, x (2, 4) and w (4, 3): on rank 0 of 2, at 04_row_parallel_forward.py:6",
      "return y / comm.sise"]),
    ("    return x @ w.T\n", "exception", ["ValueError: matmul", "04_row_parallel_forward.py:5", "return x @ w.T"]),
    ("    return all_reduce(list(x), comm, op='mum')\n", "exception", ["04_row_parallel_forward.py:5"]),
    ("    return x @\n", "exception",
     ["this is not Python: invalid syntax", "04_row_parallel_forward.py:5", "return x @"]),
    ("\treturn x\n    return y\n", "exception", ["this is not Python"]),
    ("    exit()\n", "exception", ["SystemExit", "04_row_parallel_forward.py:5"]),
    ("    return x\n\n\nassert False, 'at the top'\n", "exception", ["AssertionError: at the top", ".py:8"]),
    ("    return x\n\n\nrow_parallel_forward = 3\n", "not implemented",
     ["does not define a function row_parallel_forward"]),
    ("    while True:\n        pass\n", "too slow", ["04_row_parallel_forward.py:", "Does every loop"]),
    ("    return x\n\n\nwhile True:\n    pass\n", "too slow",
     ["no answer after 0.3 seconds", "still running at 04_row"]),
    ("    return row_parallel_forward(x, w, b, comm)\n", "exception", ["RecursionError"]),
])
def test_a_file_is_judged_by_what_it_does_now(body, diagnosis, says, file):
    verdict = checks.examine_file(file(body), NAME, seconds=0.3)
    assert verdict.diagnosis == diagnosis, str(verdict)
    for words in says:
        assert words in str(verdict)


def test_a_file_saved_twice_in_one_moment_is_read_anew(file):
    for body, diagnosis in (("x[:, :1]", "wrong shape"), ("x[:, 88]", "exception"), ("x[:, 99]", "exception")):
        verdict = checks.examine_file(file(f"    return {body}\n"), NAME)
        assert verdict.diagnosis == diagnosis
    assert str(verdict).endswith("return x[:, 99]")


@pytest.mark.parametrize("prepare, says", [
    (lambda path: path.unlink(), "cannot be read: No such file"),
    (lambda path: path.write_bytes(b"\xff\xfe"), "is not UTF-8 text"),
])
def test_a_file_that_cannot_be_read_is_one_line(prepare, says, file):
    prepare(path := file(""))
    with pytest.raises(ValueError, match=says):
        checks.examine_file(path, NAME)


def test_a_check_outside_the_main_thread_goes_on_without_a_limit():
    found = []
    thread = threading.Thread(target=lambda: found.append(checks.examine(lambda x, w, b, comm: x, NAME, seconds=0.01)))
    thread.start()
    thread.join()
    assert found[0].diagnosis == "wrong shape"


def test_the_time_limit_leaves_other_interrupts_alone():
    with pytest.raises(KeyboardInterrupt), checks.time_limit(5):
        raise KeyboardInterrupt
    with checks.time_limit(0.05):
        pass
    time.sleep(0.1)                                    # nothing comes later


def test_in_a_notebook_a_verdict_says_how_to_go_on_and_is_remembered():
    verdict = check(NAME, lambda x, w, b, comm: x @ w)
    assert verdict.diagnosis == "missing all-reduce"
    assert repr(verdict).startswith("row_parallel_forward ✗ the ranks' parts are not added up\n  2 ranks, x (2, 4)")
    assert repr(verdict).endswith('(hint 1 of 3: hint("row_parallel_forward"))')
    attempt, = progress().attempts("exercise")
    assert (attempt.name, attempt.passed, attempt.detail) == (NAME, False, {"diagnosis": "missing all-reduce"})


def test_what_was_not_tried_is_not_an_attempt():
    def stub(x, w, b, comm):
        raise NotImplementedError

    assert check(NAME, stub).diagnosis == "not implemented" and progress().attempts() == []


@pytest.mark.parametrize("function", [None, "row_parallel_forward", 3])
def test_what_cannot_be_called_is_refused(function):
    with pytest.raises(ValueError, match="give the function itself"):
        check(NAME, function)


def test_hints_come_one_by_one_and_the_last_one_stays():
    exercise = next(e for e in ALL if e.name == NAME)
    for number, text in enumerate(exercise.hints, 1):
        said = hint(NAME)
        assert repr(said) == str(said) == f"{NAME}, hint {number} of 3\n  {text}"
        assert learner.hints_seen(exercise) == number
    assert "This is the last one; the solution is in solutions/04_row_parallel_forward.py" in hint(NAME)
    assert exercise.hints[-1] in hint(NAME)
    verdict = check(NAME, lambda x, w, b, comm: x @ w)
    assert str(verdict).endswith("(all hints are seen; the solution is in solutions/04_row_parallel_forward.py)")


def test_the_status_is_worked_out_from_the_attempts():
    check(NAME, lambda x, w, b, comm: x @ w)
    check("ring_all_reduce", lambda x, comm: x)
    checks_right = checks.load(stubs.read(stubs.folder("solutions") / "04_row_parallel_forward.py"), "f.py", NAME, 10)
    check(NAME, checks_right)
    hint(NAME)
    rows = {row["name"]: row for row in learner.status()}
    assert rows[NAME]["passed"] and (rows[NAME]["attempts"], rows[NAME]["score"], rows[NAME]["hints"]) == (2, 10, 1)
    assert not rows["ring_all_reduce"]["passed"] and rows["ring_all_reduce"]["diagnosis"] == "missing all-reduce"
    assert rows["row_parallel_bias"]["attempts"] == 0 and rows["row_parallel_bias"]["diagnosis"] is None


def test_a_progress_file_that_cannot_be_written_is_mentioned_in_the_verdict(tmp_path):
    (tmp_path / "progress.sqlite").mkdir()
    assert "cannot be written" in str(check(NAME, lambda x, w, b, comm: x @ w))
    assert "hint 1 of 3" in hint(NAME) and "hint 2 of 3" in hint(NAME)
