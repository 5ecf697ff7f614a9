"""Pictures and texts as files: checked before the work, written whole or not at all."""

import os
from difflib import get_close_matches
from pathlib import Path

SUFFIXES = (".png", ".svg", ".pdf")


def check_plot_file(path, suffixes=SUFFIXES, option="--plot"):
    """ValueError unless a picture can be written to `path`: said before the work, not after it.

    suffixes    what its name may end in        option    of the command line, that the sentence is about
    """
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        near = get_close_matches(path.suffix.lower(), suffixes, n=1, cutoff=0.3) or suffixes
        works = path.parent / f"{path.stem or 'chart'}{near[0]}"
        raise ValueError(f"{option} {path}: the name must end in {', '.join(suffixes)}; {works} works")
    if not path.parent.is_dir():
        raise ValueError(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise ValueError(f"{option} {path}: cannot be written there")


def write_text(path, text):
    """Write text to `path`: under a temporary name, then renamed. OSError where it cannot be written."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save(figure, path):
    """Write a matplotlib figure to `path`: under a temporary name, then renamed. ValueError as in `check_plot_file`."""
    check_plot_file(path)
    temporary = Path(path).with_name(f".{Path(path).stem}.{os.getpid()}{Path(path).suffix}")
    try:
        figure.savefig(temporary, dpi=150)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
