"""Every question as stored: its form, its key, its choices. And that a wrong one is found out."""

import dataclasses
import math
import random
import re

import pytest

from refimpl.course.quiz.evidence import EVIDENCE
from refimpl.course.quiz.expressions import evaluate
from refimpl.course.quiz.questions import load

QUESTIONS = load()
each = pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
TEMPLATES = [question for question in QUESTIONS if question.draw]


def by_id(id):
    return next(question for question in QUESTIONS if question.id == id)


def wrong_keys(question):
    """Where `check` and `answer` disagree: [(numbers, what the check says, what the key says)]."""
    found = []
    for numbers in question.cases() if question.check else []:
        computed = evaluate(question.check, EVIDENCE | numbers)
        key = True if question.format is None else evaluate(question.answer, numbers)
        same = computed is True if question.format is None else math.isclose(computed, key, rel_tol=1e-9)
        if not same:
            found.append((numbers, computed, key))
    return found


# -- the questions ----------------------------------------------------------------------------------------------------

@each
def test_the_key_is_what_its_check_computes(question):
    assert wrong_keys(question) == []


@each
def test_no_wrong_choice_is_right_too(question):
    """Not by its value either: what is shown differently may be equal."""
    if question.format is None:
        return
    for numbers in question.cases():
        key = evaluate(question.answer, numbers)
        for value, _ in question.wrong:
            assert not math.isclose(evaluate(value, numbers), key, rel_tol=1e-3), (value, numbers)


@each
def test_a_question_reads_well(question):
    prose = "".join(question.stem.split("```")[::2])
    texts = [prose.strip(), question.why, question.source, *(text for pair in question.wrong for text in pair)]
    assert not [text for text in texts if re.search(r"\w!(\s|$)|\bsimply\b|  |^\s|\s$", text, re.IGNORECASE)]
    assert question.stem.count("```") % 2 == 0 and question.stem.count("`") % 2 == 0
    for why in (question.why, *(why for _, why in question.wrong)):
        assert why.endswith(".") and len(why) > 20
    if question.format is None:
        assert all(len(text) <= 70 for text in (question.answer, *(value for value, _ in question.wrong)))


def test_the_right_choice_is_not_given_away_by_its_length():
    words = [question for question in QUESTIONS if question.format is None]
    longest = [q.id for q in words if all(len(q.answer) > len(value) for value, _ in q.wrong)]
    assert len(longest) <= len(words) / 3, longest


def test_every_lesson_has_a_dozen_some_that_draw_numbers_and_all_levels():
    assert len(QUESTIONS) >= 30 and len(TEMPLATES) >= 8
    for lesson in sorted({question.lesson for question in QUESTIONS}):
        mine = [question for question in QUESTIONS if question.lesson == lesson]
        assert len(mine) >= 12 and sum(bool(question.draw) for question in mine) >= 3
        assert {question.level for question in QUESTIONS if question.lesson == lesson} == {"recall", "apply", "trap"}


@pytest.mark.parametrize("question", TEMPLATES, ids=lambda question: question.id)
def test_a_template_shows_four_different_choices_and_its_numbers_whatever_is_drawn(question):
    rng, seen, places = random.Random(0), set(), set()
    for _ in range(300):
        shown = question.show(rng)
        assert len({choice.text for choice in shown.choices}) == 4
        assert sum(choice.right for choice in shown.choices) == 1
        assert not [text for c in shown.choices for text in (shown.stem, c.text, c.why) if "{" in text]
        assert shown.right.text == question.format.format(evaluate(question.answer, shown.numbers))
        seen.add(shown.stem)
        places.add([choice.right for choice in shown.choices].index(True))
    assert len(seen) == len(question.cases()) >= 3 and places == {0, 1, 2, 3}


# -- a wrong one is found out -----------------------------------------------------------------------------------------

NUMBERS = [question for question in QUESTIONS if question.format is not None]


@pytest.mark.parametrize("question", NUMBERS, ids=lambda question: question.id)
@pytest.mark.parametrize("which", range(3))
def test_a_wrong_number_as_the_key_is_found_out(question, which):
    """The key and a wrong choice change places, as in a file where somebody has mixed them up."""
    (value, why), wrong = question.wrong[which], list(question.wrong)
    wrong[which] = (question.answer, why)
    mixed_up = dataclasses.replace(question, answer=value, wrong=tuple(wrong))
    assert len(wrong_keys(mixed_up)) == len(question.cases())


@pytest.mark.parametrize("id, check", [
    ("ring-small-array", "alpha_beta.ring_all_reduce(1024, 1e-5, 2e-5) < 1e-3"),
    ("ring-is-two", "traffic.ring_reduce_scatter(101, 4, 0) == elements('ring', 4, 101)"),
    ("deadlock-all-send", "not hangs('send, then receive', 4, rendezvous=True)"),
    ("deadlock-mended", "not hangs('barrier, send, receive', 5)"),
    ("deadlock-even-odd", "hangs('even ranks send first', 5)"),
    ("collective-on-one-rank", "not hangs('only rank 0 reduces', 4)"),
    ("ring-bits", "as_on_one_device('ring', 5)"),
    ("tp-bias-hides", "bias_added_on_every_rank(4, 1.0) == bias_added_on_every_rank(2, 1.0)"),
    ("tp-column-backward", "layer_all_reduces('column', 4) == (0, 0)"),
    ("tp-f-and-g", "layer_all_reduces('row', 4) == (0, 1)"),
    ("tp-column-first", "not gelu_of_parts_differs()"),
    ("tp-f-forgotten", "wrong_gradients(4, f=False) == ['dx', 'w1']"),
    ("tp-own-gradients", "wrong_gradients(4) == ['b2']"),
    ("tp-two-columns", "between_two_columns(4) == 'all_reduce'"),
    ("tp-two-columns", "1"),
    ("pp-1f1b-buys", "simulate(build('1f1b', 4, 8)).makespan < simulate(build('gpipe', 4, 8)).makespan"),
    ("pp-which-rank-keeps-most", "simulate(build('gpipe', 4, 8)).peak_activations == [4, 3, 2, 1]"),
    ("pp-a-list-that-hangs", "runs('0F0 0B0 0F1 0B1', '1F0 1F1 1B0 1B1')"),
    ("pp-which-half", "runs('0F0 0W0 0I0', '1F0 1I0 1W0')"),
    ("cp-what-travels-home", "attention_sent('ring', 4).backward == attention_sent('ring', 4).forward"),
    ("cp-zigzag-why", "max(pairs_of('contiguous', 4)) == min(pairs_of('contiguous', 4))"),
    ("moe-one-choice", "not router_learns('softmax-topk', 1)"),
    ("moe-loss-free-bias", "bias_changes('choice') and bias_changes('weight')"),
    ("moe-dropped", "dropped_output() > 0"),
    ("moe-idle-expert", "idle_expert(0.0) == (0, True)"),
    ("moe-whole-experts", "refused(1, 4, True)"),
    ("moe-counts-first", "exchanged(4, 2, experts=16).counts == 16"),
    ("layout-inside-the-node", "crosses('tp', 8, dp=4, tp=8, pp=2)"),
    ("mesh-who-crosses", "crosses('pp', 8, tp=2, cp=2, dp=2, pp=2, order='tp-cp-pp-dp')"),
    ("mesh-order-changes", "crosses('tp', 8, tp=8, dp=2)"),
    ("mesh-ep-world", "group_size('ep', dp=4, tp=2, pp=2, ep=4) == 1"),
    ("ckpt-other-layout", "not resumes_alike((2, 1, 2), (1, 2, 1))"),
    ("sp-collectives", "collectives(4, False, 'all_gather') == 6"),
    ("sp-norm-gradient", "own_gradient('norm1.w', 4) and own_gradient('mlp.b2', 4)"),
    ("sp-bias-gradient", "not own_gradient('norm1.b', 4)"),
])
def test_a_check_that_is_not_true_is_found_out(id, check):
    assert wrong_keys(dataclasses.replace(by_id(id), check=check)) != []


def test_every_check_of_words_is_among_those_tried_above():
    """So that none is true whatever the code does."""
    tried = {id for id, _ in test_a_check_that_is_not_true_is_found_out.pytestmark[0].args[1]}
    assert tried == {question.id for question in QUESTIONS if question.format is None and question.check is not None}


GOOD = '''
[[question]]
id = "a-question"
lesson = "01"
level = "apply"
stem = "{P} ranks?"
draw = { P = [4, 8] }
format = "{:.1f}"
answer = "P"
check = "seconds('ring', P, 1.0, 0.0)"
why = "There are {P}."
source = "Nobody"
wrong = [
  { value = "P+1", why = "One too many." },
  { value = "P+2", why = "Two too many." },
  { value = "P+3", why = "Three too many." },
]
'''


def load_text(folder, text, name="01.toml"):
    (folder / name).write_text(text, encoding="utf-8")
    return load(folder)


def test_the_good_one_is_good(tmp_path):
    question, = load_text(tmp_path, GOOD)
    assert question.show(numbers={"P": 8}).right.text == "8.0"


@pytest.mark.parametrize("old, new, says", [
    ('level = "apply"', 'level = "aply"', "level='aply': expected recall, apply, trap"),
    ('level =', 'levle =', "'levle' is no part of a question; perhaps 'level'"),
    ('source = "Nobody"\n', '', "there is no source"),
    ('why = "There are {P}."', 'why = ""', "why='': expected text, not empty"),
    ('lesson = "01"', 'lesson = "02"', "lesson='02', but its file is 01.toml"),
    ('id = "a-question"', 'id = "A question"', "its id must be small letters"),
    ('check = "seconds(\'ring\', P, 1.0, 0.0)"\n', '', "needs a check that computes it again"),
    ('format = "{:.1f}"\n', '', "it draws numbers, so it needs a format"),
    ('format = "{:.1f}"', 'format = "{:.1q}"', "format='{:.1q}' does not show a number"),
    ('format = "{:.1f}"', 'format = "{other}"', "format='{other}' does not show a number"),
    ('format = "{:.1f}"', 'format = "many"', "two of its choices look the same"),
    ('value = "P+3"', 'value = "P + 2.001"', "two of its choices look the same with nearly all numbers drawn"),
    ('value = "P+3"', 'value = "P+"', "'P+' is not an expression"),
    ('value = "P+3"', 'value = "Q+3"', "there is no 'Q'; there is P"),
    ('value = "P+3"', 'value = "P > 3"', "'P > 3' is True with {'P': 4}: expected a number"),
    ('answer = "P"', 'answer = "1 / (P - 4)"', "'1 / (P - 4)' cannot be evaluated with {'P': 4}: division by zero"),
    ('seconds(', 'second(', "there is no 'second'"),
    ('draw = { P = [4, 8] }', 'draw = { P = 4 }', "draw: P=4: expected a name and a list of numbers"),
    ('draw = { P = [4, 8] }', 'draw = { P = ["4"] }', "draw: P=['4']: expected numbers"),
    ('draw = { P = [4, 8] }', 'draw = { P = [4, 8], n = [1] }', "n is drawn, but the stem does not say it"),
    ('"One too many."', '"{x} too many."', "{x} is not drawn"),
    ('"{P} ranks?"', '"{P ranks?"', "expected '}'"),
    ('why = "Three too many."', 'because = "Three too many."', "wrong: expected three of"),
    ('  { value = "P+3", why = "Three too many." },\n', '', "wrong: expected three of"),
])
def test_a_question_with_a_fault_is_refused_and_the_message_says_where_and_what(tmp_path, old, new, says):
    assert old in GOOD
    with pytest.raises(ValueError) as error:
        load_text(tmp_path, GOOD.replace(old, new))
    assert says in str(error.value) and "01.toml, question " in str(error.value)


@pytest.mark.parametrize("text, says", [
    ("[[question", "cannot be read"),
    ("x = 1", "expected [[question]] tables and nothing else; here are: x"),
    ("question = 3", "expected [[question]] tables"),
    (GOOD + GOOD, "two questions have the id 'a-question'"),
])
def test_a_file_with_a_fault_is_refused(tmp_path, text, says):
    with pytest.raises(ValueError) as error:
        load_text(tmp_path, text)
    assert says in str(error.value) and str(tmp_path) in str(error.value)


def test_no_files_at_all_is_said(tmp_path):
    with pytest.raises(ValueError, match="there are no questions in"):
        load(tmp_path)


def test_numbers_that_make_two_choices_alike_are_never_drawn(tmp_path):
    question, = load_text(tmp_path, GOOD.replace('"P+1"', '"2 * P - 6"').replace("[4, 8]", "[4, 5, 6, 8, 9]"))
    assert question.cases() == [{"P": 4}, {"P": 5}]          # 2 * P - 6 is P for 6, P + 2 for 8, P + 3 for 9
