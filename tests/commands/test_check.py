"""`check`, `hint` and `exercises` from the shell: what they print, their exit statuses, an answer soon after a save."""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from refimpl.__main__ import main
from refimpl.commands.check import say
from refimpl.course.exercises import stubs
from refimpl.course.exercises.catalogue import ALL, of_kind
from refimpl.course.progress import progress

ROOT = Path(__file__).resolve().parents[2]
NAMES = [exercise.name for exercise in ALL]
POINTS = sum(exercise.points for exercise in ALL)
STUB = '    raise NotImplementedError("your code goes here")\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with untouched exercises, since those of the repository may be somebody's work; a progress file."""
    monkeypatch.setenv("REFIMPL_PROGRESS", str(tmp_path / "progress.sqlite"))
    (tmp_path / "exercises").mkdir()
    for exercise in ALL:
        text = stubs.stub(stubs.read(stubs.folder("solutions") / exercise.filename))
        (tmp_path / "exercises" / exercise.filename).write_text(text, encoding="utf-8")
    return tmp_path / "exercises"


def answer(folder, body, name="04_row_parallel_forward.py"):
    """Put an answer in a learner's file."""
    text = (folder / name).read_text(encoding="utf-8")
    assert STUB in text
    (folder / name).write_text(text.replace(STUB, body), encoding="utf-8")


def test_all_solutions_pass(capsys):
    assert main(["check", "--all", "--impl", "solutions", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(r["name"], r["passed"], r["diagnosis"]) for r in results] == [(name, True, "passed") for name in NAMES]
    assert progress().attempts() == []                 # nobody's attempts


def test_no_stub_passes(folder, capsys):
    assert main(["check", "--all", "--folder", str(folder), "--json"]) == 1
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(r["name"], r["passed"], r["diagnosis"]) for r in results] == [(n, False, "not implemented") for n in NAMES]


def test_without_a_name_all_are_checked_and_counted(folder, capsys):
    answer(folder, "    return all_reduce(x @ w, comm) + b\n")
    assert main(["check", "--folder", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("ring_reduce_scatter ✗ not implemented\n  (hint 1 of 3: python -m refimpl hint ring_red")
    assert "row_parallel_forward ✓ values and traffic are right on 1, 2, 3 and 4 ranks" in shown
    assert shown.endswith(f"\n1 of {len(ALL)} exercises solved, 10 of {POINTS} points\n")


def test_one_exercise_is_checked_and_remembered(folder, capsys):
    answer(folder, "    return all_reduce(x @ w + b, comm)\n")
    assert main(["check", "row_parallel_forward", "--folder", str(folder)]) == 1
    assert main(["check", "4", "--folder", str(folder)]) == 1
    assert capsys.readouterr().out.startswith("row_parallel_forward ✗ every row is off by the same amount\n  2 ranks,")
    assert main(["check", "--status", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["exercises"]
    assert [row["lesson"] for row in rows] == sorted(exercise.lesson for exercise in ALL)
    row = next(row for row in rows if row["name"] == "row_parallel_forward")
    assert (row["attempts"], row["diagnosis"], row["passed"]) == (2, "bias", False)


def test_the_status_is_a_table(folder, capsys):
    answer(folder, "    return all_reduce(x @ w, comm) + b\n")
    main(["check", "4", "--folder", str(folder)])
    main(["hint", "ring_all_reduce"])
    capsys.readouterr()
    assert main(["check", "--status"]) == 0
    shown = capsys.readouterr().out
    assert "\n ✓ row_parallel_forward         05  implement         10         1      0  solved 2" in shown
    assert "\n   ring_all_reduce              01  implement         20         0      1  not begun\n" in shown
    assert f"1 of {len(ALL)} solved, 10 of {POINTS} points; remembered in " in shown


def test_one_kind_of_exercises_is_shown_and_checked(folder, capsys):
    assert main(["check", "--status", "--kind", "design"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("  design  ") == len(of_kind("design")) and f"\n0 of {len(of_kind('design'))} solved" in shown
    assert main(["check", "--kind", "count", "--impl", "solutions", "--json"]) == 0
    names = [result["name"] for result in json.loads(capsys.readouterr().out)["results"]]
    assert names == [exercise.name for exercise in of_kind("count")]


def test_what_the_learners_code_prints_stays_out_of_the_json(folder, capsys):
    answer(folder, "    print('hello')\n    return x\n")
    main(["check", "4", "--folder", str(folder), "--json"])
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)["results"]) == 1 and "hello" in shown.err


@pytest.mark.parametrize("words, says", [
    (["check", "rign_all_reduce"], "there is no exercise 'rign_all_reduce': perhaps 'ring_all_reduce'?"),
    (["check", "ring_all_reduce", "--all"], "give the name of one exercise, or --all"),
    (["check", "ring_all_reduce", "--kind", "count"], "give the name of one exercise, or a kind"),
    (["check", "--kind", "riddle"], "there is no kind 'riddle' of exercises: nearest"),
    (["check", "--folder", "/nowhere"], "cannot be read: No such file"),
    (["hint", "xyz"], "there is no exercise 'xyz': there are ring_reduce_scatter"),
])
def test_wrong_words_are_one_line_and_status_2(words, says, capsys):
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: ") and says in shown.err and shown.err.count("\n") == 1


def test_hints_go_on(capsys):
    for number in (1, 2, 3, 3):
        assert main(["hint", "ring_all_reduce"]) == 0
        assert capsys.readouterr().out.startswith(f"ring_all_reduce, hint {number} of 3\n")


def test_a_progress_file_that_cannot_be_used_is_a_message_and_the_check_goes_on(folder, tmp_path, capsys):
    (tmp_path / "progress.sqlite").write_bytes(b"no database" * 100)
    answer(folder, "    return all_reduce(x @ w, comm) + b\n")
    assert main(["check", "4", "--folder", str(folder)]) == 0
    shown = capsys.readouterr()
    assert "row_parallel_forward ✓" in shown.out
    assert "was damaged" in shown.err and "Traceback" not in shown.err and shown.err.count("\n") == 1
    assert main(["check", "--status"]) == 0 and f"1 of {len(ALL)} solved" in capsys.readouterr().out


def test_the_exercises_command_says_whether_they_have_drifted(tmp_path, monkeypatch, capsys, folder):
    shutil.copytree(stubs.folder("solutions"), tmp_path / "solutions")
    monkeypatch.setattr(stubs, "ROOT", tmp_path)
    assert main(["exercises", "--check"]) == 0
    answer(folder, "    return 1\n")
    assert main(["exercises", "--check", "--json"]) == 0
    path = folder / "04_row_parallel_forward.py"
    path.write_text("import os\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    capsys.readouterr()
    assert main(["exercises", "--check"]) == 1
    assert "exercises/04_row_parallel_forward.py has drifted from its solution" in capsys.readouterr().out
    assert main(["exercises"]) == 0
    assert capsys.readouterr().out == "wrote exercises/04_row_parallel_forward.py\n"
    assert main(["exercises", "--check"]) == 0 and "    return 1\n" in path.read_text(encoding="utf-8")


def test_a_terminal_that_cannot_show_a_tick_gets_something_else(tmp_path):
    with open(tmp_path / "out", "w", encoding="ascii") as file:
        say("ring ✓", file)
    assert (tmp_path / "out").read_text() == "ring ?\n"


@pytest.fixture
def watching(folder):
    """Start `check --watch`; a function that waits for the next line that contains some words, and its time."""
    started = []

    def start(*words):
        command = [sys.executable, "-m", "refimpl", "check", *words, "--watch", "--folder", str(folder)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   encoding="utf-8", env={**os.environ, "PYTHONIOENCODING": "utf-8"})
        started.append(process)
        lines = queue.Queue()
        threading.Thread(target=lambda: [lines.put(line) for line in process.stdout], daemon=True).start()

        def wait_for(words):
            while True:
                line = lines.get(timeout=30)
                if words in line:
                    return time.monotonic()

        return wait_for

    yield start
    for process in started:
        process.terminate()
        process.wait(timeout=10)
        process.stdout.close()


def test_a_save_is_answered_within_a_second_and_a_half(folder, watching):
    wait_for = watching("row_parallel_forward")
    wait_for("row_parallel_forward ✗ not implemented")
    wait_for("watching")
    took = []
    for old, new, says in ((STUB, "    return x @ w\n", "parts are not added up"),
                           ("return x @ w\n", "return all_reduce(x @ w, comm) + b\n", "row_parallel_forward ✓"),
                           (" + b\n", "\n", "every row is off")):
        path = folder / "04_row_parallel_forward.py"
        text = path.read_text(encoding="utf-8")
        assert old in text
        saved = time.monotonic()
        path.write_text(text.replace(old, new), encoding="utf-8")
        took.append(wait_for(says) - saved)
    assert sorted(took)[1] < 1.5, took
    assert [attempt.passed for attempt in progress().attempts("exercise")] == [False, True, False]


def test_watching_all_answers_for_the_file_that_was_saved(folder, watching):
    wait_for = watching()
    wait_for(f"watching {len(ALL)} files")
    answer(folder, "    return x\n", "01_ring_reduce_scatter.py")
    wait_for("ring_reduce_scatter ✗ sum has the wrong shape")
