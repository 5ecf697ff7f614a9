"""The cheat sheet and the glossary: computed, up to date, and naming only what there is."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from refimpl.course import cheat_sheet

DOCS = Path(__file__).resolve().parents[2] / "docs"
GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")


def test_the_cheat_sheet_is_what_the_formulas_say_now():
    assert cheat_sheet.PAGE.read_text(encoding="utf-8") == cheat_sheet.page(), \
        "out of date: python -m refimpl.course.cheat_sheet"


@pytest.mark.parametrize(("what", "number"), [
    ("ring all-reduce, sent by a rank", "150"),
    ("model states, Adam; weights, gradients in bfloat16", "120 GB"),
    ("with gradients in float32", "135 GB"),
    ("ZeRO-2, of these", "16.6 GB"),                         # Rajbhandari et al. 2020, figure 1
    ("pipeline, a rank in the middle", "2 b s h"),
    ("positions on a rank", "8,192"),
    ("tensor parallel", "23.00 s b h"),                      # 10 + 3 + 10, as Korthikanti's table 2 has it for GPT-3
    ("with sequence parallelism", "8.75 b s h"),
    ("bubble of the total time", "9.86%"),
    ("ZeRO-3, m micro-batches", "1512e6 elements"),          # 3 x 8 x 64 x 63/64
    ("ring attention, a layer forward", "28 MiB"),           # 2 x 8192 x 1024 x 7/8 x 2 bytes
    ("Ulysses, the same", "31.5 MiB"),                       # 2.25 x 8192 x 1024 x 7/8 x 2 bytes
    ("micro-batches kept, stage 0", "64, 8, 11.5"),          # 8 (1 + 7/16)
    ("ZB-H1, backward split in B and W", "3.65%"),           # 7/192
    ("seconds for T tokens, n GPUs of X FLOP/s", "34 days"), # Narayanan et al. 2021, section 5.1
    ("interval between checkpoints of δ", "25 min"),         # the root of 2 x 2 x 161
])
def test_a_number_that_one_can_check_by_hand(what, number):
    assert any(entry[0] == what and number in entry[3] for _, entries in cheat_sheet.rows() for entry in entries)


def test_every_number_of_the_cheat_sheet_comes_from_a_name_and_none_is_typed():
    """The last of the four parts of an entry is words around values, and in each value is a name that the code has."""
    entries = [node.elts for node in ast.walk(ast.parse(inspect.getsource(cheat_sheet.rows)))
               if isinstance(node, ast.Tuple) and len(node.elts) == 4]
    assert len(entries) >= sum(len(entries) for _, entries in cheat_sheet.rows()) - 2            # GPUs: three of one
    for *_, number in entries:
        values = [number] if isinstance(number, ast.Call) else \
            [part for part in getattr(number, "values", ()) if isinstance(part, ast.FormattedValue)]
        assert values, ast.unparse(number)
        for value in values:
            assert any(isinstance(node, ast.Name) for node in ast.walk(value)), ast.unparse(value)


def test_every_row_of_the_cheat_sheet_that_counts_bytes_of_a_parameter_names_the_dtype():
    whats = [what for _, entries in cheat_sheet.rows() for what, formula, _, _ in entries
             if "bytes a parameter" in formula]
    assert len(whats) == 3 and all(re.search(r"\b(bfloat16|float32)$", what) for what in whats), whats


@pytest.mark.parametrize("module", sorted(set(re.findall(r"`(refimpl[.\w]+)`", GLOSSARY))))
def test_what_the_glossary_names_is_there(module):
    importlib.import_module(module)


def test_the_glossary_has_each_word_once():
    words = re.findall(r"^\| ([\w, -]+?) \| ", GLOSSARY.split("## Words")[1].split("## If")[0], flags=re.M)
    assert len(words) > 20 and len(words) == len(set(words))
