"""A hang under MPI is ended, not endured: every rank says what it waits for, prints its stack, and the job stops.

MPI cannot see a deadlock. So each rank notes what it waits for before it blocks, and a thread looks at the note once a
second; when the same wait has lasted REFIMPL_TIMEOUT seconds (default 120; 0: for ever), the rank reports and rings a
bell. The other ranks hear it and report, too, whatever they are doing; then the first one aborts the job.
"""

import os
import sys
import threading
import time
import traceback
from contextlib import contextmanager

DEFAULT_SECONDS = 120.0
GRACE = 3.0                               # seconds for the other ranks to print their reports


def timeout_seconds():
    """REFIMPL_TIMEOUT as a number of seconds, 0 for none; ValueError when it is not one."""
    text = os.environ.get("REFIMPL_TIMEOUT", "")
    try:
        seconds = float(text) if text else DEFAULT_SECONDS
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise ValueError(f"REFIMPL_TIMEOUT={text!r}: must be a number of seconds, or 0 to wait for ever")
    return seconds


class Watched:
    """What one thread of the rank waits for.

    waiting    a function that says it in words, or None
    """

    def __init__(self):
        self.thread, self.waiting, self.seen, self.since = threading.get_ident(), None, None, 0.0

    @contextmanager
    def waits(self, words):
        """While the block runs, the thread waits for what `words()` says."""
        outer, self.waiting = self.waiting, words
        try:
            yield
        finally:
            self.waiting = outer

    def seconds(self, now):
        """How long the present wait has lasted, as far as anybody looked; 0 when there is none."""
        if self.waiting is None or self.waiting is not self.seen:      # a new wait is a new object
            self.seen, self.since = self.waiting, now
        return now - self.since if self.waiting is not None else 0.0

    def stack(self):
        """The thread's Python stack, as text."""
        frame = sys._current_frames().get(self.thread)
        return "".join(traceback.format_stack(frame)) if frame else "  (no stack)\n"


class Watchdog:
    """Watches the threads of one rank.

    rank, size    this process's place in the job
    abort         called once, after the report, to end the job
    ring, rung    functions: tell the other ranks to report; has another rank done so?
    """

    def __init__(self, rank, size, abort, ring=lambda: None, rung=lambda: False):
        self.rank, self.size, self.abort, self.ring, self.rung = rank, size, abort, ring, rung
        self.watched = {}                     # thread -> Watched
        self.of_this_thread()
        self.seconds = timeout_seconds()
        if self.seconds:
            threading.Thread(target=self._watch, name="refimpl watchdog", daemon=True).start()

    def of_this_thread(self):
        """The `Watched` of the calling thread, which says there what it waits for."""
        return self.watched.setdefault(threading.get_ident(), Watched())

    def forget_this_thread(self):
        """The calling thread ends: there is nothing to report of it any more."""
        del self.watched[threading.get_ident()]

    def _watch(self):
        while True:
            time.sleep(min(1.0, self.seconds / 4))
            now = time.monotonic()
            waits = [(watched, watched.seconds(now)) for watched in list(self.watched.values())]
            late = any(seconds >= self.seconds for _, seconds in waits)
            if late or self.rung():
                for watched, seconds in waits:
                    self._report(watched, seconds)
                if late:
                    self.ring()
                    time.sleep(GRACE)
                    self.abort()
                return

    def _report(self, watched, seconds):
        doing = f"has waited {seconds:.1f} s {watched.waiting()}" if watched.waiting else "does not wait"
        print(f"\nrank {self.rank} of {self.size} {doing} (REFIMPL_TIMEOUT={self.seconds:g}); its stack:\n"
              f"{watched.stack()}", file=sys.stderr, flush=True)
