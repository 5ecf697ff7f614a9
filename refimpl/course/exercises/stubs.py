"""One source, two files: exercises/NN_name.py is solutions/NN_name.py without the learner's part.

    solutions/                            exercises/
        # BEGIN SOLUTION                      # YOUR CODE HERE
        y = all_reduce(x @ w, comm)           raise NotImplementedError("...")
        # INSTEAD                             y = x @ w + b                     <- where something is to be mended
        # y = x @ w + b                       # END OF YOUR CODE
        # END SOLUTION

A learner changes what is between the two comments. The rest must stay what the source says, or the two have drifted:
both sides are compared with these parts left blank.
"""

import os
import re
import tempfile
from pathlib import Path

from refimpl.course.exercises.catalogue import ALL

ROOT = Path(__file__).resolve().parents[3]
BEGIN, INSTEAD, END = "# BEGIN SOLUTION", "# INSTEAD", "# END SOLUTION"
YOURS, YOURS_END = "# YOUR CODE HERE", "# END OF YOUR CODE"
SOLUTION = re.compile(rf"^( *){BEGIN}\n(.*?)^ *{END}\n", re.MULTILINE | re.DOTALL)
LEARNERS = re.compile(rf"^( *){YOURS}\n(.*?)^ *{YOURS_END}\n", re.MULTILINE | re.DOTALL)


def folder(impl, root=None):
    """The folder of "exercises" or "solutions"; ValueError where there is none (installed without the course)."""
    path = Path(root or ROOT) / impl
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}: run this in a copy of the course, which has {impl}/")
    return path


def stub(source):
    """The learner's file, made from the text of a solution. ValueError if it has no part to take out."""
    text, regions = SOLUTION.subn(lambda found: region(found[1], found[2]), source)
    if not regions or source.count(BEGIN) != regions or any(mark in text for mark in (BEGIN, INSTEAD, END)):
        raise ValueError(f"not a solution: it needs {BEGIN!r} and {END!r}, each on a line of its own, in pairs")
    return text


def region(indent, solution):
    """What the learner finds in the place of a solution."""
    _, marked, given = solution.partition(f"{indent}{INSTEAD}\n")
    say = "find the bug below, mend it, and delete this line" if marked else "your code goes here"
    given = re.sub(rf"^{indent}# ?(.*)", lambda found: f"{indent}{found[1]}".rstrip(), given, flags=re.MULTILINE)
    return f'{indent}{YOURS}\n{indent}raise NotImplementedError("{say}")\n{given}{indent}{YOURS_END}\n'


def blank(text):
    """The text of an exercise with the learner's parts left blank: what two versions must have in common."""
    return LEARNERS.sub(rf"\1{YOURS}\n\1{YOURS_END}\n", text)


def updated(old, new):
    """The new stub with what the learner wrote in the old one. ValueError where their parts do not pair up."""
    parts = [found[0] for found in LEARNERS.finditer(old)]
    if len(parts) != len(LEARNERS.findall(new)):
        raise ValueError(f"the lines {YOURS!r} and {YOURS_END!r} are gone, so what is yours cannot be told from the "
                         "rest: put them back, or move your file away")
    return LEARNERS.sub(lambda _: parts.pop(0), new)


def drift(root=None):
    """What does not agree between the two folders: a list of sentences, empty when all is well."""
    found = []
    for exercise in ALL:
        source, target = folder("solutions", root) / exercise.filename, folder("exercises", root) / exercise.filename
        if not source.is_file():
            found.append(f"solutions/{exercise.filename} is missing")
        elif not target.is_file():
            found.append(f"exercises/{exercise.filename} is missing: python -m refimpl exercises")
        else:
            found += differences(exercise.filename, stub(read(source)), read(target))
    known = {exercise.filename for exercise in ALL}
    for impl in ("solutions", "exercises"):
        found += [f"{impl}/{path.name} is in no catalogue" for path in sorted(folder(impl, root).glob("*.py"))
                  if path.name not in known]
    return found


def differences(filename, expected, present):
    """One sentence on the first line, outside the learner's parts, where an exercise is not what its source makes."""
    wanted, has = blank(expected), blank(present)
    if wanted == has:
        return []
    for number, pair in enumerate(zip(wanted.split("\n"), has.split("\n")), 1):      # to the shorter one's end
        if pair[0] != pair[1]:
            return [f"exercises/{filename} has drifted from its solution, outside the learner's part: line {number}, "
                    f"with that part left blank, is {pair[1]!r}; the source says {pair[0]!r}"]
    return [f"exercises/{filename} has drifted from its solution: one of them is longer"]


def write(root=None):
    """Make exercises/ from solutions/, keeping what learners wrote; the names of the files that changed."""
    (Path(root or ROOT) / "exercises").mkdir(exist_ok=True)
    changed = []
    for exercise in ALL:
        text = stub(read(folder("solutions", root) / exercise.filename))
        target = folder("exercises", root) / exercise.filename
        if target.exists():
            try:
                text = updated(read(target), text)
            except ValueError as error:
                raise ValueError(f"{target}: {error}") from None
        if not target.exists() or read(target) != text:
            replace(target, text)
            changed.append(exercise.filename)
    return changed


def read(path):
    """The text of a file, with \\n at the end of lines whatever the platform."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def replace(path, text):
    """Write a file under a temporary name, then rename: it is never there by half."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
    with open(handle, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
