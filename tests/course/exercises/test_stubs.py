"""Exercises are made from their solutions, and the two stay together outside the learner's part."""

import shutil

import pytest

from refimpl.course.exercises import stubs
from refimpl.course.exercises.catalogue import ALL, find

SOURCE = '''"""Doc."""
def f(x):
    # BEGIN SOLUTION
    y = x + 1
    return y
    # END SOLUTION


def g(x):
    # BEGIN SOLUTION
    return x * 2
    # INSTEAD
    # if x:
    #     return x * 3
    #
    # return 0
    # END SOLUTION
'''
STUB = '''"""Doc."""
def f(x):
    # YOUR CODE HERE
    raise NotImplementedError("your code goes here")
    # END OF YOUR CODE


def g(x):
    # YOUR CODE HERE
    raise NotImplementedError("find the bug below, mend it, and delete this line")
    if x:
        return x * 3

    return 0
    # END OF YOUR CODE
'''
EDITED = STUB.replace('    raise NotImplementedError("your code goes here")\n', "    # mine\n    return x + 1\n")


@pytest.fixture
def course(tmp_path):
    """A copy of both folders."""
    for impl in ("solutions", "exercises"):
        no_exercise = shutil.ignore_patterns("quiz", "interview", "__pycache__")
        shutil.copytree(stubs.folder(impl), tmp_path / impl, ignore=no_exercise)
    return tmp_path


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_the_exercises_in_the_repository_have_not_drifted():
    assert stubs.drift() == []


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_a_file_begins_with_what_the_catalogue_says(exercise):
    text = stubs.read(stubs.folder("solutions") / exercise.filename)
    assert text.startswith(f'"""{exercise.heading}\n') and f"def {exercise.name}(" in text
    assert len(exercise.hints) == 3 and 1 <= exercise.difficulty <= 3 and exercise.minutes > 0


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_a_stub_does_not_give_the_solution_away(exercise):
    source = stubs.read(stubs.folder("solutions") / exercise.filename)
    for found in stubs.SOLUTION.finditer(source):
        solution, _, given = found[2].partition(stubs.INSTEAD)
        for line in solution.splitlines():
            if "return" in line or "sendrecv" in line or "all_reduce" in line:
                assert line not in stubs.stub(source) or line.strip() in given


def test_solutions_become_places_for_the_learner():
    assert stubs.stub(SOURCE) == STUB
    compile(STUB, "stub", "exec")


@pytest.mark.parametrize("source", [
    "x = 1\n",
    SOURCE.replace("    # END SOLUTION\n\n\ndef g", "\n\ndef g"),
    SOURCE + "    # END SOLUTION\n",
    SOURCE.replace("    # BEGIN SOLUTION\n    y", "    y"),
])
def test_a_source_whose_marks_do_not_pair_up_is_refused(source):
    with pytest.raises(ValueError, match="in pairs"):
        stubs.stub(source)


def test_what_the_learner_writes_is_no_drift():
    assert stubs.differences("f.py", STUB, EDITED) == []


@pytest.mark.parametrize("old, new", [
    ('"""Doc."""', '"""Another."""'),
    ("def g(x)", "def g(x, y)"),
    ("    # END OF YOUR CODE\n\n\n", "    # END OF YOUR CODE\n    y = 1\n\n\n"),
    ("    # YOUR CODE HERE\n", ""),
])
def test_any_change_elsewhere_is_drift_and_the_line_is_named(old, new):
    found, = stubs.differences("f.py", STUB, EDITED.replace(old, new))
    assert "exercises/f.py has drifted" in found and "line " in found


def test_an_exercise_that_goes_on_or_ends_early_is_drift():
    assert "is 'x = 1'; the source says ''" in stubs.differences("f.py", STUB, STUB + "x = 1")[0]
    assert "one of them is longer" in stubs.differences("f.py", STUB, STUB + "\n")[0]
    assert stubs.differences("f.py", STUB, STUB[:STUB.index("def g")])


def test_drift_is_found_in_the_folders(course):
    assert stubs.drift(course) == []
    edit(course / "solutions" / ALL[0].filename, "the same n on every rank", "of one n on every rank")
    edit(course / "exercises" / ALL[1].filename, "import numpy as np", "import numpy")
    (course / "exercises" / ALL[2].filename).unlink()
    (course / "solutions" / ALL[3].filename).unlink()
    (course / "exercises" / "99_new.py").touch()
    found = "\n".join(stubs.drift(course))
    for words in (f"{ALL[0].filename} has drifted", f"{ALL[1].filename} has drifted", "'import numpy'",
                  f"exercises/{ALL[2].filename} is missing", f"solutions/{ALL[3].filename} is missing",
                  "exercises/99_new.py is in no catalogue"):
        assert words in found


def test_writing_brings_a_changed_source_in_and_keeps_the_learners_part(course):
    mine = course / "exercises" / ALL[0].filename
    edit(mine, '    raise NotImplementedError("your code goes here")\n', "    return 'mine'\n")
    assert stubs.write(course) == []
    edit(course / "solutions" / ALL[0].filename, "the same n on every rank", "of one n on every rank")
    assert stubs.write(course) == [ALL[0].filename] and stubs.drift(course) == []
    assert "    return 'mine'\n" in stubs.read(mine) and "of one n on every rank" in stubs.read(mine)


def test_writing_makes_what_is_missing(course):
    shutil.rmtree(course / "exercises")
    assert stubs.write(course) == [exercise.filename for exercise in ALL] and stubs.drift(course) == []


def test_a_file_in_which_the_learners_part_cannot_be_found_is_not_overwritten(course):
    mine = course / "exercises" / ALL[0].filename
    edit(mine, "    # END OF YOUR CODE\n", "")
    before = stubs.read(mine)
    with pytest.raises(ValueError, match=f"{ALL[0].filename}.*are gone.*put them back"):
        stubs.write(course)
    assert stubs.read(mine) == before
    assert sorted(p.name for p in (course / "exercises").iterdir()) == [e.filename for e in ALL]


def test_a_course_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(ValueError, match="run this in a copy of the course"):
        stubs.drift(tmp_path)


@pytest.mark.parametrize("name", ["ring_all_reduce", "03_ring_all_reduce.py", "exercises/03_ring_all_reduce.py",
                                  "3", 3, "03"])
def test_an_exercise_is_found_by_name_file_or_number(name):
    assert find(name).name == "ring_all_reduce"


@pytest.mark.parametrize("name, says", [
    ("rign_all_reduce", "perhaps 'ring_all_reduce'?"),
    ("xyz", "there are ring_reduce_scatter"),
])
def test_a_name_that_is_none_gets_the_nearest(name, says):
    with pytest.raises(ValueError, match="there is no exercise") as caught:
        find(name)
    assert says in str(caught.value)
