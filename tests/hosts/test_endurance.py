"""Job after job, and fault after fault: nothing hangs, nothing is left running, nothing that was saved is lost.

A few of each by default; with `start.py test --all` a hundred.
"""

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slow import ALL

from refimpl import __main__
from refimpl.model import text
from refimpl.train import checkpoint, flags, run
from refimpl.world.mpirun import end_job, start_job

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 10.0                                              # seconds in which a fault must have ended the job
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")

RING = """
import numpy as np
from mpi4py import MPI
from refimpl import run
from refimpl.collectives import all_reduce, all_reduce_start

def program(comm):
    x = np.arange(1000.0) + comm.rank
    behind = all_reduce_start(x, comm)
    now = all_reduce(x, comm, algorithm="ring")
    return np.array_equal(behind.wait(), now) and now.sum()

P = MPI.COMM_WORLD.size
found = run(program, P)
if MPI.COMM_WORLD.rank == 0:
    print(set(found) == {P * 999 * 500.0 + 1000.0 * P * (P - 1) / 2})
"""


def of_session(leader):
    """Living processes of the session that the launcher led."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(entry)) == leader and Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2][1] != "Z":
                found.append(entry)
    return found


def gone(leader, seconds=3.0):
    """Whether no process of that session is left, soon."""
    end = time.monotonic() + seconds
    while (left := of_session(leader)) and time.monotonic() < end:
        time.sleep(0.05)
    return not left


def test_jobs_one_after_the_other_end_with_the_right_result_and_leave_no_process():
    for number in range(100 if ALL else 4):
        job = start_job(2 + number % 3, ["-c", RING], 60, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                        cwd=ROOT)
        try:
            output, errors = job.communicate(timeout=70)
        finally:
            end_job(job)
        assert (job.returncode, output, errors) == (0, "True\n", ""), number
        assert gone(job.pid), number


# -- faults -----------------------------------------------------------------------------------------------------------

SMALL = ["--layers", "2", "--hidden", "16", "--heads", "4", "--seq", "16", "--global-batch", "4"]
LAYOUTS = [["--dp", "2"], ["--tp", "2"], ["--pp", "2"], ["--dp", "2", "--zero", "3"], ["--cp", "2"]]
FOREVER = ["--steps", "1000000"]


class Job:
    """`launch -n 2 train ...` in a session of its own, with what it wrote."""

    def __init__(self, words, environment=None):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "refimpl", "launch", "-n", "2", "train", *SMALL, *words, "--json"], cwd=ROOT,
            env=os.environ | {"REFIMPL_RENDEZVOUS": "0", "REFIMPL_CHECK": "0"} | (environment or {}),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def ranks(self):
        """The processes that train."""
        mine = {pid for pid in filter(str.isdigit, os.listdir("/proc")) if self._descends(int(pid))}
        return [int(pid) for pid in mine if b"OMPI_COMM_WORLD_RANK=" in self._read(pid, "environ")]

    def _descends(self, pid):
        while pid > 1:
            if pid == self.process.pid:
                return True
            fields = self._read(pid, "stat").rpartition(b")")[2].split()
            pid = int(fields[1]) if fields else 0
        return False

    @staticmethod
    def _read(pid, what):
        try:
            return Path(f"/proc/{pid}/{what}").read_bytes()
        except OSError:
            return b""

    def until_saved(self, folder, steps=2):
        """Wait until so many checkpoints were complete."""
        end = time.monotonic() + 60
        while not (found := checkpoint.checkpoints(folder)) or int(found[-1].name[5:]) < steps:
            assert self.process.poll() is None and time.monotonic() < end, self.ended()
            time.sleep(0.02)

    def ended(self):
        """(status, stdout, stderr, seconds) once it has ended by itself; TimeoutExpired if it does not."""
        began = time.monotonic()
        try:
            output, errors = self.process.communicate(timeout=PATIENCE)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGTERM)
                self.process.communicate()
        return self.process.returncode, output, errors, time.monotonic() - began


def rank_killed(rng, folder, layout):
    job = Job([*layout, *FOREVER, "--save", str(folder)])
    job.until_saved(folder)
    time.sleep(rng.random())
    os.kill(rng.choice(job.ranks()), signal.SIGKILL)
    status, _, errors, _ = job.ended()
    assert status != 0 and ("signal 9" in errors or "Killed" in errors), errors
    return job


def rank_raises(rng, folder, layout):
    """An error of any kind, in any rank, while the others wait for it."""
    job = Job([*layout, "--steps", "6", "--save", str(folder)], None)
    assert job.ended()[0] == 0
    code = ("import sys; from refimpl.train.trainer import Trainer; from refimpl.world.launch import under_mpi\n"
            "from mpi4py import MPI; real = Trainer.update\n"
            "def update(self, loss):\n"
            f"    if self.number == 7 and self.comm.rank == {rng.randrange(2)}: raise RuntimeError('a cosmic ray')\n"
            "    return real(self, loss)\n"
            "Trainer.update = update; from refimpl.__main__ import main\n"
            f"sys.exit(main({['train', *SMALL, *layout, *FOREVER, '--save', str(folder), '--resume', str(folder)]!r}))")
    job = Job.__new__(Job)
    job.process = start_job(2, ["-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    began = time.monotonic()
    while checkpoint.checkpoints(folder)[-1].name != "step-00000007" and time.monotonic() < began + 60:
        time.sleep(0.02)
    status, _, errors, _ = job.ended()
    assert status != 0 and "RuntimeError: a cosmic ray" in errors and "failed: the job ends" in errors, errors
    return job


def interrupted(rng, folder, layout):
    job = Job([*layout, *FOREVER, "--save", str(folder)])
    job.until_saved(folder)
    time.sleep(rng.random())
    job.process.send_signal(signal.SIGINT)
    status, _, errors, _ = job.ended()
    assert status == 130 and "Traceback" not in errors, errors
    return job


def file_truncated(rng, folder, layout):
    """A file of the newest checkpoint is cut short: the one before it is taken, and the run goes on from there."""
    job = Job([*layout, "--steps", "5", "--save", str(folder)])
    assert job.ended()[0] == 0
    newest = checkpoint.checkpoints(folder)[-1]
    damaged = rng.choice(sorted(newest.iterdir()))
    os.truncate(damaged, rng.randrange(damaged.stat().st_size))
    return job


def disk_full(rng, folder, layout):
    """The disk has room for the checkpoints that are kept, and for part of another."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], capture_output=True).returncode:
        pytest.skip("not run: only root may mount a small disk")
    job = Job([*layout, "--steps", "3", "--save", str(folder)])
    assert job.ended()[0] == 0
    with open(folder / "ballast", "wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while ballast.write(bytes(4096)):
            pass
    os.truncate(folder / "ballast", (folder / "ballast").stat().st_size - 4096 * rng.randrange(16))
    job = Job([*layout, *FOREVER, "--save", str(folder), "--resume", str(folder)])
    status, _, errors, _ = job.ended()
    assert status != 0 and "No space left" in errors and "Traceback" not in errors, errors
    os.remove(folder / "ballast")
    return job


FAULTS = {"rank killed": rank_killed, "exception": rank_raises, "Ctrl-C": interrupted, "truncated file": file_truncated,
          "disk full": disk_full}


@functools.cache
def reference():
    """The losses of 300 steps that nothing happens to, on one device."""
    parser = argparse.ArgumentParser()
    flags.add(parser)
    return [step.loss for step in run.Truth(flags.setup(parser.parse_args(SMALL)), text.load(None), 300).steps]


@pytest.mark.parametrize("seed", range(100 if ALL else len(FAULTS)))
def test_a_fault_ends_the_job_soon_with_a_message_and_loses_nothing_that_was_saved(seed, tmp_path, capsys):
    rng, folder, fault = random.Random(seed), tmp_path / "run", list(FAULTS)[seed % len(FAULTS)]
    layout, other = rng.choice(LAYOUTS), rng.choice(LAYOUTS)
    try:
        job = FAULTS[fault](rng, folder, layout)
        assert gone(job.process.pid)
        reached = int(checkpoint.newest(folder)[0].name[5:])
        assert reached >= (4 if fault == "truncated file" else 2)
        on = [*SMALL, *other, "--steps", str(reached + 2), "--resume", str(folder), "--json"]
        assert __main__.main(["train", *on]) == 0
        losses = json.loads(capsys.readouterr().out)["losses"]
        assert losses == pytest.approx(reference()[reached:reached + 2], rel=1e-10)
    finally:
        if fault == "disk full":
            subprocess.run(["umount", folder], capture_output=True)
