"""What a learner has done is remembered: by several processes at once, and whatever happens to the file."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from refimpl.course import progress as module
from refimpl.course.progress import Progress, progress, progress_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("REFIMPL_PROGRESS", str(tmp_path / "folder" / "progress.sqlite"))
    return progress_file()


def fill(path, number):
    """A file with that many attempts, written at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(module.TABLE)
        db.executemany(module.INSERT, [("quiz", f"q{k}", "2026-01-01T00:00:00+00:00", 1, '{"why": "a longer text"}')
                                       for k in range(number)])
    return Progress(path)


def names(me):
    return [a.name for a in me.attempts()]


def test_an_attempt_comes_back_as_it_was_given(path):
    when = datetime(2026, 5, 4, 12, tzinfo=timezone(timedelta(hours=2)))
    added = Progress(path).add("quiz", "ring", passed=False, detail={"choice": [1, "é"]}, when=when)
    Progress(path).add("hint", "ring")
    first, second = Progress(path).attempts()
    assert first == added and first.when == when and first.when.tzinfo == UTC
    assert first.passed is False and first.detail == {"choice": [1, "é"]}
    assert second.passed is None and second.detail is None
    assert abs(second.when - datetime.now(UTC)) < timedelta(minutes=1)


def test_attempts_are_asked_for_by_kind_and_name_and_come_in_order(path):
    me = Progress(path)
    for kind, name in [("quiz", "b"), ("exercise", "a"), ("quiz", "a"), ("quiz", "b")]:
        me.add(kind, name, passed=True)
    assert [a.name for a in me.attempts("quiz")] == ["b", "a", "b"]
    assert [a.kind for a in me.attempts(name="a")] == ["exercise", "quiz"]
    assert len(me.attempts("quiz", "b")) == 2 and me.attempts("hint") == []
    assert me.messages() == []


def test_a_time_without_a_zone_is_refused(path):
    with pytest.raises(ValueError, match="time zone"):
        Progress(path).add("quiz", "a", when=datetime(2026, 1, 1))
    assert not path.exists()


def test_the_file_lies_among_the_users_data_or_where_the_environment_says(path, monkeypatch):
    assert progress() is progress(path) and progress().path == path
    monkeypatch.delenv("REFIMPL_PROGRESS")
    assert progress_file().name == "progress.sqlite" and "refimpl" in progress_file().parent.name


def test_the_file_is_in_wal_mode(path):
    Progress(path).add("quiz", "a")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


WRITER = """
import sys
from refimpl.course.progress import progress
for k in range(25):
    progress().add("quiz", f"{sys.argv[1]}-{k}", passed=True)
print(*progress().messages())
"""


def together(path, number=4):
    """Several processes append at once; what they said."""
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(w)], cwd=ROOT, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True) for w in range(number)]
    said = [writer.communicate(timeout=120)[0].strip() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * number, said
    return said


def test_several_processes_lose_no_attempt(path):
    assert together(path) == [""] * 4
    assert sorted(names(Progress(path))) == sorted(f"{w}-{k}" for w in range(4) for k in range(25))


# trouble with the file

def test_something_that_is_no_database_is_put_aside_with_a_message(path):
    path.parent.mkdir()
    path.write_bytes(b"not a database, whatever it is" * 100)
    me = Progress(path)
    me.add("quiz", "a", passed=True)
    assert names(Progress(path)) == ["a"]
    said, = me.messages()
    assert "was damaged: 0 attempts could be read" in said and "progress.sqlite.damaged-1" in said
    assert (path.parent / "progress.sqlite.damaged-1").read_bytes() == b"not a database, whatever it is" * 100
    assert me.messages() == []
    assert sorted(p.name for p in path.parent.iterdir()) == ["progress.sqlite", "progress.sqlite.damaged-1"]


def test_a_broken_page_takes_only_its_own_rows_along(path):
    fill(path, 500)
    raw = bytearray(path.read_bytes())
    page = len(raw) // 4096 // 2 * 4096
    raw[page:page + 4096] = bytes(4096)
    path.write_bytes(raw)
    me = Progress(path)
    found = names(me)
    lost = {f"q{k}" for k in range(500)} - set(found)
    assert 0 < len(lost) < 100 and found == [f"q{k}" for k in range(500) if f"q{k}" not in lost]
    assert f"{len(found)} attempts could be read and are kept" in me.messages()[0]
    me.add("quiz", "after")
    assert names(Progress(path)) == [*found, "after"]


def test_the_rows_before_a_broken_end_are_kept(path):
    fill(path, 500)
    raw = path.read_bytes()
    path.write_bytes(raw[:len(raw) - 4096] + bytes(4096))
    me = Progress(path)
    assert len(names(me)) > 400 and names(me)[:400] == [f"q{k}" for k in range(400)]
    assert "could be read" in me.messages()[0]


def test_a_file_cut_short_gives_what_it_still_has(path):
    fill(path, 500)
    raw = path.read_bytes()
    path.write_bytes(raw[:len(raw) // 2])
    me = Progress(path)
    me.add("quiz", "after")
    assert "q0" in names(me) and names(me)[-1] == "after" and len(names(me)) > 100
    assert "was damaged" in me.messages()[0]


def test_of_several_processes_that_meet_the_damage_one_mends_it(path):
    path.parent.mkdir()
    path.write_bytes(b"not a database, whatever it is" * 100)
    said = together(path, 3)
    assert len([s for s in said if s]) == 1 and "was damaged" in "".join(said)
    assert len(names(Progress(path))) == 75
    assert len(list(path.parent.glob("*.damaged-*"))) == 1


def test_wrong_bytes_in_a_row_do_not_take_the_others_along(path):
    me = fill(path, 3)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE attempt SET name = CAST(x'ff71' AS TEXT), detail = '{' WHERE id = 1")
        db.execute("UPDATE attempt SET at = 'yesterday' WHERE id = 2")
    assert names(me) == ["\ufffdq", "q2"] and me.attempts()[0].detail is None
    assert me.messages() == []


def test_a_read_only_file_is_read_and_left_as_it_is(path):
    fill(path, 3)
    path.chmod(0o444)
    before = path.read_bytes()
    me = Progress(path)
    me.add("quiz", "now", passed=True)
    assert names(me) == ["q0", "q1", "q2", "now"]
    said, = me.messages()
    assert "cannot be written (it is read-only)" in said and "remembered only until you stop" in said
    me.add("quiz", "again")
    assert me.messages() == []
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == [path.name]
    path.chmod(0o644)                                  # what could not be saved is saved as soon as it can be
    me.add("quiz", "at last")
    assert names(Progress(path)) == ["q0", "q1", "q2", "now", "again", "at last"]


def test_a_read_only_file_that_is_damaged_gives_what_it_has_and_stays(path):
    fill(path, 500)
    raw = path.read_bytes()
    path.write_bytes(raw[:len(raw) - 4096] + bytes(4096))
    path.chmod(0o444)
    me = Progress(path)
    assert names(me)[:400] == [f"q{k}" for k in range(400)]
    assert "left as it is" in me.messages()[0] and [p.name for p in path.parent.iterdir()] == [path.name]


def test_rows_that_only_the_write_ahead_log_has_are_read_from_a_read_only_file(path):
    fill(path, 1)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=wal")
        with db:
            db.execute(module.INSERT, ("quiz", "in the log", "2026-01-01T00:00:00+00:00", 1, "null"))
        path.chmod(0o444)
        assert names(Progress(path)) == ["q0", "in the log"]


@pytest.mark.parametrize("where", ["a folder", "below a file"])
def test_a_place_where_no_file_can_be_is_met_with_a_message(where, tmp_path):
    (tmp_path / "file").touch()
    me = Progress(tmp_path if where == "a folder" else tmp_path / "file" / "progress.sqlite")
    me.add("quiz", "a", passed=True)
    assert names(me) == ["a"]
    assert "cannot be written" in me.messages()[0]


def test_the_database_of_another_program_is_left_alone(path):
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()
    me = Progress(path)
    me.add("quiz", "a")
    assert names(me) == ["a"] and path.read_bytes() == before
    assert all("another program" in said for said in me.messages())


def test_a_file_that_another_process_keeps_locked_is_met_with_a_message(path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    me = fill(path, 1)
    with closing(sqlite3.connect(path)) as db:
        db.execute("BEGIN EXCLUSIVE")
        me.add("quiz", "a")
        assert "locked" in me.messages()[0]
    me.add("quiz", "b")
    assert names(Progress(path)) == ["q0", "a", "b"]
