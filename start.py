#!/usr/bin/env python3
"""The way in, on every platform. It needs Python 3.11 or newer, and nothing else.

    python3 start.py [--no-browser] [...]     open the course in JupyterLab; it takes JupyterLab's options (--port 8890)
    python3 start.py test [--all] [...]       run the tests, or with --all the slow ones too; it takes pytest's options
    python3 start.py VERB [...]               run a command of the project: python -m refimpl VERB

The first run makes .venv beside this file and installs requirements.txt there, in a minute or two. Later runs install
again only when the requirements have changed.
"""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

OLDEST = (3, 11)
ROOT = pathlib.Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "start.txt"              # "3.11 made", and once everything is installed "3.11 <digest>"
WINDOWS = os.name == "nt"
PYTHON = VENV / ("Scripts/python.exe" if WINDOWS else "bin/python")
FIRST_LESSON = "lessons/00_first_run.ipynb"


def main(args):
    """Make sure that everything is installed, then become the program that args ask for. Returns an exit status."""
    if args[:1] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return 0
    complaint = python_too_old(sys.version_info, sys.platform)
    if complaint:
        sys.exit(complaint)
    install()
    if args[:1] == ["test"] and "--all" in args:
        install_second_opinion()
    return become(*program(args, dict(os.environ)))


# What this Python lacks, and how to get it

def python_too_old(version, platform):
    """What to tell somebody whose Python is too old, or None. version as in sys.version_info, platform as in sys."""
    if tuple(version[:2]) >= OLDEST:
        return None
    newer = newer_python()
    if newer:
        how = f"You have one: {newer} start.py"
    elif platform == "win32":
        how = "Install it with `winget install Python.Python.3.13` or from python.org, then: py -3.13 start.py"
    elif platform == "darwin":
        how = "Install it with `brew install python@3.13` or from python.org, then: python3.13 start.py"
    else:
        how = ("Install it with `sudo apt install python3.11 python3.11-venv` (Debian, Ubuntu) or\n"
               "`sudo dnf install python3.12` (Fedora, RHEL), then: python3.11 start.py (or python3.12)")
    return "Python {}.{} or newer is needed, this is {}.{}.{}.\n{}".format(*(OLDEST + tuple(version[:3])), how)


def newer_python():
    """The name of a Python on the PATH that is new enough and runs, or None."""
    for minor in range(14, OLDEST[1] - 1, -1):
        name = f"python3.{minor}"
        if shutil.which(name):
            quiet = subprocess.DEVNULL              # a version manager's stand-in is on the PATH, too, but fails
            if subprocess.call([name, "-c", ""], stdout=quiet, stderr=quiet) == 0:
                return name
    return None


def venv_missing():
    """What to tell somebody whose Python cannot make virtual environments, or None. Debian packages that apart."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        major, minor = sys.version_info[:2]
        return (f"This Python cannot make a virtual environment (no module {error.name}).\n"
                f"On Debian and Ubuntu: sudo apt install python{major}.{minor}-venv\n"
                "Elsewhere: a Python from python.org has everything. Then run start.py again.")
    return None


# Installation

def install():
    """Make .venv if need be, and install the requirements if they are not what was installed last."""
    ours = "{}.{}".format(*sys.version_info[:2])
    wanted = f"{ours} {digest()}"
    stamp = STAMP.read_text() if STAMP.exists() and PYTHON.exists() else ""
    if stamp == wanted:
        return
    if stamp.split(" ")[0] != ours:                 # none yet, half made, or made with another Python
        make_venv()
    STAMP.write_text(f"{ours} made")                # so that an installation cut short is begun again
    print("Installing the requirements into .venv (a minute or two) ...", flush=True)
    pip_install("requirements.txt")
    STAMP.write_text(wanted)
    print("Everything is installed.", flush=True)


def install_second_opinion():
    """Install PyTorch, which only some tests of `test --all` need, unless it was installed before."""
    stamp, wanted = VENV / "second-opinion.txt", (ROOT / "requirements-all.txt").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        print("Installing PyTorch into .venv, for a second opinion (some minutes) ...", flush=True)
        pip_install("requirements-all.txt")
        stamp.write_text(wanted)


def pip_install(requirements):
    """Install what the file `requirements` lists, with its progress; ends with pip's last words if that fails."""
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-r", requirements]
    pip = subprocess.Popen(command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           encoding="utf-8", errors="replace")
    output = list(show_progress(pip.stdout))
    if pip.wait() != 0:
        sys.exit("".join(output[-25:]) + "\nThe installation failed; the lines above are pip's. Is there a network? "
                 "Run start.py again to go on.")


def digest():
    """Changes when something should be installed anew: a requirement, or the place where this folder lies."""
    content = hashlib.sha256(str(ROOT).encode())    # `-e .` is installed as a path
    for name in ("requirements.txt", "constraints.txt", "pyproject.toml"):
        content.update((ROOT / name).read_bytes())
    return content.hexdigest()


def make_venv():
    """Make .venv anew, or leave nothing there."""
    complaint = venv_missing()
    if complaint:
        sys.exit(complaint)
    import venv
    if VENV.exists():
        print("Removing the old .venv ...", flush=True)
        shutil.rmtree(str(VENV))
    print("Making .venv with Python {}.{}.{} ...".format(*sys.version_info[:3]), flush=True)
    try:
        venv.create(str(VENV), with_pip=True, symlinks=not WINDOWS)
    except BaseException as error:                  # on Ctrl-C too
        shutil.rmtree(str(VENV), ignore_errors=True)
        if isinstance(error, (OSError, ValueError, subprocess.CalledProcessError)):
            sys.exit(f"Could not make a virtual environment in {VENV}: {error}")
        raise


def show_progress(lines):
    """Pass pip's lines through; on a terminal say meanwhile, in one changing line, how far it is."""
    count = 0
    for line in lines:
        found = re.match(r"Collecting ([\w.-]+)|Installing collected", line)
        if found and sys.stdout.isatty():
            count += found.group(1) is not None
            print(f"\r  {count} packages: {found.group(1) or 'unpacking':40.40}", end="", flush=True)
        yield line
    if count:
        print("\r" + " " * 60, end="\r", flush=True)


# What to run

def program(args, environment):
    """The command that args ask for, the environment it gets and the folder it runs in (None: this one)."""
    path = [str(PYTHON.parent), environment.get("PATH", "")]
    environment["PATH"] = os.pathsep.join(path)     # so that mpirun and python mean ours, in a notebook too
    environment["VIRTUAL_ENV"] = str(VENV)
    verb, rest = (args[0], args[1:]) if args and not args[0].startswith("-") else ("", args)
    if verb == "test":
        for library in ("OPENBLAS_NUM", "MKL_NUM", "OMP_NUM", "VECLIB_MAXIMUM"):
            environment.setdefault(library + "_THREADS", "1")       # the tests' matrices are small, their ranks many
        if "--all" in rest:
            rest = [word for word in rest if word != "--all"]
            environment["REFIMPL_TEST_ALL"] = "1"
        return [str(PYTHON), "-m", "pytest"] + rest, environment, ROOT
    if verb:
        return [str(PYTHON), "-m", "refimpl"] + args, environment, None
    environment["JUPYTER_PREFER_ENV_PATH"] = "1"    # our kernel, not another "python3" of the user's
    command = [str(PYTHON), "-m", "jupyterlab", f"--ServerApp.root_dir={ROOT}",
               f"--LabApp.default_url=/lab/tree/{FIRST_LESSON}",
               f"--LabApp.app_settings_dir={ROOT / 'lessons' / '.lab-settings'}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")              # JupyterLab asks root to say so
    return command + rest, environment, ROOT


def become(command, environment, folder):
    """Run the command in our place: its signals, its exit status. Windows cannot replace a process, so waits."""
    if folder:
        os.chdir(str(folder))
    sys.stdout.flush()
    if not WINDOWS:
        os.execve(command[0], command, environment)
    child = subprocess.Popen(command, env=environment)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:                   # the child got it as well, and decides
            pass


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)                               # what a shell reports for Ctrl-C
