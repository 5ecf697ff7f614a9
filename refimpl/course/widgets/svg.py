"""Building blocks of pictures. Each returns a piece of SVG, a string; `picture` makes a whole of them.

    box(40, 20, 90, 30, "rank 0", "forward")         text in the middle, in ink that can be read on it
    arrow(130, 35, 200, 35, "chunk 3")               a line with a head, and words beside its middle
    cells(40, 60, ["1", "3", "7"], ["soft", "forward", "weight"])    a row of an array's chunks
    bars(40, 90, [("ring", 150, "150 floats", "forward")], 400)      lengths that compare, each with its words

    picture(320, 120, box(...), arrow(...), title="A ring", words="Rank 0 sends chunk 3 to rank 1.")

Coordinates are pixels, y downwards. `kind` is the meaning of a colour: see theme.py. Strings only, no drawing library:
a picture of a thousand shapes takes a few milliseconds, so that it can be drawn anew at every move of a slider.
"""

import base64
import math
from dataclasses import dataclass
from html import escape

from refimpl.course.plots.gantt import save_svg
from refimpl.course.widgets.theme import PALETTE, check_kind, style

CHARACTER = 0.56                                      # width of a character, in sizes of its font, about


@dataclass(frozen=True)
class Picture:
    """A finished picture: an SVG element with its text alternative. A notebook shows it, GitHub too.

    title    what it is, a few words        words    what it shows, for somebody who cannot see it
    """

    svg: str
    title: str
    words: str

    def _repr_mimebundle_(self, include=None, exclude=None):
        words, data = f"{self.title}. {self.words}", base64.b64encode(self.svg.encode()).decode()
        image = f'<img alt="{escape(words)}" src="data:image/svg+xml;base64,{data}">'
        return {"image/svg+xml": self.svg, "text/html": image, "text/plain": words}      # JupyterLab trusts HTML sooner

    def save(self, path):
        """Write the SVG to a file, whole or not at all. ValueError as in `gantt.check_svg_file`."""
        save_svg(path, self.svg)


def picture(width, height, *shapes, title, words):
    """A `Picture` of the shapes, on paper of `width` x `height` pixels.

    title, words    the text alternative, as in `Picture`; it names what colours and positions say
    """
    name, body = escape(f"{title}. {words}"), "".join(shapes)
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" class="rf" viewBox="0 0 {_n(width)} {_n(height)}" '
        f'width="{_n(width)}" height="{_n(height)}" role="img" aria-label="{name}">'
        f"<title>{escape(title)}</title><desc>{escape(words)}</desc>{style()}"
        f'<rect class="paper" width="{_n(width)}" height="{_n(height)}" rx="4"/>{body}</svg>', title, words)


def group(*shapes, x=0, y=0):
    """The shapes, moved by (x, y)."""
    return f'<g transform="translate({_n(x)},{_n(y)})">{"".join(shapes)}</g>'


def text(x, y, words, size=13, anchor="start", bold=False, kind="ink"):
    """Words whose baseline begins (anchor="start"), has its middle ("middle") or ends ("end") at (x, y).

    kind    "ink", "faint", "on-forward" and so on: ink for words on a shape of that kind; "ink halo" on top of lines
    """
    weight = ' font-weight="600"' if bold else ""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return (f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}"{where}{weight}>'
            f"{escape(str(words))}</text>")


def width_of(words, size=13):
    """How wide the words are, about: pixels."""
    return len(str(words)) * size * CHARACTER


def box(x, y, width, height, label="", kind="plain", size=13, bold=False, hint=None, round=3):
    """A rectangle with a label in its middle. hint: words that appear under the mouse."""
    shape = (f'<rect class="{check_kind(kind)}" x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" '
             f'height="{_n(max(height, 0))}" rx="{_n(round)}">')
    shape += f"<title>{escape(hint)}</title></rect>" if hint else "</rect>"
    return shape + (text(x + width / 2, y + height / 2 + size * 0.36, label, size, "middle", bold, ink_on(kind))
                    if str(label) else "")


def disc(x, y, radius, label="", kind="plain", size=13, bold=False):
    """A circle around (x, y) with a label in its middle."""
    shape = f'<circle class="{check_kind(kind)}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"/>'
    return shape + (text(x, y + size * 0.36, label, size, "middle", bold, ink_on(kind)) if str(label) else "")


def ink_on(kind):
    """The kind of text that can be read on a shape of this kind."""
    return f"on-{kind}" if kind in PALETTE else "paper" if kind == "ink" else "ink"


def line(points, kind="plain", width=1.5, dash=None):
    """A line through [(x, y), ...]. dash: lengths of strokes and gaps, as in "4 3"."""
    path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline class="stroke {check_kind(kind)}" points="{path}" stroke-width="{_n(width)}"{dashes}/>'


def arrow(x1, y1, x2, y2, label="", kind="ink", width=2, dash=None, size=12, bend=0, side=1):
    """An arrow from (x1, y1) to (x2, y2), with words beside its middle.

    bend    how far its middle is moved to the left of its direction, pixels     side    1: words left of it, -1: right
    """
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    across = ((y2 - y1) / length, (x1 - x2) / length)                             # to the left, as y points down
    middle = ((x1 + x2) / 2 + 2 * bend * across[0], (y1 + y2) / 2 + 2 * bend * across[1])      # of the Bezier curve
    away = math.atan2(y2 - middle[1], x2 - middle[0])
    head = 3 + 2.5 * width
    neck = (x2 - 0.8 * head * math.cos(away), y2 - 0.8 * head * math.sin(away))
    corners = [(x2, y2), *((x2 - head * math.cos(away + turn), y2 - head * math.sin(away + turn))
                           for turn in (0.45, -0.45))]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    out = (f'<path class="stroke {check_kind(kind)}" d="M{_n(x1)},{_n(y1)} Q{_n(middle[0])},{_n(middle[1])} '
           f'{_n(neck[0])},{_n(neck[1])}" stroke-width="{_n(width)}"{dashes}/>'
           f'<polygon class="{kind}" points="{" ".join(f"{_n(x)},{_n(y)}" for x, y in corners)}"/>')
    if not str(label):
        return out
    reach = bend + side * (size * 0.5 + 4 + (width_of(label, size) / 2 - size * 0.3) * abs(across[0]))
    return out + text((x1 + x2) / 2 + reach * across[0], (y1 + y2) / 2 + reach * across[1] + size * 0.36, label, size,
                      "middle")


def cells(x, y, labels, kinds=None, width=44, height=28, gap=2, size=13, hints=None):
    """A row of boxes: the chunks of an array. kinds: one for all, or one for each."""
    kinds = kinds or "soft"
    kinds = [kinds] * len(labels) if isinstance(kinds, str) else kinds
    hints = hints or [None] * len(labels)
    return "".join(box(x + k * (width + gap), y, width, height, label, kind, size, hint=hint)
                   for k, (label, kind, hint) in enumerate(zip(labels, kinds, hints, strict=True)))


def bars(x, y, rows, width, longest=None, height=20, gap=8, labels=90, size=13):
    """Horizontal bars, one below the other, from (x, y) on.

    rows     [(label on the left, value, words at its end, kind)]
    width    pixels of the longest bar        longest    the value that it stands for; None: the largest
    labels   pixels for the labels
    """
    longest = longest or max((value for _, value, _, _ in rows), default=0) or 1
    out = []
    for k, (label, value, words, kind) in enumerate(rows):
        top, reach = y + k * (height + gap), width * value / longest
        out.append(text(x + labels - 8, top + height / 2 + size * 0.36, label, size, "end")
                   + box(x + labels, top, max(reach, 1), height, kind=kind, round=1)
                   + text(x + labels + reach + 6, top + height / 2 + size * 0.36, words, size))
    return "".join(out)


def legend(x, y, entries, size=12, gap=22):
    """What the kinds mean, in one line: [(kind, words), ...]."""
    out = []
    for kind, words in entries:
        out.append(box(x, y - 10, 12, 12, kind=kind, round=2) + text(x + 17, y, words, size))
        x += 17 + width_of(words, size) + gap
    return "".join(out)


def _n(number):
    """A coordinate as text: two digits after the point at most, none where there is nothing to say."""
    return f"{number:.2f}".rstrip("0").rstrip(".") if isinstance(number, float) else str(number)
