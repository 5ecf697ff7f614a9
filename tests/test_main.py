"""`python -m refimpl`: what a newcomer sees, what a slip of the finger gets, the exit status of all that goes wrong."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from refimpl import __main__, __version__, commands
from refimpl.commands import demo

ROOT = Path(__file__).resolve().parents[1]
VERBS = sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))


def status(*words):
    """The exit status of a command, whether returned or raised."""
    try:
        return __main__.main(list(words))
    except SystemExit as leaving:
        return leaving.code or 0


def test_help_lists_every_verb_with_what_it_does(capsys):
    assert status("--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    for verb in VERBS:
        assert f" {verb} " in shown
    assert demo.HELP in shown and "usage: python -m refimpl" in shown


def test_without_a_verb_there_is_an_overview_of_all_of_them(capsys):
    assert status() == 0
    shown = capsys.readouterr()
    assert shown.err == "" and "start.py" in shown.out
    assert sorted(line.split()[0] for line in shown.out.splitlines() if line.startswith("  ")) == VERBS
    assert all(line in shown.out for line in ("learn", "run", "what it costs", "this machine"))


def test_a_verb_that_the_overview_does_not_place_is_shown_all_the_same():
    assert "more\n  odd        does odd things" in __main__.overview({"quiz": "asks", "odd": "does odd things"})


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_of_its_own(verb, capsys):
    assert status(verb, "--help") == 0
    assert f"usage: python -m refimpl {verb}" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys):
    assert status("--version") == 0
    assert capsys.readouterr().out == f"refimpl {__version__}\n"


@pytest.mark.parametrize("words, says", [
    (["dmeo", "mlp"], "there is no verb 'dmeo': perhaps 'demo'?"),
    (["doktor"], "there is no verb 'doktor': perhaps 'doctor'?"),
    (["xyz"], f"there is no verb 'xyz': one of {', '.join(VERBS)}"),
    (["--bogus"], "the following arguments are required: VERB"),
    (["demo"], "the following arguments are required: model"),
    (["demo", "mpl"], "argument model: invalid choice: 'mpl' (choose from"),
    (["demo", "mlp", "--tp", "four"], "argument --tp: invalid int value: 'four'"),
    (["demo", "mlp", "--plot"], "argument --plot: expected one argument"),
    (["demo", "mlp", "--stesp", "3"], "unrecognized arguments: --stesp 3"),
])
def test_what_cannot_be_parsed_is_one_line_that_says_where_the_help_is_and_status_2(words, says, capsys):
    assert status(*words) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith(f"error: {says}")
    assert shown.err.count("\n") == 1 and "(help: python -m refimpl" in shown.err


def raising(error):
    def main(args):
        raise error

    return main


@pytest.mark.parametrize("error, expected, says", [
    (ValueError("heads=12 is not divisible by tp=8"), 2, "error: heads=12 is not divisible by tp=8\n"),
    (MemoryError("Unable to allocate 1 PiB"), 2,
     "error: there is not enough memory: Unable to allocate 1 PiB; try smaller sizes\n"),
    (ValueError("--plot a\nb: no"), 2, "error: --plot a b: no\n"),
    (PermissionError(13, "Permission denied", "/sys/a.png"), 2, "error: /sys/a.png: Permission denied\n"),
    (OSError("disk on fire"), 2, "error: the system: disk on fire\n"),
    (KeyboardInterrupt(), 130, "interrupted\n"),
])
def test_errors_are_one_line_and_a_status(error, expected, says, monkeypatch, capsys):
    monkeypatch.setattr(demo, "main", raising(error))
    assert status("demo", "mlp") == expected
    assert capsys.readouterr().err == says


def test_an_error_that_a_rank_raised_says_which_rank(monkeypatch, capsys):
    from refimpl import run

    def on_rank(comm):
        if comm.rank == 2:
            raise ValueError("heads=3")

    monkeypatch.setattr(demo, "main", lambda args: run(on_rank, 3))
    assert status("demo", "mlp") == 2
    assert capsys.readouterr().err == "error: heads=3 (raised on rank 2 of 3)\n"


def test_a_fault_of_ours_is_not_hidden(monkeypatch):
    monkeypatch.setattr(demo, "main", raising(TypeError("a bug")))
    with pytest.raises(TypeError, match="a bug"):
        status("demo", "mlp")


def test_the_module_runs_and_exits_with_the_status():
    done = subprocess.run([sys.executable, "-m", "refimpl", "demo", "mlp", "--steps", "0"], cwd=ROOT,
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: steps=0: must be 1 or more\n")


def test_a_reader_that_leaves_early_is_no_fault():
    process = subprocess.Popen([sys.executable, "-m", "refimpl", "demo", "mlp", "--steps", "1", "--tp", "1"], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(60) == 141 and "Traceback" not in errors and "BrokenPipe" not in errors
