"""Time over message size, one curve for each algorithm, for files."""

from refimpl.course.plots.files import save

COLORS = ("#000000", "#D55E00", "#009E73", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9")      # Okabe & Ito 2008
MARKERS = "os^Dv<>"                                   # told apart without colour, too


def plot_speed(path, rows, title, size_words=str):
    """Write a picture of the rows of a bench (size_bytes, algorithm, median_s), both axes logarithmic.

    size_words    makes the labels of the sizes, in bytes      ValueError as in `files.check_plot_file`
    """
    from matplotlib.figure import Figure  # slow to import, and no window is wanted

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for k, name in enumerate(dict.fromkeys(row["algorithm"] for row in rows)):
        points = [(row["size_bytes"], row["median_s"]) for row in rows if row["algorithm"] == name]
        axes.plot(*zip(*points), label=name, color=COLORS[k % 7], marker=MARKERS[k % 7], markersize=5, linewidth=1.5)
    sizes = sorted({row["size_bytes"] for row in rows})
    axes.set(title=title, xlabel="size of the array", ylabel="seconds", xscale="log", yscale="log")
    axes.set_xticks(sizes, [size_words(size) for size in sizes])
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save(figure, path)
