"""start.py, on a copy of it in a temporary folder; nothing is downloaded and no real .venv is made."""

import ast
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = "{}.{}".format(*sys.version_info[:2])
posix = pytest.mark.skipif(os.name == "nt", reason="the stand-in for Python is a shell script")


@pytest.fixture
def start(tmp_path):
    """start.py, imported from a folder of its own."""
    folder = tmp_path / "course"
    folder.mkdir()
    for name in ("start.py", "requirements.txt", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    spec = importlib.util.spec_from_file_location("start_copy", folder / "start.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def log(start, monkeypatch):
    """(what install() did, in words; the class that stands in for pip). Making a .venv is only pretended, too."""
    done = []

    def create(folder, **options):
        done.append("venv")
        start.PYTHON.parent.mkdir(parents=True)
        start.PYTHON.touch()

    class Pip:
        stdout, status = ["Collecting numpy\n", "ERROR: no network\n"], 0

        def __init__(self, command, cwd, **options):
            assert command[0] == str(start.PYTHON) and command[-2:] == ["-r", "requirements.txt"]
            assert cwd == str(start.ROOT)           # `-e .` means this folder
            done.append("pip")

        def wait(self):
            return Pip.status

    monkeypatch.setattr("venv.create", create)
    monkeypatch.setattr(start.subprocess, "Popen", Pip)
    return done, Pip


# -- old Pythons, missing parts -----------------------------------------------------------------------------------

def test_an_old_python_can_read_it():
    ast.parse((ROOT / "start.py").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("version", [(3, 6, 15), (3, 9, 1), (3, 10, 13)])
@pytest.mark.parametrize("platform, how", [("win32", "winget"), ("darwin", "brew"), ("linux", "apt install")])
def test_an_old_python_is_told_what_to_install(start, monkeypatch, version, platform, how):
    monkeypatch.setattr(start, "newer_python", lambda: None)
    message = start.python_too_old(version, platform)
    assert message.startswith("Python 3.11 or newer is needed, this is {}.{}.{}.".format(*version)) and how in message


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 12, 1), (3, 14, 0), (4, 0, 0)])
def test_a_new_python_is_welcome(start, version):
    assert start.python_too_old(version, "linux") is None


@posix
def test_a_newer_python_on_the_path_is_named_if_it_runs(start, monkeypatch, tmp_path):
    for name, status in (("python3.14", 1), ("python3.12", 0)):     # the first is a version manager's empty promise
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "You have one: python3.12 start.py" in start.python_too_old((3, 10, 1), "linux")


def test_an_old_python_stops_before_anything_is_made(start):
    simulated = f"import runpy, sys; sys.version_info = (3, 8, 1); runpy.run_path({str(start.ROOT / 'start.py')!r}, " \
                "run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", simulated], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "this is 3.8.1" in run.stderr and "Traceback" not in run.stderr
    assert not start.VENV.exists()


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_missing_venv_module_names_the_package(start, log, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as stopped:
        start.install()
    assert f"no module {module}" in str(stopped.value) and f"apt install python{OURS}-venv" in str(stopped.value)
    assert not start.VENV.exists()


# -- what is made and when ----------------------------------------------------------------------------------------

def test_the_first_run_installs_and_the_second_does_not(start, log):
    done, _ = log
    start.install()
    assert done == ["venv", "pip"]
    start.install()
    assert done == ["venv", "pip"]


@pytest.mark.parametrize("name", ["requirements.txt", "constraints.txt", "pyproject.toml"])
def test_a_changed_requirement_is_installed_into_the_same_venv(start, log, name):
    done, _ = log
    start.install()
    with open(start.ROOT / name, "a") as file:
        file.write("# changed\n")
    start.install()
    assert done == ["venv", "pip", "pip"]


@pytest.mark.parametrize("spoil", [
    lambda start: start.STAMP.write_text("3.7 made"),               # another Python made it
    lambda start: start.STAMP.unlink(),                             # it was never finished
    lambda start: start.PYTHON.unlink(),                            # its Python is gone
])
def test_a_venv_that_cannot_be_used_is_made_anew(start, log, spoil):
    done, _ = log
    start.install()
    spoil(start)
    (start.VENV / "left over").touch()
    start.install()
    assert done == ["venv", "pip"] * 2 and not (start.VENV / "left over").exists()


def test_a_moved_folder_is_installed_again(start, log, tmp_path):
    before = start.digest()
    start.ROOT = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "course", start.ROOT)
    assert start.digest() != before


def test_a_failed_installation_shows_why_and_is_begun_again(start, log):
    done, pip = log
    start.install()
    (start.ROOT / "constraints.txt").write_text("changed\n")
    pip.status = 1
    with pytest.raises(SystemExit, match="no network(.|\n)*Run start.py again"):
        start.install()
    pip.status = 0
    shutil.copy(ROOT / "constraints.txt", start.ROOT)               # even when the files are those of the first time
    start.install()
    assert done == ["venv", "pip", "pip", "pip"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), PermissionError("read-only"),
                                   subprocess.CalledProcessError(1, ["ensurepip"])])
def test_a_venv_that_fails_leaves_nothing_behind(start, monkeypatch, error):
    def create(folder, **options):
        Path(folder, "bin").mkdir(parents=True)
        raise error

    monkeypatch.setattr("venv.create", create)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else SystemExit):
        start.install()
    assert not start.VENV.exists()


# -- what is run --------------------------------------------------------------------------------------------------

def test_without_a_verb_it_opens_the_first_lesson(start, monkeypatch):
    for user, flag in ((0, True), (1000, False)):
        monkeypatch.setattr(start.os, "geteuid", lambda user=user: user, raising=False)
        command, environment, folder = start.program(["--no-browser", "--port", "8890"], {"PATH": "before"})
        assert command[:3] == [str(start.PYTHON), "-m", "jupyterlab"] and folder == start.ROOT
        assert command[-3:] == ["--no-browser", "--port", "8890"]
        assert ("--allow-root" in command) == flag
        assert environment["PATH"] == f"{start.PYTHON.parent}{os.pathsep}before"
    settings = [word.split("=")[1] for word in command if "app_settings_dir" in word]
    assert (ROOT / Path(settings[0]).relative_to(start.ROOT) / "overrides.json").exists()
    assert (ROOT / start.FIRST_LESSON).exists()


def test_test_runs_pytest_and_all_is_not_an_option_of_it(start):
    command, environment, folder = start.program(["test", "-k", "ring", "--all"], {"OMP_NUM_THREADS": "3"})
    assert command == [str(start.PYTHON), "-m", "pytest", "-k", "ring"] and folder == start.ROOT
    assert environment["REFIMPL_TEST_ALL"] == "1"
    assert environment["OPENBLAS_NUM_THREADS"] == "1" and environment["OMP_NUM_THREADS"] == "3"
    assert "REFIMPL_TEST_ALL" not in start.program(["test"], {})[1]


def test_any_other_verb_is_the_projects_own_and_runs_where_the_user_is(start):
    command, _, folder = start.program(["demo", "mlp", "--text", "here.txt"], {})
    assert command == [str(start.PYTHON), "-m", "refimpl", "demo", "mlp", "--text", "here.txt"] and folder is None


def stand_in(start, script):
    """Pretend that everything is installed, with a shell script in place of Python."""
    start.PYTHON.parent.mkdir(parents=True)
    start.PYTHON.write_text("#!/bin/sh\n" + script)
    start.PYTHON.chmod(0o755)
    start.STAMP.write_text(f"{OURS} {start.digest()}")
    return [sys.executable, str(start.ROOT / "start.py")]


@posix
def test_the_status_passes_through_from_any_folder(start, tmp_path):
    command = stand_in(start, 'echo "$PWD: $*"; exit 7\n')
    run = subprocess.run([*command, "doctor", "a b"], cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (7, f"{tmp_path}: -m refimpl doctor a b\n")


@posix
@pytest.mark.parametrize("installed, status", [(True, 5), (False, 130)])
def test_ctrl_c_is_the_childs_or_ends_the_installation(start, tmp_path, installed, status):
    ready = tmp_path / "ready"
    command = stand_in(start, f"trap 'exit 5' INT\ntouch {ready}\nwhile :; do sleep 0.02; done\n")
    if not installed:
        start.STAMP.write_text(f"{OURS} made")
    job = subprocess.Popen([*command, "demo"], stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 20
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(job.pid, signal.SIGINT)               # as a terminal does: to everyone
    errors = job.communicate(timeout=20)[1]
    assert job.returncode == status and "Traceback" not in errors


def test_help_needs_no_installation(start):
    run = subprocess.run([sys.executable, str(start.ROOT / "start.py"), "--help"], capture_output=True, text=True)
    assert run.returncode == 0 and "start.py test" in run.stdout and not start.VENV.exists()
