"""An executed notebook as a page of Markdown, as GitHub shows it: prose, code, what was printed, pictures as files.

    cell of text            as it is; links lead from the page's folder, those to other lessons to their pages
    cell of code            a block of Python, and below it
      text                  a block of text
      a widget's picture    the still that the lesson has of it, or pictures/NN_cell.svg: it follows the reader's colour
                            scheme, light or dark
      a plot                pictures/NN_cell.png
      the quiz              a line that says how to get it: questions need an answer, and a page takes none
"""

import base64
import posixpath
import re
from typing import NamedTuple

FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r'(\]\(|\b(?:src|href)=")([^)"\s]+)([)"])')
STILL = re.compile(r"\n*<details><summary>The picture, where no kernel is running</summary>\n*(.*?)\n*</details>\n*",
                   re.DOTALL)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
OUTSIDE = re.compile(r"[a-z]+:|#|/")                  # links that stay as they are


class Page(NamedTuple):
    """A page's text, and its pictures: {name of the file in pictures/: bytes}."""

    text: str
    pictures: dict


def page(notebook, number, lessons, hide=()):
    """The `Page` of an executed notebook.

    number    of the lesson, "08"    lessons    names of notebooks that have pages, without .ipynb
    hide      folders whose names a reader need not see: they are cut from what was printed
    """
    pieces, pictures, still = [], {}, None
    for cell, after in zip(notebook.cells, [*notebook.cells[1:], None]):
        if cell.cell_type == "markdown":
            text, still = without_still(cell.source) if has_picture(after) else (cell.source, None)
            pieces.append(prose(text, lessons))
        elif cell.cell_type == "code" and cell.source.strip():
            pieces += [f"```python\n{cell.source.strip()}\n```",
                       *outputs(cell, number, pictures, hide, still and prose(still, lessons))]
            still = None
    return Page("\n\n".join(pieces) + "\n", pictures)


# -- text -------------------------------------------------------------------------------------------------------------

def without_still(source):
    """A cell of text without the still of the widget that follows, and that still; None where it has none."""
    still = STILL.search(source)
    return STILL.sub("\n\n", source), still and still[1]


def prose(source, lessons):
    """A cell of text, with links from docs/lessons/."""
    source = STILL.sub(r"\n\n\1\n\n", source)
    parts = FENCE.split(source)                       # what stands between fences is no link
    parts[::2] = [LINK.sub(lambda link: link[1] + relinked(link[2], lessons) + link[3], part) for part in parts[::2]]
    return "".join(parts).strip()


def relinked(target, lessons):
    """A link from a file in lessons/, as one from a file in docs/lessons/."""
    if OUTSIDE.match(target):
        return target
    path, mark, anchor = target.partition("#")
    name = path.removesuffix(".ipynb")
    if name != path and name in lessons:
        return f"{name}.md{mark}{anchor}"
    inside = posixpath.normpath(posixpath.join("lessons", path))
    return posixpath.relpath(inside, "docs/lessons") + mark + anchor


# -- what a cell has shown --------------------------------------------------------------------------------------------

def outputs(cell, number, pictures, hide=(), still=None):
    """Pieces of Markdown for the outputs of a cell of code; what is a picture goes to `pictures`.

    still    what to show in the place of its widget: a moment that says more than the first one
    """
    found, printed = [], ""
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            printed += output.text
            continue
        data = output.get("data", {})
        if "image/svg+xml" in data or "image/png" in data:
            found += block(printed, hide)
            printed = ""
            is_widget = "application/vnd.jupyter.widget-view+json" in data
            found.append(still if still and is_widget else picture(data, f"{number}_{cell.id}", pictures))
        elif data.get("text/plain", "").startswith("Quiz("):
            found.append(quiz(number))
        elif "text/markdown" in data:
            found.append(data["text/markdown"])
        else:
            printed += data.get("text/plain", "") + "\n"
    return found + block(printed, hide)


def block(printed, hide=()):
    """What was printed, as a block of text; nothing for nothing."""
    printed = plain(printed)
    for folder in hide:
        printed = printed.replace(f"{folder}/", "")
    printed = "\n".join(line.rstrip() for line in printed.split("\n")).strip("\n")
    return [f"```text\n{printed}\n```"] if printed else []


def plain(printed):
    """The text without a terminal's colours."""
    return COLOURS.sub("", printed)


def picture(data, name, pictures):
    """The image of an output, as a file that `pictures` gets, and its place in the text."""
    vector = data.get("image/svg+xml")
    suffix, content = ("svg", vector.encode()) if vector else ("png", base64.b64decode(data["image/png"]))
    while f"{name}.{suffix}" in pictures:             # several from one cell
        name += "-more"
    pictures[f"{name}.{suffix}"] = content
    words = data.get("text/plain", "")
    words = "A plot" if words.startswith(("<Figure", "Figure(")) else words
    words = re.sub(r"([\[\]\\])", r"\\\1", " ".join(words.split()))
    return f"![{words}](pictures/{name}.{suffix})"


def has_picture(cell):
    """Whether a cell has shown one."""
    return cell is not None and any("image/svg+xml" in output.get("data", {}) for output in cell.get("outputs", []))


def quiz(number):
    """How to get the questions."""
    return f"> The questions are in the notebook, and in a terminal: `python -m refimpl quiz --lesson {number}`."
