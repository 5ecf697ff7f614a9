"""`python -m refimpl quiz`: list, export, ask; what it refuses; what happens when several answer at once."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from refimpl import __main__
from refimpl.course.progress import progress
from refimpl.course.quiz.memory import memories
from refimpl.course.quiz.questions import load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def me(tmp_path, monkeypatch):
    """The learner's progress, empty."""
    monkeypatch.setenv("REFIMPL_PROGRESS", str(tmp_path / "progress.sqlite"))
    return progress()


def run_quiz(*options):
    return __main__.main(["quiz", *options])


def listed(capsys, *options):
    """The questions that `--list --json` prints; it must be one line of JSON."""
    assert run_quiz("--list", "--json", *options) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and shown.out.count("\n") == 1
    return json.loads(shown.out)["questions"]


def test_list_json_has_every_question_with_four_choices_and_their_reasons(capsys):
    questions = listed(capsys)
    assert [q["id"] for q in questions] == [question.id for question in load()]
    for q in questions:
        assert len({c["text"] for c in q["choices"]}) == 4 and [c["right"] for c in q["choices"]].count(True) == 1
        assert all(c["why"] for c in q["choices"]) and (q["asked"], q["passed"], q["due"]) == (0, None, None)
    assert [q["template"] for q in questions] == [bool(question.draw) for question in load()]
    assert questions == listed(capsys)                                # the same numbers every time


def test_lesson_level_and_mistakes_filter_the_list(capsys, me):
    me.add("quiz", "tp-f-and-g", passed=False)
    me.add("quiz", "ring-bits", passed=True)
    assert {q["lesson"] for q in listed(capsys, "--lesson", "5")} == {"05"}
    assert {q["level"] for q in listed(capsys, "--level", "trap")} == {"trap"}
    mistake, = listed(capsys, "--mistakes")
    assert (mistake["id"], mistake["asked"], mistake["passed"]) == ("tp-f-and-g", 1, False) and mistake["due"]
    assert listed(capsys, "--due") == []


def test_the_list_says_how_each_question_stands(capsys, me):
    me.add("quiz", "tp-f-and-g", passed=False)
    assert run_quiz("--list", "--lesson", "05") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 15 and [line.split()[-1] for line in lines[1:]].count("missed") == 1


def test_it_asks_what_was_missed_and_remembers(capsys, me, monkeypatch):
    me.add("quiz", "tp-f-and-g", passed=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n"))
    assert run_quiz("--mistakes") == 0
    shown = capsys.readouterr().out
    assert "Question 1 of 1    tp-f-and-g" in shown and "of 1 right." in shown
    assert len(me.attempts("quiz")) == 2


@pytest.mark.parametrize("options, says", [
    (["--mistakes"], "No mistakes to come back to."),
    (["--due"], "Nothing is due by now."),
    (["--due", "--mistakes"], "No mistakes, and nothing is due."),
])
def test_nothing_to_ask_is_said(options, says, capsys):
    assert run_quiz(*options) == 0
    assert capsys.readouterr().out == says + "\n"


def test_it_says_when_the_next_question_is_due(capsys, me):
    me.add("quiz", "tp-f-and-g", passed=True)
    assert run_quiz("--due") == 0
    said = capsys.readouterr().out
    day = re.fullmatch(r"Nothing is due by now; the next question comes back on (\d{4}-\d\d-\d\d)\.\n", said)[1]
    assert day == f"{memories(me.attempts('quiz'))['tp-f-and-g'].due.astimezone():%Y-%m-%d}"


# -- export -----------------------------------------------------------------------------------------------------------

def test_export_as_data_is_the_list(capsys, tmp_path):
    assert run_quiz("--export", str(tmp_path / "q.json"), "--lesson", "01") == 0
    assert capsys.readouterr().out == f"16 questions: {tmp_path / 'q.json'}\n"
    written = json.loads((tmp_path / "q.json").read_text(encoding="utf-8"))
    assert written["questions"] == listed(capsys, "--lesson", "01")


def test_export_as_a_sheet_has_all_questions_then_all_answers(tmp_path, capsys):
    assert run_quiz("--export", str(tmp_path / "q.md")) == 0
    questions, answers = (tmp_path / "q.md").read_text(encoding="utf-8").split("# Answers")
    for question in load():
        assert question.source not in questions and question.source in answers
    assert questions.count("- a) ") == len(load())


def test_export_as_cards_is_one_line_of_two_cells_a_question(tmp_path, capsys):
    assert run_quiz("--export", str(tmp_path / "q.tsv")) == 0
    lines = (tmp_path / "q.tsv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(load()) and all(line.count("\t") == 1 for line in lines)


def test_an_export_replaces_the_file_as_a_whole_and_leaves_nothing_beside_it(tmp_path, capsys):
    (tmp_path / "q.md").write_text("old " * 100_000)
    assert run_quiz("--export", str(tmp_path / "q.md"), "--lesson", "01", "--level", "recall") == 0
    assert "old old" not in (tmp_path / "q.md").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir() if "q.md" in path.name] == ["q.md"]


# -- bad input --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options, says", [
    (["--lesson", "99"], "lesson='99': there are questions for 00, 0"),
    (["--level", "hard"], "level='hard': expected recall, apply, trap"),
    (["--export", "q.pdf"], "--export q.pdf: the name must end in .md, .tsv, .json"),
    (["--export", "nowhere/q.md"], "--export nowhere/q.md: there is no folder nowhere"),
    (["--export", ""], "--export .: the name must end in"),
])
def test_bad_input_is_one_line_and_status_2(options, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_quiz(*options) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith(f"error: {says}") and shown.err.count("\n") == 1


def test_a_damaged_progress_file_is_a_note_and_the_list_is_there(capsys, me):
    me.path.write_bytes(b"no database, whatever its name says " * 100)
    assert run_quiz("--list") == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("note: ") and str(me.path) in shown.err and "tp-f-and-g" in shown.out


def test_a_read_only_progress_file_is_a_note_and_the_answer_gets_its_reason(capsys, me, monkeypatch):
    me.add("quiz", "tp-f-and-g", passed=False)
    me.path.chmod(0o444)
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n"))
    assert run_quiz("--mistakes") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "of 1 right." in shown and "cannot be written" in shown


# -- several at once --------------------------------------------------------------------------------------------------

NOTEBOOK = """
from refimpl.course.quiz import quiz
for box in quiz("05").boxes:
    box.radio.value = 0
    box.check.click()
"""


def test_two_notebooks_and_a_terminal_answering_at_once_lose_nothing(me):
    pipe = subprocess.PIPE
    python = dict(cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    jobs = [subprocess.Popen([sys.executable, "-c", NOTEBOOK], **python) for _ in range(2)]
    jobs.append(subprocess.Popen([sys.executable, "-m", "refimpl", "quiz", "--lesson", "05"], **python))
    outputs = [job.communicate("1\n" * 14, timeout=120) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0], outputs
    attempts = me.attempts("quiz")
    assert len(attempts) == 3 * 14
    for question in [question for question in load() if question.lesson == "05"]:
        places = sorted(a.detail["where"] for a in attempts if a.name == question.id)
        assert places == ["notebook", "notebook", "terminal"]
