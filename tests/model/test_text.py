"""Text: loading it, and drawing next-byte batches."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from refimpl.model import text


def test_every_python_brings_english_text():
    data = text.load()
    assert len(data) > 100_000
    assert data == text.load()
    assert b"statement" in data


def test_a_file_is_taken_byte_for_byte(tmp_path):
    path = tmp_path / "note.txt"
    path.write_bytes(b"a\r\n\xff\x00b")
    assert text.load(path) == text.load(str(path)) == b"a\r\n\xff\x00b"


def test_inputs_are_followed_by_their_targets():
    data = bytes(range(200))
    inputs, targets = text.batch(data, step=0, batch_size=50, context=7, seed=1)
    assert inputs.shape == (50, 7) and targets.shape == (50,)
    assert inputs.dtype == targets.dtype == np.uint8
    assert_array_equal(inputs - inputs[:, :1], np.broadcast_to(np.arange(7), (50, 7)))
    assert_array_equal(targets, inputs[:, -1] + 1)


def test_batches_depend_on_seed_and_step_and_nothing_else():
    data = text.load()
    draw = lambda step, seed: text.batch(data, step, 16, 8, seed)[0]
    assert_array_equal(draw(3, 5), draw(3, 5))
    assert not np.array_equal(draw(3, 5), draw(4, 5))
    assert not np.array_equal(draw(3, 5), draw(3, 6))
    assert not np.array_equal(draw(3, 5), draw(5, 3))


def test_every_window_of_the_text_can_be_drawn_the_last_included():
    inputs, targets = text.batch(b"abcd", 0, 200, context=2)
    assert {(bytes(i), t) for i, t in zip(inputs, targets, strict=True)} == {(b"ab", ord("c")), (b"bc", ord("d"))}


def test_a_batch_may_be_empty():
    inputs, targets = text.batch(b"abcd", 0, 0, context=3)
    assert inputs.shape == (0, 3) and targets.shape == (0,)


@pytest.mark.parametrize(("sizes", "says"), [
    ({"context": 4}, "context=4 and the byte after it do not fit 4 bytes of text; context may be at most 3"),
    ({"context": 0}, "context=0: expected 1 or more; nearest 1"),
    ({"batch_size": -1}, "batch_size=-1: expected 0 or more; nearest 0"),
    ({"step": -2}, "step=-2"),
    ({"seed": -3}, "seed=-3"),
    ({"data": b"a", "context": 1}, "do not fit 1 bytes of text; expected a longer text"),
])
def test_sizes_that_do_not_fit_are_named(sizes, says):
    with pytest.raises(ValueError, match=says):
        text.batch(**{"data": b"abcd", "step": 0, "batch_size": 1, "context": 2, "seed": 0} | sizes)


def test_files_that_cannot_be_read_are_named_with_the_nearest(tmp_path):
    (tmp_path / "shakespeare.txt").write_text("")
    with pytest.raises(ValueError, match=r"shakespeare.txt' is empty; expected at least 2 bytes"):
        text.load(tmp_path / "shakespeare.txt")
    with pytest.raises(ValueError, match=r"cannot read text '.*spear.txt': No such file.*nearest '.*speare.txt'"):
        text.load(tmp_path / "shakespear.txt")
    with pytest.raises(ValueError, match="expected a file in an existing folder"):
        text.load(tmp_path / "nowhere" / "shakespeare.txt")
    with pytest.raises(ValueError, match="cannot read text"):
        text.load(tmp_path)


def test_a_python_without_the_text_asks_for_a_file(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match="ships no pydoc_data.topics; expected a text file"):
        text.load()
