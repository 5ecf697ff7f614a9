"""The cheat sheet and the glossary: computed, up to date, and naming only what there is."""

import importlib
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
    ("ZeRO-2", "16.6 GB"),
    ("tensor parallel", "23.00 s b h"),                      # 10 + 3 + 10, as Korthikanti's table 2 has it for GPT-3
    ("with sequence parallelism", "8.75 b s h"),
    ("bubble of the total time", "9.86%"),
    ("ZeRO-3, k micro-batches", "1512e6 elements"),          # 3 x 8 x 64 x 63/64
])
def test_a_number_that_one_can_check_by_hand(what, number):
    assert any(entry[0] == what and number in entry[3] for _, entries in cheat_sheet.rows() for entry in entries)


@pytest.mark.parametrize("module", sorted(set(re.findall(r"`(refimpl[.\w]+)`", GLOSSARY))))
def test_what_the_glossary_names_is_there(module):
    importlib.import_module(module)


def test_the_glossary_has_each_word_once():
    words = re.findall(r"^\| ([\w, -]+?) \| ", GLOSSARY.split("## Words")[1].split("## If")[0], flags=re.M)
    assert len(words) > 20 and len(words) == len(set(words))
