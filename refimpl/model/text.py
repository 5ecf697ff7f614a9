"""Real text without a download: the bytes of Python's own language reference, and next-byte batches drawn from it.

    data              ... The "while" statement is used for ...
    windows (B, C + 1)        [while" sta]                         C = context bytes, and one more
    inputs  (B, C)            [while" st]
    targets (B,)                        [a]                        the byte that follows them, or
            (B, C)             [hile" sta]                         after each byte the one that follows it

A byte is a token, so the vocabulary has 256 entries and needs no tokenizer. Every CPython ships the text (pydoc's help
on keywords and types, about 0.7 MB), but it differs between Python versions: compare losses only within one version.
"""

import difflib
import importlib
import pathlib

import numpy as np

VOCABULARY = 256


def load(path=None):
    """The text as bytes: the file at `path`, or else pydoc_data.topics, all its entries in sorted order of their keys.

    Raises ValueError if the file is missing, unreadable or empty, or if this Python ships no pydoc_data.
    """
    if path is None:
        try:
            topics = importlib.import_module("pydoc_data.topics").topics
        except ImportError:
            raise ValueError("this Python ships no pydoc_data.topics; expected a text file instead") from None
        return "\n".join(topics[key] for key in sorted(topics)).encode()
    path = pathlib.Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read text {str(path)!r}: {error.strerror}; {_nearest(path)}") from None
    if not data:
        raise ValueError(f"text {str(path)!r} is empty; expected at least 2 bytes of text")
    return data


def _nearest(path):
    """Words on what might have been meant: a file of nearly that name in the same folder."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"expected a file in an existing folder, and {str(path.parent)!r} is not one"
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    return f"nearest {str(path.parent / near[0])!r}" if near else "expected a readable file"


def windows(data, step, batch_size, context, seed=0):
    """Pieces of the text, drawn at random places; the same for the same (data, seed, step), on any rank.

    data       bytes, at least context + 1 of them        step, seed  integers from 0
    ->         (batch_size, context + 1) uint8, a host array
    Raises ValueError for sizes that do not fit.
    """
    least_of = {"step": (step, 0), "seed": (seed, 0), "batch_size": (batch_size, 0), "context": (context, 1)}
    for name, (value, least) in least_of.items():
        if value < least:
            raise ValueError(f"{name}={value}: expected {least} or more; nearest {least}")
    if len(data) <= context:
        raise ValueError(f"context={context} and the byte after it do not fit {len(data)} bytes of text; "
                         + (f"context may be at most {len(data) - 1}" if len(data) > 1 else "expected a longer text"))
    starts = np.random.default_rng((seed, step)).integers(0, len(data) - context, batch_size)
    return np.frombuffer(data, np.uint8)[starts[:, None] + np.arange(context + 1)]


def batch(data, step, batch_size, context, seed=0):
    """Windows and the one byte that follows each.

    as in `windows`  ->  inputs (batch_size, context) uint8, targets (batch_size,) uint8, both host arrays
    """
    drawn = windows(data, step, batch_size, context, seed)
    return drawn[:, :-1], drawn[:, -1]


def entropy(data):
    """Nats per byte of a guess that knows only how frequent each byte is: what a model must beat to have learned more.

    data    bytes
    """
    frequencies = np.bincount(np.frombuffer(data, np.uint8)) / len(data)
    return float(-(frequencies[frequencies > 0] * np.log(frequencies[frequencies > 0])).sum())
