"""Tests on MPI ranks, started from the ordinary run and reported under their own names.

A test with the mark `mpi(4)` runs on 4 ranks. The first such test to come up starts one mpirun that runs all tests of
that rank count, each rank with a pytest of its own that writes what became of every test into a file; the others then
only look up their result. A rank whose test fails writes that down and ends the job, since the other ranks may wait for
it for ever; the tests that had not run yet are then run in a new job.
"""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from refimpl.world.mpirun import end_job, start_job

RESULTS = "REFIMPL_MPI_RESULTS"                       # set in the ranks: the folder they write to
HANG_SECONDS = 20
JOB_SECONDS = 300
ROOT = Path(__file__).parent.parent


def in_rank():
    """Whether this pytest is one of the ranks."""
    return RESULTS in os.environ


class RankReporter:
    """In a rank: writes each test's outcome, and ends the job after a failure."""

    def __init__(self):
        from mpi4py import MPI

        self.world = MPI.COMM_WORLD
        self.file = open(Path(os.environ[RESULTS]) / f"{self.world.Get_rank()}.jsonl", "a")

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.passed:
            return
        text = report.longreprtext + "".join(f"\n--- {name} ---\n{content}" for name, content in report.sections)
        self.file.write(json.dumps([report.nodeid, report.outcome, text]) + "\n")
        self.file.flush()
        if not report.passed:
            time.sleep(0.5)                           # others that fail, too, still write theirs
            self.world.Abort(1)


class Jobs:
    """In the ordinary run: starts the jobs, and keeps what the ranks wrote."""

    def __init__(self):
        self.outcomes = {}                            # nodeid -> {rank: (outcome, text)}
        self.items = {}                               # ranks -> nodeids, in order

    def outcome(self, nodeid, ranks):
        """{rank: (outcome, text)} of one test; runs it, and all that can run with it, when nobody has yet."""
        if nodeid not in self.outcomes:
            waiting = [other for other in self.items[ranks] if other not in self.outcomes]
            output = self.run_job(waiting, ranks)
            if nodeid not in self.outcomes:           # the job died in an earlier test
                output = self.run_job([nodeid], ranks)
            self.outcomes.setdefault(nodeid, {None: ("failed", f"the job ended without a result:\n{output[-6000:]}")})
        return self.outcomes[nodeid]

    def run_job(self, nodeids, ranks):
        """Run the tests on `ranks` ranks; returns what the job printed."""
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "tests.txt"
            listed.write_text("\n".join(nodeids))
            environment = {RESULTS: folder, "REFIMPL_TIMEOUT": str(HANG_SECONDS)}
            os.environ.update(environment)            # start_job hands this process's environment on
            try:
                job = start_job(ranks, ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"@{listed}"],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
            finally:
                for name in environment:
                    del os.environ[name]
            try:
                output, _ = job.communicate(timeout=JOB_SECONDS)
            except subprocess.TimeoutExpired:
                end_job(job)
                output = job.communicate()[0] + f"\nended after {JOB_SECONDS} s"
            for path in Path(folder).glob("*.jsonl"):
                for line in path.read_text().splitlines():
                    nodeid, outcome, text = json.loads(line)
                    self.outcomes.setdefault(nodeid, {})[int(path.stem)] = (outcome, text)
        for nodeid in nodeids:                        # a test that only some ranks finished hung or died on the others
            found = self.outcomes.get(nodeid, {})
            if found and len(found) < ranks and all(outcome == "passed" for outcome, _ in found.values()):
                missing = sorted(set(range(ranks)) - set(found))
                found[missing[0]] = ("failed", f"ranks {missing} did not finish:\n{output[-6000:]}")
        return output


class MPITests:
    """The plugin: `mpi(ranks)` tests run in jobs of their own."""

    def __init__(self):
        self.jobs = Jobs()

    def pytest_collection_finish(self, session):
        for item in session.items:
            if mark := item.get_closest_marker("mpi"):
                self.jobs.items.setdefault(mark.args[0], []).append(item.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        mark = pyfuncitem.get_closest_marker("mpi")
        if mark is None:
            return None
        ranks = self.jobs.outcome(pyfuncitem.nodeid, mark.args[0])
        failed = {rank: text for rank, (outcome, text) in sorted(ranks.items(), key=str) if outcome != "passed"}
        if failed:
            texts = [f"rank {rank} of {mark.args[0]}:\n{text}" for rank, text in failed.items()]
            pytest.fail("\n\n".join(texts), pytrace=False)
        return True
