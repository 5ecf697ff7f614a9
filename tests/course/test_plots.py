"""Pictures as files: in the format that the name says, with words on them, or an error before any work is done."""

import os
import re

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from refimpl.course.plots import losses, speed
from refimpl.course.plots.losses import check_plot_file, plot_losses
from refimpl.course.plots.speed import plot_speed

CURVES = {"one device": [5.5, 4.0, 3.5], "4 ranks": [5.5, 4.0, 3.5], "a third": [1.0, np.nan, 2.0], "a fourth": [1.0]}


@pytest.mark.parametrize("name, begins", [
    ("a.png", b"\x89PNG\r\n"), ("b.svg", b"<?xml"), ("c.pdf", b"%PDF"), ("D.PNG", b"\x89PNG"), (".e.svg", b"<?xml")])
def test_the_file_is_a_picture_of_the_kind_its_name_says_and_nothing_else_is_left(tmp_path, name, begins):
    plot_losses(tmp_path / name, CURVES, title="Losses")
    assert (tmp_path / name).read_bytes().startswith(begins)
    assert (tmp_path / name).stat().st_size > 2000
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_curves_have_their_labels_and_axes_their_units(tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")                         # text stays text
    plot_losses(tmp_path / "a.svg", {"one": [5.5, 5.4, 5.3], "two": [5.5, 5.4, 5.3]}, title="Two curves")
    words = re.findall(r"<text[^>]*>([^<]+)</text>", (tmp_path / "a.svg").read_text())
    assert {"one", "two", "Two curves", "step", "loss (nats per byte)"} <= set(words)
    assert {"1", "2", "3"} <= set(words)                                                     # steps are whole numbers


def test_curves_that_lie_on_each_other_are_told_apart_without_colour():
    widths_and_dashes = {(style["linewidth"], style.get("linestyle")) for style in losses.STYLES}
    assert len(widths_and_dashes) == len(losses.STYLES)


def test_an_old_picture_is_replaced_and_stays_when_writing_fails_half_way(tmp_path, monkeypatch):
    def full_disk(figure, path, **_):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    with monkeypatch.context() as broken, pytest.raises(OSError, match="No space left"):
        broken.setattr(Figure, "savefig", full_disk)
        plot_losses(path, CURVES, title="")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a.png"]
    plot_losses(str(path), CURVES, title="")
    assert path.read_bytes() != b"old"


@pytest.mark.parametrize("name, says", [
    ("loss.gif", "loss.gif: the name must end in .png, .svg, .pdf; .*loss.svg works"),
    ("loss.pgn", "loss.png works"),
    ("loss", "the name must end in .png, .svg, .pdf; .*loss.png works"),
    ("", "the name must end in"),
    ("missing/loss.png", "there is no folder .*missing"),
    ("folder.png", "folder.png: cannot be written there"),
])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    for check in (lambda: check_plot_file(name), lambda: plot_losses(name, CURVES, "")):
        with pytest.raises(ValueError, match=f"--plot .*{says}"):
            check()
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_what_is_said_to_work_works(tmp_path):
    with pytest.raises(ValueError) as caught:
        check_plot_file(tmp_path / "loss.jpg")
    check_plot_file(re.search(r"; (\S+) works", str(caught.value))[1])


@pytest.mark.skipif(os.name == "nt" or hasattr(os, "geteuid") and os.geteuid() == 0, reason="may write everywhere")
def test_a_folder_that_is_read_only_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="cannot be written there"):
        check_plot_file(tmp_path / "a.png")


# -- time over size ---------------------------------------------------------------------------------------------------

ROWS = [{"size_bytes": size, "algorithm": name, "median_s": size * k * 1e-9}
        for size in (4096, 2**20) for k, name in enumerate(("native", "ring", "tree"), start=1)]


def test_a_speed_plot_has_a_curve_for_each_algorithm_and_a_mark_for_each_size(tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    plot_speed(tmp_path / "a.svg", ROWS, "Four ranks", lambda size: f"{size} bytes")
    words = set(re.findall(r"<text[^>]*>([^<]+)</text>", (tmp_path / "a.svg").read_text()))
    assert {"native", "ring", "tree", "Four ranks", "seconds", "4096 bytes", "1048576 bytes"} <= words


def test_seven_algorithms_are_told_apart_with_and_without_colour():
    assert len(set(speed.COLORS)) == len(set(speed.MARKERS)) == 7


def test_a_speed_plot_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the name must end in .png, .svg, .pdf"):
        plot_speed(tmp_path / "a.gif", ROWS, "")
