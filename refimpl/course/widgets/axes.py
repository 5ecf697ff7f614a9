"""Curves: a frame with round numbers, lines told apart by dashes, marks and words, points that are named.

    axes = Axes(60, 20, 420, 240, (1e3, 1e9), (1e-6, 1), "bytes", "seconds", log="xy")
    axes.frame() + axes.curve(points, "ring", "forward") + axes.point(x, y, "here they cross")
"""

import math

from refimpl.course.plots.gantt import ticks
from refimpl.course.widgets.svg import disc, line, text, width_of

DASHES = {"forward": None, "backward": "7 4", "weight": "2 3", "purple": "9 3 2 3"}


class Axes:
    """A rectangle of the picture, in units of the data.

    x, y, width, height    pixels        across, up    (first, last) of the data        log    "", "x", "y" or "xy"
    label_across, label_up    what the axes are        write    makes a tick's words of its number
    """

    def __init__(self, x, y, width, height, across, up, label_across="", label_up="", log="", write=None):
        for name, (first, last) in (("across", across), ("up", up)):
            if not first < last or first <= 0 and ("x" if name == "across" else "y") in log:
                raise ValueError(f"{name}=({first!r}, {last!r}): must grow, and be above 0 on a logarithmic axis")
        self.box, self.across, self.up = (x, y, width, height), across, up
        self.labels, self.log, self.write = (label_across, label_up), log, write or {}

    def place(self, x, y):
        """The pixel of a point of the data, held inside the frame."""
        left, top, width, height = self.box
        return (left + width * share(x, self.across, "x" in self.log),
                top + height * (1 - share(y, self.up, "y" in self.log)))

    def frame(self):
        """The frame, its numbers and labels."""
        left, top, width, height = self.box
        write_x, write_y = self.write.get("x", "{:g}".format), self.write.get("y", "{:g}".format)
        out = []
        for number in numbers(self.across, "x" in self.log):
            x, _ = self.place(number, self.up[0])
            out.append(line([(x, top), (x, top + height + 4)], "idle", 0.6)
                       + text(x, top + height + 17, write_x(number), 11, "middle"))
        for number in numbers(self.up, "y" in self.log):
            _, y = self.place(self.across[0], number)
            out.append(line([(left - 4, y), (left + width, y)], "idle", 0.6)
                       + text(left - 8, y + 4, write_y(number), 11, "end"))
        out.append(line([(left, top), (left, top + height), (left + width, top + height)], "ink", 1))
        out.append(text(left + width / 2, top + height + 36, self.labels[0], 12, "middle", kind="faint"))
        out.append(text(left - 40, top - 8, self.labels[1], 12, kind="faint"))
        return "".join(out)

    def curve(self, points, label="", kind="forward", width=2.5, dash=None):
        """A line through the points of the data, its name at its end. dash None: the one of its kind."""
        placed = [self.place(x, y) for x, y in points]
        x, y = placed[-1]
        return (line(placed, kind, width, dash or DASHES.get(kind))
                + (text(x + 6, y + 4, label, 12) if label else ""))

    @staticmethod
    def swatch(x, y, kind):
        """A piece of the curves' line of this kind, for a legend: from (x, y) to the right."""
        return line([(x, y), (x + 22, y)], kind, 2.5, DASHES.get(kind))

    def point(self, x, y, label="", kind="ink", side="above"):
        """A dot at a point of the data, its name beside it: above or below, or above-left, below-right and so on."""
        left, _, width, _ = self.box
        px, py = self.place(x, y)
        room = width_of(label, 12) / 2
        middle = px + (room + 8 if "right" in side else -room - 8 if "left" in side else 0)
        middle = min(max(middle, left + room + 4), left + width - room)
        return disc(px, py, 5, kind=kind) + text(middle, py - 11 if "above" in side else py + 20, label, 12, "middle",
                                                 bold=True, kind="ink halo")


def share(value, limits, log):
    """Where a value lies between two limits, from 0 to 1."""
    first, last = limits
    value = min(max(value, first), last)
    if log:
        first, last, value = math.log(first), math.log(last), math.log(value)
    return (value - first) / (last - first)


def numbers(limits, log):
    """Round numbers between two limits: powers of ten, 8 at most, or a dozen evenly apart."""
    first, last = limits
    if not log:
        return [first + step for step in ticks(last - first)] if first == 0 else [
            number for number in _even(first, last) if first <= number <= last]
    low, high = math.ceil(math.log10(first) - 1e-9), math.floor(math.log10(last) + 1e-9)
    stride = max(1, math.ceil((high - low + 1) / 8))
    return [10.0**power for power in range(low, high + 1, stride)]


def _even(first, last):
    """Multiples of 1, 2 or 5 times a power of ten, around the limits."""
    step = ticks(last - first)[1]
    return [step * k for k in range(math.floor(first / step), math.ceil(last / step) + 1)]
