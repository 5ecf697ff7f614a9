"""Ways through the course, with the minutes that the lessons themselves state.

    TRACKS["engineer"]            the lessons of a track, in their order
    minutes("05")                 125: 40 to read and try, 85 for exercises and quiz
    total("engineer")             the sum; minutes are read off the notebooks, so that they cannot differ from them
"""

import json
import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "lessons"
STATED = re.compile(r"\*About (\d+) minutes(?:, and (\d+) more for ([^*]+))?\.\*")       # in a lesson's first cell
TRACKS = {
    "a weekend before an interview": ("01", "05", "08", "04", "13"),
    "everything": tuple(f"{number:02}" for number in range(14)),
    "an engineer with a model to train": ("01", "02", "03", "04", "05", "06", "08", "10", "11", "12"),
}


@cache
def lessons():
    """{number: [(title, minutes, file)]}, in the order of the files; number 00 has two."""
    found = {}
    for path in sorted(FOLDER.glob("[0-9][0-9]_*.ipynb")):
        first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        title, stated = re.search(r"^# (.+)$", first, re.MULTILINE), STATED.search(first)
        if title is None or stated is None:
            raise ValueError(f"{path.name}: its first cell has no title, or does not say 'About ... minutes'")
        found.setdefault(path.name[:2], []).append((title[1], int(stated[1]) + int(stated[2] or 0), path.name))
    return found


def minutes(number):
    """Minutes of a lesson. ValueError if there is none of this number."""
    if number not in lessons():
        raise ValueError(f"there is no lesson {number!r}; there are {', '.join(lessons())}")
    return sum(time for _, time, _ in lessons()[number])


def total(track):
    """Minutes of a track."""
    return sum(map(minutes, TRACKS[track]))
