"""Two notebooks and a terminal answer at the same time, as processes of their own: no attempt is lost."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from refimpl.course.progress import Progress
from refimpl.course.quiz.questions import load

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 120

ANSWER = """
import pathlib
from refimpl.course.quiz import quiz

count = 0
while not count or not pathlib.Path({done!r}).exists():
    for box in quiz("05").boxes:
        box.radio.value = count % 4
        box.check.click()
        assert "<b>" in box.feedback.value and "progress.sqlite" not in box.feedback.value, box.feedback.value
        count += 1
"""


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """Two kernels, as two notebooks have: (manager, client) each."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    started = []
    try:
        for _ in range(2):
            started.append(start_new_kernel(startup_timeout=SECONDS, cwd=str(tmp_path)))
        yield started
    finally:
        for manager, client in started:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def counted(client):
    """How many answers a kernel has given, once its cell is done; its traceback if it failed."""
    while (message := client.get_shell_msg(timeout=SECONDS))["msg_type"] != "execute_reply":
        pass                                         # answers from its start. What it prints would be no better way:
    reply = message["content"]                       # of a flood, which all the changing widgets are, some gets lost
    assert reply["status"] == "ok", "\n".join(reply["traceback"])
    return int(reply["user_expressions"]["count"]["data"]["text/plain"])


def test_two_notebooks_and_a_terminal_at_once_lose_no_attempt(kernels, tmp_path, me):
    done = tmp_path / "done"
    for _, client in kernels:
        client.execute(ANSWER.format(done=str(done)), user_expressions={"count": "count"})
    until = time.monotonic() + SECONDS
    while len(me.attempts()) < 28 and time.monotonic() < until:       # both are at it
        time.sleep(0.05)
    terminal = subprocess.run([sys.executable, "-m", "refimpl", "quiz"], input="1\n" * len(load()), cwd=ROOT,
                              capture_output=True, text=True, timeout=SECONDS)
    done.touch()
    counts = [counted(client) for _, client in kernels]
    assert terminal.returncode == 0 and terminal.stderr == "" and "note:" not in terminal.stdout, terminal

    attempts = Progress(me.path).attempts("quiz")
    where = [a.detail["where"] for a in attempts]
    assert where.count("notebook") == sum(counts)
    assert sorted(a.name for a in attempts if a.detail["where"] == "terminal") == sorted(q.id for q in load())
    began, ended = where.index("terminal"), len(where) - 1 - where[::-1].index("terminal")
    assert "notebook" in where[began:ended]                            # it was at once
