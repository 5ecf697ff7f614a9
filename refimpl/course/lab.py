"""JupyterLab on a copy of the course, with a home of its own.

    with lab(folder) as server:                          folder: empty; it gets course/ and home/
        server.url("lessons/00_first_run.ipynb")         what a browser opens
        server.course                                    the copy: notebooks of one's own may be put there

Whatever is run, saved or answered in it leaves the learner's files, settings and progress alone. The copy starts
without outputs. `browser.py` looks at it through Chromium.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("refimpl", "lessons", "exercises", "solutions")
PATIENCE = 120.0                    # seconds for the server to start: a laptop's first start is a slow one
IDLE = 900                          # seconds after which a server that its program forgot, or left behind, ends itself


@dataclass(frozen=True)
class Server:
    """A running JupyterLab: the folder that it shows, the progress file of its learner, its address, the key to it."""

    course: Path
    progress: Path
    address: str
    token: str

    def url(self, notebook):
        """The address of a notebook, a path in `course`; a window opened there has forgotten earlier ones."""
        return f"{self.address}lab/tree/{quote(Path(notebook).as_posix())}?token={self.token}&reset"


@contextmanager
def lab(folder):
    """Run JupyterLab on a copy of the course in `folder`, which is empty; a `Server`. In the end no process is left.

    RuntimeError, with the last of what it wrote, where it does not start.
    """
    course, log = copy_of_the_course(folder / "course"), folder / "server.txt"
    token = secrets.token_hex(16)
    with open(log, "w") as output:
        process = subprocess.Popen(command(course, token), env=environment(folder, course), cwd=course,
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        home = folder / "home"
        yield Server(course, home / "progress.sqlite", address(process, home / "runtime", log), token)
    finally:
        process.terminate()                              # it ends its kernels first
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()                               # kernels notice that their parent is gone
            process.wait()


def copy_of_the_course(target):
    """Copy what a learner sees, and refimpl, to `target`; its path."""
    for part in PARTS:
        shutil.copytree(ROOT / part, target / part, ignore=shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__"))
    for path in (target / "lessons").glob("*.ipynb"):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["metadata"].pop("widgets", None)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"], cell["execution_count"] = [], None
        path.write_text(json.dumps(notebook), encoding="utf-8")
    return target


def command(course, token):
    """How start.py opens the course, but without a window, on a free port, and known to a program in the page."""
    words = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0",
             f"--ServerApp.root_dir={course}", f"--IdentityProvider.token={token}",
             f"--LabApp.app_settings_dir={course / 'lessons' / '.lab-settings'}",
             "--LabApp.expose_app_in_browser=True",
             f"--ServerApp.shutdown_no_activity_timeout={IDLE}", f"--MappingKernelManager.cull_idle_timeout={IDLE}",
             "--MappingKernelManager.cull_connected=True"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--allow-root")
    return words


def environment(folder, course):
    """Ours, but at home in `folder`: settings, kernels, progress; and refimpl is the copy's."""
    home = folder / "home"
    home.mkdir()
    own = {"HOME": home, "USERPROFILE": home, "IPYTHONDIR": home / "ipython", "JUPYTER_CONFIG_DIR": home / "config",
           "JUPYTER_DATA_DIR": home / "data", "JUPYTER_RUNTIME_DIR": home / "runtime",
           "REFIMPL_PROGRESS": home / "progress.sqlite", "JUPYTER_PREFER_ENV_PATH": "1",
           "PYTHONPATH": os.pathsep.join(filter(None, [str(course), os.environ.get("PYTHONPATH")]))}
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith(("JUPYTER", "XDG_", "MPLBACKEND", "MPLCONFIGDIR"))}
    return inherited | {name: str(value) for name, value in own.items()}


def address(process, runtime, log):
    """Where the server listens: it says so, once it does, in a file of its runtime folder."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        for path in runtime.glob("jpserver-*.json"):
            try:
                return json.loads(path.read_text())["url"]
            except ValueError:                           # half written
                pass
        time.sleep(0.05)
    last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise RuntimeError(f"JupyterLab did not start. The last that it wrote:\n{last}")
