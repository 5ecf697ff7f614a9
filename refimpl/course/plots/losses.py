"""Loss curves of several runs in one picture, for files."""

import os
from difflib import get_close_matches
from pathlib import Path

SUFFIXES = (".png", ".svg", ".pdf")
STYLES = (                                            # told apart without colour, too: width, dashes, markers
    {"color": "#0072B2", "linewidth": 4, "alpha": 0.45},
    {"color": "#D55E00", "linewidth": 1.5, "linestyle": "--", "marker": "o", "markersize": 3},
    {"color": "#009E73", "linewidth": 1.5, "linestyle": ":", "marker": "s", "markersize": 3},
)


def check_plot_file(path):
    """ValueError unless a picture can be written to `path`: said before the work, not after it."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        near = get_close_matches(path.suffix.lower(), SUFFIXES, n=1, cutoff=0.3) or [".png"]
        works = path.parent / f"{path.stem or 'losses'}{near[0]}"
        raise ValueError(f"--plot {path}: the name must end in {', '.join(SUFFIXES)}; {works} works")
    if not path.parent.is_dir():
        raise ValueError(f"--plot {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise ValueError(f"--plot {path}: cannot be written there")


def plot_losses(path, curves, title):
    """Write a picture of loss over steps.

    path      .png, .svg or .pdf; written under a temporary name first, then renamed
    curves    {label: losses, one a step}      ValueError as in `check_plot_file`
    """
    check_plot_file(path)
    from matplotlib.figure import Figure  # slow to import, and no window is wanted

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for k, (label, losses) in enumerate(curves.items()):
        axes.plot(range(1, len(losses) + 1), losses, label=label, **STYLES[k % len(STYLES)])
    axes.set(title=title, xlabel="step", ylabel="loss (nats per byte)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    temporary = Path(path).with_name(f".{Path(path).stem}.{os.getpid()}{Path(path).suffix}")
    try:
        figure.savefig(temporary, dpi=150)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
