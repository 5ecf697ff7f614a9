"""Run a learner's function on ranks, count what it sends, and say what is wrong with it.

    examine(function, "ring_all_reduce")            a function, from a notebook or a test
    examine_file(path, "ring_all_reduce")           a file that a learner edits

Sends wait for their receivers here, as on a real network with large messages: what hangs there fails here. What breaks
is shown with the learner's own line, and what does not end is stopped.
"""

import _thread
import linecache
import os
import re
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from refimpl.course.exercises import (
    bugs_cases,
    composing_cases,
    context_cases,
    costs_cases,
    experts_cases,
    pipeline_cases,
    replicas_cases,
    steps_cases,
    stubs,
)
from refimpl.course.exercises.cases import cases
from refimpl.course.exercises.catalogue import find
from refimpl.course.exercises.finding import NOT_IMPLEMENTED, PASSED, Verdict, Wrong
from refimpl.course.exercises.grading import grade
from refimpl.course.exercises.verdict import judge
from refimpl.measure.ledger import Ledger
from refimpl.world.deadlock import location
from refimpl.world.errors import CollectiveMismatchError, DeadlockError, UndeliveredMessageError
from refimpl.world.local import run_local

SECONDS = 10.0                                        # for one run; a right answer takes milliseconds
TRIALS = (pipeline_cases.TRIALS | replicas_cases.TRIALS | context_cases.TRIALS | experts_cases.TRIALS
          | composing_cases.TRIALS | costs_cases.TRIALS | bugs_cases.TRIALS | steps_cases.TRIALS)       # without ranks
CASES = (replicas_cases.CASES | context_cases.CASES | experts_cases.CASES | composing_cases.CASES
         | bugs_cases.CASES)
PACKAGE = os.path.join(Path(__file__).resolve().parents[2], "")


def examine(function, name, seconds=SECONDS):
    """The `Verdict` on a function; ValueError if there is no such exercise or it cannot be called."""
    exercise = find(name)
    if not callable(function):
        raise ValueError(f"{function!r} cannot be called: give the function itself, "
                         f"check({exercise.name!r}, {exercise.name})")
    return _verdict(exercise, lambda: function, seconds)


def examine_file(path, name, seconds=SECONDS):
    """The `Verdict` on the function of that name in a file; ValueError if the file cannot be read."""
    exercise, text = find(name), stubs.read(Path(path))
    return _verdict(exercise, lambda: load(text, path, exercise.name, seconds), seconds)


def _verdict(exercise, get_function, seconds):
    """Try the function on every case, count the points, and put what was found in words."""
    on_ranks = exercise.name not in TRIALS
    all_cases = cases_of(exercise.name) if on_ranks else TRIALS[exercise.name]()

    def check():
        function = get_function()
        for case in all_cases:
            (try_one if on_ranks else try_alone)(function, case, seconds)

    result = grade(check, exercise.points)
    if result.passed:
        headline = on_all_ranks(all_cases) if on_ranks else f"right in all {len(all_cases)} cases"
        return Verdict(exercise.name, PASSED, headline, (), result.score, result.points)
    if not isinstance(result.error, Wrong):
        raise result.error                            # a fault of the check: not the learner's
    kind, advice = result.error.diagnosis, exercise.advice.get(result.error.diagnosis)
    details = (*result.error.details, *([advice] if advice else []))
    return Verdict(exercise.name, kind, result.error.headline, details, result.score, result.points)


def cases_of(name):
    """The cases of an exercise on ranks."""
    if name in CASES:
        return CASES[name](np.random.default_rng(2024))
    return cases(name)


def on_all_ranks(all_cases):
    """What is right, in words."""
    *sizes, last = sorted({case.size for case in all_cases})
    return f"values and traffic are right on {', '.join(map(str, sizes))} and {last} ranks"


def try_alone(function, trial, seconds):
    """Call a function that needs no ranks, and judge what it returns; `Wrong` if something is amiss."""
    with learners_mistakes(seconds, f"{trial.words}: "):
        result = trial.run(function)
    trial.judge(result)


def try_one(function, case, seconds):
    """Run a function on the ranks of one case, and judge what it returns and sends; `Wrong` if something is amiss."""
    def program(comm):
        given = {name: x.copy() for name, x in case.given[comm.rank].items()}
        result = function(*given.values(), comm)
        return result, [name for name, x in case.given[comm.rank].items() if not np.array_equal(given[name], x)]

    ledger, ranks = Ledger(trace=True), f"{case.size} rank{'s' * (case.size > 1)}, {case.words}: "
    with learners_mistakes(seconds, ranks):
        try:
            results = run_local(program, case.size, ledger=ledger, rendezvous=True)
        except DeadlockError as error:
            buffered = only_with_rendezvous(program, case)
            raise Wrong("deadlock", "the ranks wait for each other", ranks + str(error), *buffered) from None
        except UndeliveredMessageError as error:
            raise Wrong("messages left", "a message was sent that nobody received", ranks + str(error)) from None
        except CollectiveMismatchError as error:
            raise Wrong("collectives disagree", "the ranks call different collectives", ranks + str(error)) from None
    judge(case, [result for result, _ in results], [changed for _, changed in results], ledger)


def only_with_rendezvous(program, case):
    """A line for a program that would get through where sends are buffered: it seems to work, on small messages."""
    try:
        run_local(program, case.size)
    except Exception:
        return []
    return ["With small messages a network would let this pass, since it buffers them; with large ones it hangs."]


def load(text, path, name, seconds):
    """The function `name` that the text of a file defines; `Wrong` if it cannot be run, or does not define it."""
    namespace = {"__name__": name, "__file__": str(path)}
    linecache.checkcache(str(path))                   # so that tracebacks show the text of now
    with learners_mistakes(seconds):
        exec(compile(text, str(path), "exec"), namespace)        # no import: its cache may give the text of before
    if not callable(namespace.get(name)):
        raise Wrong("not implemented", f"the file does not define a function {name}",
                    f"{Path(path).name} has to define {name}(...), as it did at first.")
    return namespace[name]


@contextmanager
def learners_mistakes(seconds, ranks=""):
    """What goes wrong inside is the learner's: raised as `Wrong`, with the line. Ended after so many seconds.

    ranks    words on the case, to begin with
    """
    try:
        with time_limit(seconds):
            yield
    except Wrong:
        raise
    except NotImplementedError:
        raise Wrong(NOT_IMPLEMENTED, NOT_IMPLEMENTED) from None
    except TimeoutError as error:
        still = f"{ranks}still running {where(error.__cause__)}"
        end = "Does every loop come to an end?"
        raise Wrong("too slow", f"no answer after {seconds:g} seconds", still, end) from None
    except SyntaxError as error:
        line = f"at {Path(error.filename or '?').name}:{error.lineno}\n    {(error.text or '').strip()}"
        raise Wrong("exception", f"this is not Python: {error.msg}", line) from None
    except (Exception, SystemExit) as error:
        note = re.search(r"on rank \d+ of \d+", " ".join(getattr(error, "__notes__", [])))
        ranks += f"{note[0]}, " if note else ""
        raise Wrong("exception", f"{type(error).__name__}: {error}", f"{ranks}{where(error)}") from None


def where(error):
    """ "at exercise.py:17" and the line itself: the innermost one that is not the library's own."""
    found = "in the library"
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        if not path.startswith((PACKAGE, "<frozen")) and "site-packages" not in path:
            text = linecache.getline(path, line, frame.f_globals).strip()
            found = f"at {location(frame).rpartition(':')[0]}:{line}" + (f"\n    {text}" if text else "")
    return found


@contextmanager
def time_limit(seconds):
    """TimeoutError if the block takes longer; only in the main thread, which is the one that can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late = threading.Event()

    def interrupt():
        late.set()
        _thread.interrupt_main()

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            if late.is_set():
                time.sleep(0.01)                      # the interrupt may still be on its way: let it come here
    except KeyboardInterrupt as error:
        if not late.is_set():
            raise
        raise TimeoutError from error
