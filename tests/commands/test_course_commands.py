"""mistakes, progress and drill from the command line."""

import json

import pytest

from refimpl.__main__ import main
from refimpl.course.progress import Progress
from refimpl.course.quiz.questions import load


@pytest.fixture
def me(tmp_path, monkeypatch):
    path = tmp_path / "progress.sqlite"
    monkeypatch.setenv("REFIMPL_PROGRESS", str(path))
    return Progress(path)


def test_mistakes_are_listed_exported_and_drawn(me, tmp_path, capsys):
    question = load()[0]
    me.add("quiz", question.id, False, {"choice": "?", "numbers": {}, "retry": False})
    files = [tmp_path / name for name in ("book.md", "book.txt", "book.svg")]
    assert main(["mistakes", "--export", str(files[0]), "--plot", str(files[2])]) == 0
    assert main(["mistakes", "--export", str(files[1]), "--json"]) == 0
    out = capsys.readouterr().out
    assert question.id in out and all(file.stat().st_size for file in files)
    assert json.loads(out.splitlines()[-1])["mistakes"][0]["id"] == question.id


@pytest.mark.parametrize(("arguments", "says"), [
    (["mistakes", "--export", "x.pdf"], "must end in .md, .txt"),
    (["mistakes", "--plot", "nowhere/x.png"], "there is no folder nowhere"),
    (["progress", "export"], "give a FILE"),
    (["progress", "import", "missing.jsonl"], "cannot read missing.jsonl"),
    (["drill", "--topics", "pipline"], "nearest 'pipelines'"),
    (["drill", "--minutes", "0"], "expected time for a question"),
])
def test_bad_input_is_one_line_and_status_2(me, capsys, arguments, says):
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(main(arguments))
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_progress_shows_exports_resets_and_imports(me, tmp_path, capsys):
    me.add("exercise", "ring_all_reduce", True)
    file = str(tmp_path / "mine.jsonl")
    for arguments in ([], ["show"], ["export", file], ["reset", file], ["import", file]):
        assert main(["progress", *arguments]) == 0
    out = capsys.readouterr().out
    assert out.count("exercises solved: 1") == 2 and "1 attempt moved" in out and "1 attempt added" in out


def test_a_short_drill_says_what_there_is_no_time_for_and_its_gaps_are_in_the_mistakes(me, capsys, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt: "q")
    assert main(["drill", "--minutes", "2", "--topics", "01,zero", "--seed", "1"]) == 0
    assert "one question about each topic takes 2.5 minutes." in " ".join(capsys.readouterr().out.split())
    me.add("drill", "ring-cost", False, {"points": 4, "most": 5, "left_out": ["2 (P-1) latencies"]})
    assert main(["mistakes"]) == 0
    out = capsys.readouterr().out
    assert "4 of 5 points" in out and "left out: 2 (P-1) latencies" in out and "No open mistakes" not in out
    assert main(["mistakes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["interview"][0]["left_out"] == ["2 (P-1) latencies"]


def test_drill_lists_the_open_questions_and_ends_with_the_input(me, capsys, monkeypatch):
    assert main(["drill", "--topics", "zero", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["questions"]
    assert {q["lesson"] for q in listed} == {"04"} and len(listed) >= 2
    assert main(["drill", "--topics", "04", "--list"]) == 0
    assert "A good answer" in capsys.readouterr().out

    def no_more(prompt):
        raise EOFError

    monkeypatch.setattr("builtins.input", no_more)
    assert main(["drill", "--topics", "zero", "--minutes", "10", "--seed", "1"]) == 0
    assert "Nothing answered." in capsys.readouterr().out
