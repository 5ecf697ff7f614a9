"""Watch files, and say which one was saved: a look at each every 0.2 seconds, which needs nothing from the platform."""

import time

EVERY = 0.2                         # seconds between two looks
SETTLE = 0.05                       # an editor may write in two steps: a change counts when it has stopped changing


def saved(paths):
    """An endless iterator over the paths as they are saved, from this call on."""
    return saves({path: stamp(path) for path in paths})              # now, not when the first one is asked for


def saves(known):
    """Yield each path whose stamp is no longer the known one, and know the new one."""
    while True:
        time.sleep(EVERY)
        for path in known:
            now = stamp(path)
            if now not in (None, known[path]):                       # None: between two steps of a rename
                while now != (later := settled(path)):
                    now = later
                if now is not None:
                    known[path] = now
                    yield path


def settled(path):
    """The stamp of a file a moment later."""
    time.sleep(SETTLE)
    return stamp(path)


def stamp(path):
    """What changes whenever a file is saved; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
