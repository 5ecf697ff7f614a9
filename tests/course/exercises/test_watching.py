"""The watcher names the files that were saved, however editors save them, and no others."""

import os

import pytest

from refimpl.course.exercises import watching


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "EVERY", 0.01)
    paths = [tmp_path / name for name in ("a.py", "b.py", "c.py")]
    for path in paths:
        path.write_text("1")
    return paths


def test_a_save_before_the_first_look_is_not_missed(files):
    changes = watching.saved(files)
    files[1].write_text("22")
    assert next(changes) == files[1]
    files[2].write_text("22")
    assert next(changes) == files[2]


def test_a_save_under_another_name_and_a_rename_counts(files, tmp_path):
    changes = watching.saved(files)
    (tmp_path / "new").write_text("1")
    os.replace(tmp_path / "new", files[2])
    assert next(changes) == files[2]


def test_a_file_that_is_gone_counts_when_it_is_back(files):
    changes = watching.saved(files)
    files[0].unlink()
    files[1].write_text("22")
    assert next(changes) == files[1]
    files[0].write_text("1")
    assert next(changes) == files[0]
