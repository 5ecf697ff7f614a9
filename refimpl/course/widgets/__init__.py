"""Things to play with: pictures that are a pure function of a few controls, drawn as SVG in a few milliseconds.

    from refimpl.course.widgets import AllReduceStepper
    AllReduceStepper()                         in a notebook; every widget is in a file of its own

theme.py has colours for light and dark, svg.py and axes.py the shapes, interactive.py ties controls to a picture.
"""

from refimpl.course.widgets.all_reduce_stepper import AllReduceStepper
from refimpl.course.widgets.alpha_beta_explorer import AlphaBetaExplorer
from refimpl.course.widgets.axes import Axes
from refimpl.course.widgets.deadlock_playground import DeadlockPlayground
from refimpl.course.widgets.interactive import Explorer, option, round_numbers, stops, switch, whole, words_area
from refimpl.course.widgets.svg import Picture, picture

__all__ = [
    "AllReduceStepper", "AlphaBetaExplorer", "Axes", "DeadlockPlayground", "Explorer", "Picture", "option", "picture",
    "round_numbers", "stops", "switch", "whole", "words_area",
]
