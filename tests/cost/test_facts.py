"""Claims of popular material: the verdicts, the corrected numbers, and that both come from the formulas."""

import math

import pytest

from refimpl.cost import facts, pipeline, traffic
from refimpl.cost.facts import INCOMPLETE, RIGHT, VERDICTS, WRONG, claims, verdict

FOUND = {one.id: one for one in claims()}


@pytest.mark.parametrize(("id", "expected", "value"), [
    ("a", WRONG, 174.6), ("b", WRONG, 1.25), ("c", WRONG, 7 / 71), ("d", WRONG, 8), ("e", INCOMPLETE, 4),
    ("f", WRONG, 1024), ("g", INCOMPLETE, 2), ("h", INCOMPLETE, 7.21), ("j", WRONG, 448), ("k", INCOMPLETE, 450),
    ("l", INCOMPLETE, 275.625), ("m", RIGHT, 7 / 71), ("n", RIGHT, 1.5), ("q", INCOMPLETE, 24), ("r", INCOMPLETE, 1260),
    ("o", INCOMPLETE, 2 * 2048 * 12288 * 7 / 8), ("s", WRONG, 4), ("t", INCOMPLETE, 8 / 15), ("16-psi", RIGHT, 16),
    ("1120-gb", RIGHT, 1120), ("64-mib", RIGHT, 64), ("ring-volume", RIGHT, 1.75), ("dp-16", RIGHT, 16),
    ("bubble-4-8", RIGHT, 3 / 11), ("bubble-8-32", RIGHT, 7 / 39), ("bubble-8-32-4", RIGHT, 7 / 128)])
def test_verdicts_and_corrected_numbers(id, expected, value):
    assert FOUND[id].verdict == expected
    assert math.isclose(FOUND[id].value, value, rel_tol=1e-3)


def test_70B_on_16_gpus_leaves_nothing_to_spare():
    """More than the 70 GB of states and less than the 85.5 GB of the card, if everything is recomputed."""
    assert FOUND["i"].verdict == INCOMPLETE and 79 < FOUND["i"].value < 85.6
    assert "16 x 70e9 / 16 = 70.0 GB" in FOUND["i"].derivation and "78.75 GB" in FOUND["i"].derivation
    assert "5.37 GB of checkpoints" in FOUND["i"].derivation and "90 GB of activations alone" in FOUND["i"].derivation


def test_530B_ran_without_zero():
    assert FOUND["p"].verdict == WRONG and 35 < FOUND["p"].value < 80


def test_there_is_every_letter_and_all_are_in_order():
    assert list(FOUND)[:20] == list("abcdefghijklmnopqrst") and len(FOUND) == len(claims())


@pytest.mark.parametrize("one", FOUND.values(), ids=FOUND)
def test_every_claim_has_a_verdict_a_number_a_derivation_and_a_source(one):
    assert one.verdict in VERDICTS and math.isfinite(one.value) and one.unit and one.source
    assert any(character.isdigit() for character in one.derivation) and "\n" not in one.derivation


@pytest.mark.parametrize(("id", "numbers"), [
    ("g", ["1.61 GB", "3.22 GB"]),
    ("a", ["175 GB", "45.7 GB", "67.5 GB", "10.9e9"]), ("c", ["10.94%", "9.86%"]), ("e", ["4 a step", "6 with full"]),
    ("f", ["8192", "8 nodes", "expert DP is 2", "expert DP is 16"]), ("h", ["2.91x", "4.27x", "3.82x", "7.21x", "3x"]),
    ("l", ["140 GB", "275.6 GB", "551 GB", "4.4 GB"]), ("q", ["24", "80"]), ("r", ["1120 GB", "1260 GB"]),
    ("t", ["93.2%", "53.3%"])])
def test_derivations_show_the_numbers(id, numbers):
    assert all(number in FOUND[id].derivation for number in numbers), FOUND[id].derivation


@pytest.mark.parametrize(("holds", "always", "expected"), [(True, True, RIGHT), (True, False, INCOMPLETE),
                                                          (False, True, WRONG), (False, False, WRONG)])
def test_a_verdict_follows_from_what_came_out(holds, always, expected):
    assert verdict(holds, always) == expected


def test_verdicts_change_with_the_formulas(monkeypatch):
    """They are computed: with a bubble of p - 2 slots, or a ring of half the traffic, other claims would be right."""
    monkeypatch.setattr(pipeline, "bubble", lambda *args: 3 * 64 / 10)
    monkeypatch.setattr(traffic, "ring_all_reduce", lambda n, P, rank: n)
    changed = {one.id: one for one in facts.claims()}
    assert changed["c"].verdict == RIGHT != FOUND["c"].verdict
    assert changed["ring-volume"].verdict == WRONG and changed["m"].verdict == WRONG
