"""doctor: what it says about this machine is consistent, and what it says about a broken one is useful."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from refimpl.commands import doctor
from refimpl.world.launch import LAUNCHED

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(os.name == "nt", reason="there MPI is not installed with the requirements")
NAMES = ["Python", "NumPy", "BLAS", "greenlet", "MPI library", "GPU arrays", "mpirun", "CuPy", "GPU", "JupyterLab",
         "Chromium"]


@pytest.fixture(autouse=True)
def outside_of_any_job(monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


# -- the report ---------------------------------------------------------------------------------------------------

@posix
def test_this_machine(capsys):
    """Everything that the suite itself leans on is found; the rest is found or comes with advice."""
    begin = time.monotonic()
    status = doctor.main(SimpleNamespace(json=True))
    assert time.monotonic() - begin < 30
    report = json.loads(capsys.readouterr().out)
    checks = {check["name"]: check for check in report["checks"]}
    assert list(checks) == NAMES
    for check in report["checks"]:
        assert list(check) == ["name", "status", "found", "advice"] and check["found"]
        assert check["status"] in ("ok", "missing", "broken")
    assert {checks[name]["status"] for name in ("NumPy", "greenlet", "MPI library", "mpirun")} == {"ok"}
    assert sys.executable in checks["Python"]["found"] and "mpi4py 4" in checks["MPI library"]["found"]
    assert status == (0 if report["ok"] else 1)


def pretend(monkeypatch, *checks):
    monkeypatch.setattr(doctor, "examine", lambda: list(checks))


@pytest.mark.parametrize("status, needed, expected", [
    ("ok", True, 0), ("missing", False, 0), ("broken", False, 0), ("broken", True, 1),
])
def test_only_what_is_needed_decides(monkeypatch, capsys, status, needed, expected):
    pretend(monkeypatch, doctor.Check("Python", "ok", "3.11"), doctor.Check("Thing", status, "found", "advice", needed))
    assert doctor.main(SimpleNamespace(json=False)) == expected
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("Needed, and not working: Thing." if expected else "Everything that is needed works.")


def test_the_table_is_aligned_and_fits_the_width():
    checks = [doctor.Check("Python", "ok", "3.11"),
              doctor.Check("MPI library", "broken", "one word after the other " * 6, "do this and that " * 8)]
    lines = doctor.as_text(checks, 70).splitlines()
    assert max(map(len, lines)) < 70
    assert len(lines) > 6 and all(line[21] == " " and line[22] != " " for line in lines[:-2])


def test_a_check_that_fails_in_an_unforeseen_way_is_a_line(monkeypatch):
    def jupyterlab():
        raise OSError("disk on fire")

    monkeypatch.setattr(doctor, "jupyterlab", jupyterlab)
    check = [check for check in doctor.examine() if check.name == "jupyterlab"][0]
    assert (check.status, check.found) == ("broken", "OSError: disk on fire")


def test_inside_an_mpi_job_it_declines(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(ValueError, match="run it without mpirun"):
        doctor.main(SimpleNamespace(json=False))


def test_its_import_brings_in_nothing_heavy():
    code = "import sys, refimpl.commands.doctor; print(*{name.split('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"mpi4py", "cupy", "matplotlib", "jupyterlab", "IPython"} & set(run.stdout.split())


# -- MPI ------------------------------------------------------------------------------------------------------------

def test_a_missing_mpi_library_is_reported_with_what_to_install(monkeypatch):
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nowhere/libmpi.so")       # raises RuntimeError when MPI is imported
    [check] = doctor.mpi()
    assert check.status in ("broken", "missing") and "load MPI library" in check.found and "install" in check.advice


@posix
@pytest.mark.parametrize("chosen, status, words", [
    ("0", "ok", "through host memory"), ("1", "ok", "the device's own buffers"), ("7", "broken", "must be 0"),
])
def test_it_says_which_way_device_arrays_take(monkeypatch, chosen, status, words):
    monkeypatch.setenv("REFIMPL_CUDA_AWARE", chosen)
    library, path = doctor.mpi()
    assert library.status == "ok" and path.status == status
    assert words in path.found and "REFIMPL_CUDA_AWARE" in path.found


@posix
@pytest.mark.parametrize("script, words", [
    ("echo 1; echo 1", "alone"),                                    # of another make than the library
    ("echo no such network >&2; exit 3", "status 3: no such network"),
    ("echo $$ > pid; exec sleep 60", "did not answer"),
])
def test_an_mpirun_that_does_not_work(monkeypatch, tmp_path, script, words):
    monkeypatch.chdir(tmp_path)
    stand_in = tmp_path / "mpirun"
    stand_in.write_text(f"#!/bin/sh\n{script}\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr("refimpl.world.mpirun.find_mpirun", lambda: str(stand_in))
    monkeypatch.setattr(doctor, "find_mpirun", lambda: str(stand_in))
    monkeypatch.setattr(doctor, "PATIENCE", 20.0 if "sleep" not in script else 0.3)
    [check] = doctor.mpirun()
    assert check.status == "broken" and words in check.found and check.advice
    if "sleep" in script:                           # and nothing is left running
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


def test_no_mpirun_at_all(monkeypatch):
    def find():
        raise ValueError("no mpirun found: install one")

    monkeypatch.setattr(doctor, "find_mpirun", find)
    [check] = doctor.mpirun()
    assert check.status in ("broken", "missing") and check[2:4] == ("no mpirun found", "install one")


@pytest.mark.parametrize("code, words", [
    ("import time; time.sleep(60)", "no answer within"),
    ("import os; os._exit(9)", "status 9"),
    ("raise KeyError('this')", "KeyError: 'this'"),
])
def test_a_probe_that_hangs_or_dies_is_an_answer(monkeypatch, code, words):
    monkeypatch.setattr(doctor, "PATIENCE", 1.0)
    answer, trouble = doctor.probe(code)
    assert answer is None and words in trouble


# -- the others -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("threads, hint", [(1, False), (8, True)])
def test_many_blas_threads_earn_a_hint(monkeypatch, threads, hint):
    pool = {"user_api": "blas", "internal_api": "openblas", "version": "1.2", "num_threads": threads}
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: [pool])
    [check] = doctor.blas()
    assert check.status == "ok" and f"openblas 1.2, {threads} thread" in check.found
    assert ("OPENBLAS_NUM_THREADS=1" in check.advice) == hint


def test_a_blas_that_nobody_knows_is_named_by_numpy(monkeypatch):
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: [])
    [check] = doctor.blas()
    assert check.status == "ok" and "threads unknown" in check.found


@pytest.mark.parametrize("answer, cupy, gpu, advice", [
    ((["14.2", True, True, "NVIDIA H200"], ""), "ok", "ok", ""),
    ((["14.2", False, False, "CuPy 14.2 finds no GPU; install a driver"], ""), "ok", "missing", "install a driver"),
    ((["14.2", True, False, "CuPy cannot compute: no cublas; pip install it"], ""), "ok", "broken", "pip install it"),
    ((None, "ImportError: libfoo"), "broken", "missing", ""),
])
def test_what_cupy_finds(monkeypatch, answer, cupy, gpu, advice):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(doctor, "probe", lambda code: answer)
    first, second = doctor.gpu()
    assert (first.status, second.status, second.advice) == (cupy, gpu, advice)
    assert not first.needed and not second.needed


def test_a_missing_package_of_the_course_is_named(monkeypatch):
    def version(name):
        if name == "ipywidgets":
            raise doctor.importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    [check] = doctor.jupyterlab()
    assert check.status == "broken" and check.found == "ipywidgets is not installed" and "pip install" in check.advice
