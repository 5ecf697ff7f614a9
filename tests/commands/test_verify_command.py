"""`verify`: a table of what was tried, exit 1 with layout and tensor at the first difference."""

import json

import pytest

from refimpl import __main__
from refimpl.train import verify
from refimpl.train.trainer import Trainer


def report(capsys, *options, status=0):
    assert __main__.main(["verify", "--ranks", "2", "--json", *options]) == status
    shown = capsys.readouterr()
    assert shown.err == "" and shown.out.count("\n") == 1
    return json.loads(shown.out, parse_constant=lambda name: pytest.fail(f"{name} is no standard JSON"))


def test_a_part_of_the_sample_and_of_all_passes_and_is_counted(capsys):
    found = report(capsys, "--part", "2/9")
    fit, refused = verify.valid(2)
    assert found["passed"] and found["failure"] is None and found["combinations"] == len(fit)
    assert found["device"] == "cpu"
    assert found["refused"] == refused and found["tried"] == len(verify.part(verify.sample(fit), 2, 9))
    assert len(found["cases"]) == found["tried"]
    for one in found["cases"]:
        assert one["case"].keys() == set(verify.AXES) and 0 < one["gradients"] <= 1e-12 and one["weights"] <= 1e-10
    assert report(capsys, "--full", "--part", "3/60")["tried"] == len(verify.part(fit, 3, 60))


def test_the_table_counts_the_runs_of_every_value(capsys):
    assert __main__.main(["verify", "--ranks", "2", "--part", "1/6"]) == 0
    shown = capsys.readouterr()
    number = len(verify.part(verify.sample(verify.valid(2)[0]), 1, 6))
    rows = [line.split() for line in shown.out.splitlines() if line.startswith(("zero", " ")) and "e-" in line]
    assert rows and f"{number} of " in shown.out and shown.out.rstrip().endswith("All are the run of one device.")
    assert f"{number}/{number}" in shown.err                                          # the progress bar


def test_the_first_difference_ends_it_with_the_layout_and_the_tensor(capsys, monkeypatch):
    monkeypatch.setattr(Trainer, "tie", lambda self: None)
    found = report(capsys, status=1)
    assert not found["passed"] and found["tried"] < len(verify.sample(verify.valid(2)[0]))
    assert "pp=2" in found["failure"]["case"] and "model=gpt2" in found["failure"]["case"]
    assert "gradient of embedding.tokens is off" in found["failure"]["what"]
    assert __main__.main(["verify", "--ranks", "2"]) == 1
    assert "DIFFERENT: " in (text := capsys.readouterr().out) and "All are the run" not in text


def test_a_layout_that_raises_is_a_difference_too(capsys, monkeypatch):
    def broken(self, loss):
        raise KeyError("w1")

    monkeypatch.setattr(Trainer, "update", broken)
    assert "KeyError: 'w1'" in report(capsys, status=1)["failure"]["what"]


@pytest.mark.parametrize("options, says", [
    (("--ranks", "0"), "--ranks 0: expected 1 to 32; nearest 1"), (("--ranks", "3000"), "expected 1 to 32; nearest 32"),
    (("--ranks", "1", "--part", "99/99"), "--part 99/99: nothing is in it"),
    (("--ranks", "1", "--part", "\u00b2/3"), "expected K/N"), (("--part", "half"), "--part half: expected K/N"),
    (("--part", "3/2"), "part 3/2: expected 1/2 to 2/2"), (("--text", "/nowhere/at/all"), "/nowhere/at/all")])
def test_bad_input_is_one_line_and_status_2(options, says, capsys):
    assert __main__.main(["verify", *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and says in shown.err and shown.err.count("\n") == 1
