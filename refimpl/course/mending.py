"""A damaged progress file: put it aside, and bring what can still be read into a new one.

    progress.sqlite  -- renamed -->  progress.sqlite.damaged-1        nothing is thrown away
                     <-- rows ----   read one by one: a broken page takes only its own rows along

The new file is made complete under a temporary name and then renamed, so that no other process meets half of it. Of
several processes that find the damage at once, one mends and the others wait.
"""

import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

PATIENCE = 20.0                     # seconds after which a lock was left behind by a process that died
SMALLEST_ROW = 32                   # bytes; an attempt takes more, which limits how many a file can hold


def says_damaged(error):
    """Whether the exception of sqlite3 means that the file is broken, and not that it is busy or forbidden."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def is_attempt(row):
    """Whether a row has everything that an attempt needs; wrong bytes may have got into any of it."""
    kind, name, at, passed, _ = row
    try:
        good = datetime.fromisoformat(at).tzinfo is not None
    except (TypeError, ValueError):
        return False
    return good and isinstance(kind, str) and isinstance(name, str) and passed in (None, 0, 1)


def mend(path, table, insert, select):
    """Replace the damaged file at `path` by a new one with every row that can be read; what to tell the learner.

    None where another process has mended it. OSError where the folder cannot be written: the file is left as it is.
    """
    with lock(beside(path, ".mending")):
        rows, whole = read_each_row(path, select)
        if whole:
            return None
        handle, new = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        os.close(handle)
        try:
            with closing(sqlite3.connect(new)) as db, db:
                db.execute(table)
                db.executemany(insert, rows)
            aside = put_aside(path)
            os.replace(new, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(new)
    return (f"{path} was damaged: {len(rows)} attempt{'s' * (len(rows) != 1)} could be read and "
            f"{'are' if len(rows) != 1 else 'is'} kept; the damaged file is now {aside.name}, beside it")


def read_each_row(path, select):
    """(rows that can be read, whether the whole file is in order); the file itself is not touched."""
    rows = []
    with a_copy(path) as copy, closing(sqlite3.connect(copy)) as db:
        db.text_factory = lambda raw: raw.decode(errors="replace")
        for key in range(1, last_key(db, copy) + 1):
            with passing_over_damage():
                rows += db.execute(f"{select} WHERE id = ?", (key,)).fetchall()
        with passing_over_damage():
            return rows, db.execute("PRAGMA quick_check").fetchone() == ("ok",)
    return rows, False


@contextmanager
def a_copy(path):
    """The path of a copy that SQLite may open as it likes, in a temporary folder; one cut short has its length back."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "progress.sqlite"
        shutil.copyfile(path, copy)
        with suppress(FileNotFoundError):
            shutil.copyfile(beside(path, "-wal"), beside(copy, "-wal"))
        header = copy.read_bytes()[:100]
        stated = int.from_bytes(header[16:18]) * int.from_bytes(header[28:32])      # size of a page, number of pages
        size = copy.stat().st_size
        if header.startswith(b"SQLite format 3\0") and size < stated < 4 * size + 2**24:
            os.truncate(copy, stated)                # else SQLite gives up on all of it, for the pages that are gone
        yield copy


@contextmanager
def passing_over_damage():
    """Leave the block at the first sign of a broken file, and go on behind it."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if not says_damaged(error):
            raise


def last_key(db, path):
    """The largest key worth a try: the table's own, or, where that is unreadable, what the file could hold at most."""
    with passing_over_damage():
        return db.execute("SELECT max(id) FROM attempt").fetchone()[0] or 0
    return sum(p.stat().st_size for p in (path, beside(path, "-wal")) if p.exists()) // SMALLEST_ROW


def put_aside(path):
    """Rename the file, and what SQLite keeps beside it, to a name that is free; the new path."""
    number = 1
    while (aside := beside(path, f".damaged-{number}")).exists():
        number += 1
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            os.replace(beside(path, suffix), beside(aside, suffix))
    return aside


def beside(path, suffix):
    """The path with something after its name."""
    return Path(f"{path}{suffix}")


@contextmanager
def lock(path):
    """Only one process at a time is inside; the file at `path` says that somebody is."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            if time.monotonic() > deadline:
                deadline += PATIENCE
                with suppress(FileNotFoundError):
                    path.unlink()
            time.sleep(0.02)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
