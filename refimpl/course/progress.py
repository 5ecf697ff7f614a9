"""What a learner has done: every attempt is appended to one small file, and nothing in it is ever changed.

    me = progress()
    me.add("quiz", "pp-bubble", passed=False, detail={"choice": 2})
    me.attempts("quiz")                  # [Attempt(kind, name, when, passed, detail)], the oldest first
    me.messages()                        # what the learner should hear about the file, each thing once

Anything else (what is solved, which hint is next, what is due) is worked out from the attempts, so two notebooks and a
terminal may append at once and nothing has to be kept in step. SQLite in WAL mode does the locking; each call opens and
closes the file. It lies in the platform's folder for user data; REFIMPL_PROGRESS names another file.

No trouble with the file stops the learner. One that cannot be written: the attempts are kept until this process ends.
A damaged one: it is put aside, and what can still be read goes into a new one (mending.py).
"""

import functools
import json
import os
import sqlite3
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_data_path

from refimpl.course import mending

TABLE = """CREATE TABLE IF NOT EXISTS attempt (
    id INTEGER PRIMARY KEY, kind TEXT, name TEXT, at TEXT, passed INTEGER, detail TEXT)"""
INSERT = "INSERT INTO attempt (kind, name, at, passed, detail) VALUES (?, ?, ?, ?, ?)"
SELECT = "SELECT kind, name, at, passed, detail FROM attempt"
PATIENCE = 10.0                                      # seconds to wait for another process that is writing


class Attempt(NamedTuple):
    """One attempt. when is in UTC; passed True, False, or None where there is nothing to pass; detail: any JSON."""

    kind: str
    name: str
    when: datetime
    passed: bool | None
    detail: object = None


def progress_file():
    """The path of the progress file: REFIMPL_PROGRESS, or the platform's place for user data."""
    chosen = os.environ.get("REFIMPL_PROGRESS")
    return Path(chosen).expanduser() if chosen else user_data_path("refimpl", appauthor=False) / "progress.sqlite"


def progress(path=None):
    """The `Progress` of a file (default `progress_file()`): one for each file in this process."""
    return _progress(Path(path or progress_file()).absolute())


@functools.cache
def _progress(path):
    return Progress(path)


class Progress:
    """The attempts in one file. See the top of this file for its use."""

    def __init__(self, path):
        self.path = Path(path)
        self.unsaved = []                            # rows that could not be written: tried again with the next one
        self._said, self._to_say = set(), []

    def add(self, kind, name, passed=None, detail=None, when=None):
        """Append an attempt and return it. when: a datetime with a time zone, default now."""
        when = when or datetime.now(UTC)
        if when.tzinfo is None:
            raise ValueError(f"when={when}: give it a time zone, such as datetime.now(timezone.utc)")
        row = (kind, name, when.astimezone(UTC).isoformat(), passed, json.dumps(detail))
        self.unsaved.append(row)
        try:
            self._trying(self._save)
        except (sqlite3.Error, OSError) as error:
            self._say(f"{self.path} cannot be written ({error}): what you do now is remembered only until you stop")
        return attempt(row)

    def attempts(self, kind=None, name=None):
        """All attempts of this kind and name (None: of any), those of other processes included, the oldest first."""
        rows = []
        try:
            if self.path.exists():
                rows = self._trying(self._read)
        except (sqlite3.Error, OSError) as error:
            self._say(f"{self.path} cannot be read as a whole ({error}): it is left as it is")
            with suppress(sqlite3.Error, OSError):
                rows, _ = mending.read_each_row(self.path, SELECT)
        found = [attempt(row) for row in rows + self.unsaved if mending.is_attempt(row)]
        return [a for a in found if kind in (None, a.kind) and name in (None, a.name)]

    def forget(self, attempts):
        """Remove these attempts, and no others, from the file. OSError where it cannot be written."""
        gone = [(a.kind, a.name, a.when.isoformat()) for a in attempts]
        self.unsaved = [row for row in self.unsaved if row[:3] not in gone]
        if self.path.exists():
            self._trying(lambda: self._forget(gone))

    def messages(self):
        """What there is to say about the file since the last call: a list of sentences. Nothing is said twice."""
        messages, self._to_say = self._to_say, []
        return messages

    # -- the file -------------------------------------------------------------------------------------------------
    def _save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if read_only(self.path):
            raise OSError("it is read-only")
        with closing(connect(self.path)) as db, db:
            check_ours(db)
            if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                db.execute("PRAGMA journal_mode=wal")
            db.execute("PRAGMA synchronous=normal")
            db.execute(TABLE)
            db.executemany(INSERT, self.unsaved)
        self.unsaved = []

    def _forget(self, gone):
        if read_only(self.path):
            raise OSError(f"{self.path} is read-only")
        with closing(connect(self.path)) as db, db:
            check_ours(db)
            db.executemany("DELETE FROM attempt WHERE kind = ? AND name = ? AND at = ?", gone)

    def _read(self):
        with suppress(sqlite3.OperationalError):     # in a folder that cannot be written SQLite may refuse, too
            if not read_only(self.path):
                return rows_of(self.path)
        with mending.a_copy(self.path) as copy:
            return rows_of(copy)

    def _trying(self, work):
        """work(), and once more after mending the file where it is damaged."""
        try:
            return patiently(work)
        except sqlite3.DatabaseError as error:
            if not mending.says_damaged(error) or read_only(self.path):
                raise
            self._say(mending.mend(self.path, TABLE, INSERT, SELECT))
            return patiently(work)

    def _say(self, message):
        if message and message not in self._said:
            self._said.add(message)
            self._to_say.append(message)


def patiently(work):
    """work(), tried again while others hold the file: SQLite does not wait where it makes the file a WAL one."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)


def attempt(row):
    """The `Attempt` in a row of the table."""
    kind, name, at, passed, detail = row
    try:
        detail = json.loads(detail)
    except (TypeError, ValueError):                  # wrong bytes in it do not take the attempt along
        detail = None
    return Attempt(kind, name, datetime.fromisoformat(at), None if passed is None else bool(passed), detail)


def connect(path):
    """A connection that waits for others, and reads text even where some of its bytes are wrong."""
    db = sqlite3.connect(path, timeout=PATIENCE)
    db.text_factory = lambda raw: raw.decode(errors="replace")
    return db


def rows_of(path):
    """All rows of the file at `path`."""
    with closing(connect(path)) as db:
        check_ours(db)
        ours = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'attempt'").fetchone()
        return db.execute(SELECT + " ORDER BY id").fetchall() if ours else []


def check_ours(db):
    """OSError if the database belongs to another program: nothing is to be added to it."""
    tables = {name for name, in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables - {"attempt"}:
        raise OSError("it is the database of another program")


def read_only(path):
    """Whether the file is marked as read-only or this process may not write it; False where there is none."""
    return path.exists() and not (path.stat().st_mode & 0o222 and os.access(path, os.W_OK))
