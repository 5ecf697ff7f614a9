"""Pictures of the lessons as files, for pages without a kernel: lessons/pictures/NN_name.svg.

    python -m refimpl.course.widgets.stills          write them all anew; a test compares them with what is stored

A lesson shows one with ![what it shows](pictures/NN_name.svg) in a cell of text, GitHub as well as JupyterLab.
"""

from pathlib import Path

from refimpl.course.widgets.all_reduce_stepper import draw_all_reduce
from refimpl.course.widgets.alpha_beta_explorer import draw_alpha_beta
from refimpl.course.widgets.deadlock_playground import draw_deadlock

FOLDER = Path(__file__).parents[3] / "lessons" / "pictures"
STILLS = {                                               # file: what draws its picture
    "01_ring_step.svg": lambda: draw_all_reduce(4, 2),
    "01_alpha_beta.svg": draw_alpha_beta,
    "01_deadlock.svg": draw_deadlock,
}


def write(folder=FOLDER):
    """Write every still into `folder`; the paths."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    for name, draw in STILLS.items():
        draw().save(folder / name)
    return [folder / name for name in STILLS]


if __name__ == "__main__":
    print(*write(), sep="\n")
