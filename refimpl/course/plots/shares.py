"""Shares of what is possible as bars, for files."""

from refimpl.course.plots.files import save

MEASURED, BESIDE = "#0072B2", "#000000"                       # Okabe & Ito 2008


def plot_shares(path, shares, title, beside=None, label=""):
    """Write a picture of {name: share of 1}, a bar each.

    beside    {name: share} to mark on the bars, such as what is claimed        label    what the marks are
    ValueError as in `files.check_plot_file`.
    """
    from matplotlib.figure import Figure  # slow to import, and no window is wanted

    figure = Figure(figsize=(7, 0.9 + 0.4 * len(shares)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(list(shares), list(shares.values()), color=MEASURED, height=0.6)
    axes.bar_label(bars, [f"{share:.0%}" for share in shares.values()], label_type="center", color="white")
    for row, name in enumerate(shares):
        if beside and name in beside:
            axes.plot([beside[name]] * 2, [row - 0.4, row + 0.4], color=BESIDE, linewidth=2,
                      label=label if row == 0 else None)
    axes.set(title=title, xlim=(0, max(1.05, 1.1 * max(shares.values()))))
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    if label:
        figure.legend(frameon=False, loc="outside lower right")               # beside the bars, not on them
    save(figure, path)
