"""Time over message size, one curve for each algorithm, for files."""

from refimpl.course.plots.files import save
from refimpl.course.plots.losses import STYLES


def plot_speed(path, rows, title):
    """Write a picture of the rows of a bench (size_bytes, algorithm, median_s), both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for k, name in enumerate(dict.fromkeys(row["algorithm"] for row in rows)):
        points = [(row["size_bytes"], row["median_s"]) for row in rows if row["algorithm"] == name]
        style = STYLES[k % len(STYLES)] | {"marker": "os^Dv<>"[k % 7], "markersize": 4, "linewidth": 1.5, "alpha": 1}
        axes.plot(*zip(*points, strict=True), label=name, **style)
    axes.set(title=title, xlabel="bytes", ylabel="seconds", xscale="log", yscale="log")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save(figure, path)
