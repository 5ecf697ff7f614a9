"""Loss curves of several runs in one picture, for files."""

from refimpl.course.plots.files import check_plot_file, save

STYLES = (                                            # told apart without colour, too: width, dashes, markers
    {"color": "#0072B2", "linewidth": 4, "alpha": 0.45},
    {"color": "#D55E00", "linewidth": 1.5, "linestyle": "--", "marker": "o", "markersize": 3},
    {"color": "#009E73", "linewidth": 1.5, "linestyle": ":", "marker": "s", "markersize": 3},
)


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
    save(figure, path)
