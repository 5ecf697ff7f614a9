"""Lessons as pages with their outputs, to read without a kernel: docs/lessons/NN_name.md, and README.md beside them.

    python -m refimpl.course.render              pages that are out of date
    python -m refimpl.course.render 08 01        these, in any case; --all for all of them
    python -m refimpl.course.render --check      write nothing, name what is out of date; exit status 1 if anything is:
                                                 pages, README.md and what is left over; --check 08 01 of these lessons

A page is up to date as long as its first line has the hash of what it was made from: the notebook's cells, the modules
of refimpl whose names these import, and the lessons it can link to. Not the page's own bytes: a run prints seconds, and
they are others every time. Modules that are imported by those modules do not count, or every change would make all
pages old; when you have changed what lies deeper and a lesson shows it, render that lesson.
"""

import argparse
import ast
import hashlib
import importlib
import inspect
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from refimpl.course.pages import page, plain
from refimpl.course.plots.files import write_text
from refimpl.course.tracks import STATED

ROOT = Path(__file__).resolve().parents[2]
LESSONS, PAGES = ROOT / "lessons", ROOT / "docs" / "lessons"
COMMAND = "python -m refimpl.course.render"
FORMAT = 1                                            # one more when pages should look different
SECONDS = 120                                         # for one cell
NOT_SHOWN = {"refimpl.course.quiz"}                   # a page has a line in its place
ABLE = re.compile(r"\*What you will be able to do:\*\s*(.+)")


def lessons(folder=LESSONS):
    """All notebooks, in the order of the course."""
    return sorted(Path(folder).glob("[0-9][0-9]_*.ipynb"))


# -- what a page is made from -----------------------------------------------------------------------------------------

def fingerprint(text, names):
    """The hash of what a page is made from: 16 digits.

    text     of the notebook; its outputs do not count    names    of all lessons
    """
    cells = [(cell["cell_type"], cell["id"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    modules = modules_of("\n".join(source for kind, _, source in cells if kind == "code"))
    digest = hashlib.sha256(json.dumps([FORMAT, sorted(names), cells]).encode())
    if "refimpl.course.tracks" in modules:             # which reads how long all lessons take
        digest.update(index().encode())
    for name in modules:
        source = Path(importlib.import_module(name).__file__).read_text(encoding="utf-8")
        digest.update(f"\n{name}\n{source}".encode())
    return digest.hexdigest()[:16]


def modules_of(code):
    """Modules of refimpl that define what the code imports, in alphabetical order, but for what no page shows."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "refimpl":
            found |= {home(node.module, alias.name) for alias in node.names}
    return sorted(name for name in found - NOT_SHOWN if name.partition(".")[0] == "refimpl")


def home(module, name):
    """The module that defines `name` of `module`: itself, a module in it, or another that it has the name from."""
    thing = getattr(importlib.import_module(module), name, None)
    if thing is None:
        return f"{module}.{name}"
    defined = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", module)
    return defined if str(defined).partition(".")[0] == "refimpl" else module


def hash_of(path):
    """The hash that a page has in its first line; None where there is no page."""
    try:
        found = re.match(r"<!-- made from ([0-9a-f]{16})", path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found and found[1]


def stale(pages=PAGES, folder=LESSONS):
    """Lessons whose page is missing or was made from something else."""
    names = [path.stem for path in lessons(folder)]
    return [path for path in lessons(folder)
            if hash_of(Path(pages) / f"{path.stem}.md") != fingerprint(path.read_text(encoding="utf-8"), names)]


def left_over(pages=PAGES, folder=LESSONS):
    """Files in the pages' folder that belong to no lesson, or that no page shows."""
    pages = Path(pages)
    known = {f"{path.stem}.md" for path in lessons(folder)} | {"README.md"}
    texts = "".join(path.read_text(encoding="utf-8") for path in pages.glob("*.md") if path.name in known)
    return sorted([path for path in pages.glob("*.md") if path.name not in known and hash_of(path)]
                  + [path for path in pages.glob("pictures/*") if f"](pictures/{path.name})" not in texts])


def out_of_date(numbers=(), pages=PAGES, folder=LESSONS):
    """Names of what is to be rendered: lessons, of these numbers if there are any; else README.md, too, and files that
    are to go.
    """
    found = [path.stem for path in stale(pages, folder) if not numbers or path.stem[:2] in numbers]
    if numbers:
        return found
    readme = Path(pages) / "README.md"
    if not readme.is_file() or readme.read_text(encoding="utf-8") != index(folder):
        found.append(readme.name)
    return found + [f"{path.relative_to(pages).as_posix()}, which no lesson has" for path in left_over(pages, folder)]


# -- writing ----------------------------------------------------------------------------------------------------------

def executed(path):
    """The notebook with its outputs. It runs in a copy of its folder, with a progress file of its own."""
    import nbclient
    import nbformat

    with tempfile.TemporaryDirectory() as place:
        folder = shutil.copytree(path.parent, Path(place) / "lessons")
        environment = os.environ | {
            "REFIMPL_PROGRESS": str(Path(place) / "progress.sqlite"), "JUPYTER_PREFER_ENV_PATH": "1",
            "IPYTHONDIR": place, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
        notebook = nbformat.read(path, as_version=4)
        nbclient.NotebookClient(notebook, timeout=SECONDS, kernel_name="python3",
                                resources={"metadata": {"path": str(folder)}}).execute(env=environment)
    return notebook, (str(folder), place, str(ROOT), str(Path(sys.executable).parent))


def render(path, pages=PAGES):
    """Run one lesson and write its page and pictures."""
    names = [other.stem for other in lessons(path.parent)]
    made_from = fingerprint(path.read_text(encoding="utf-8"), names)
    notebook, hide = executed(path)
    number, pages = path.stem[:2], Path(pages)
    made = page(notebook, number, names, hide)
    (pages / "pictures").mkdir(parents=True, exist_ok=True)
    for name, content in made.pictures.items():
        if name.endswith(".svg"):
            write_text(pages / "pictures" / name, content.decode())
        else:
            (pages / "pictures" / name).write_bytes(content)
    place = names.index(path.stem)
    around = [f"[{words}]({names[k]}.md)" for words, k in (("before", place - 1), ("next", place + 1))
              if 0 <= k < len(names)]
    links = " · ".join(["[All lessons](README.md)", *around])
    write_text(pages / f"{path.stem}.md", (
        f"<!-- made from {made_from} by {COMMAND}: change lessons/{path.name}, not this page -->\n\n"
        f"{links} · This is [the notebook](../../lessons/{path.name}) as it ran. `python3 start.py` opens it live: "
        f"with sliders that move, exercises that are checked, and a quiz.\n\n{made.text}\n---\n\n{links}\n"))


def index(folder=LESSONS):
    """The page above the pages: all lessons, their minutes, what they are for."""
    lines = [f"<!-- made by {COMMAND} -->", "", "# The lessons, as they ran", "",
             "Each page is a notebook with its outputs, to read without a kernel. To play, to write and to be asked: "
             "`python3 start.py`. Minutes are to read and try, and for exercises and quiz.", "",
             "| | lesson | minutes | what you will be able to do |", "|---|---|---|---|"]
    for path in lessons(folder):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        first = "".join(cells[0]["source"])
        able, minutes = ABLE.search(first), STATED.search(first)
        lines.append(f"| {path.stem[:2]} | [{title(first)}]({path.stem}.md) | "
                     f"{' + '.join(filter(None, minutes.groups()[:2])) if minutes else ''} | "
                     f"{STATED.sub('', able[1]).strip() if able else ''} |")
    return "\n".join(lines) + "\n"


def title(text):
    """A text's first heading."""
    return re.search(r"^# (.+)", text, re.MULTILINE)[1]


def main(words):
    """Render what is asked for, or out of date; the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="write the lessons as pages with their outputs")
    parser.add_argument("numbers", nargs="*", metavar="NN", help="lessons (default: those that are out of date)")
    parser.add_argument("--all", action="store_true", help="all lessons")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is out of date")
    args = parser.parse_args(words)
    known = list(dict.fromkeys(path.stem[:2] for path in lessons()))
    if unknown := [number for number in args.numbers if number not in known]:
        parser.error(f"there is no lesson {unknown[0]!r}: there are {', '.join(known)}")
    if args.check:
        found = out_of_date([] if args.all else args.numbers)
        print(*found, sep="\n", end="\n" if found else "")
        return 1 if found else 0
    asked = [path for path in lessons() if args.all or path.stem[:2] in args.numbers]
    failed = [path.stem for path in (asked if args.all or args.numbers else stale()) if not rendered(path)]
    for path in left_over():
        path.unlink()
    write_text(PAGES / "README.md", index())
    return 1 if failed else 0


def rendered(path):
    """Render one lesson and say so; False, and what went wrong, where it does not run."""
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    print(path.stem, flush=True)
    try:
        render(path)
    except (CellExecutionError, CellTimeoutError) as error:
        print(f"  stays as it was, for the notebook does not run: {plain(str(error))}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
