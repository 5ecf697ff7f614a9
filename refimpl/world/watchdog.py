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


class Watchdog:
    """Watches one rank's main thread.

    rank, size    this process's place in the job
    abort         called once, after the report, to end the job
    ring, rung    functions: tell the other ranks to report; has another rank done so?
    waiting       what the rank waits for: a function that says it in words, or None
    """

    def __init__(self, rank, size, abort, ring=lambda: None, rung=lambda: False):
        self.rank, self.size, self.abort, self.ring, self.rung = rank, size, abort, ring, rung
        self.waiting = None
        self.seconds = timeout_seconds()
        self.thread_watched = threading.get_ident()
        if self.seconds:
            threading.Thread(target=self._watch, name="refimpl watchdog", daemon=True).start()

    @contextmanager
    def waits(self, words):
        """While the block runs, the rank waits for what `words()` says."""
        self.waiting = words
        try:
            yield
        finally:
            self.waiting = None

    def _watch(self):
        seen, since = None, time.monotonic()
        while True:
            time.sleep(min(1.0, self.seconds / 4))
            now, waiting = time.monotonic(), self.waiting
            if waiting is None or waiting is not seen:      # a new wait is a new object
                seen, since = waiting, now
            late = waiting is not None and now - since >= self.seconds
            if late or self.rung():
                self._report(waiting, now - since)
                if late:
                    self.ring()
                    time.sleep(GRACE)
                    self.abort()
                return

    def _report(self, waiting, seconds):
        frame = sys._current_frames().get(self.thread_watched)
        stack = "".join(traceback.format_stack(frame)) if frame else "  (no stack)\n"
        doing = f"has waited {seconds:.1f} s {waiting()}" if waiting else "does not wait"
        print(f"\nrank {self.rank} of {self.size} {doing} (REFIMPL_TIMEOUT={self.seconds:g}); its stack:\n{stack}",
              file=sys.stderr, flush=True)
