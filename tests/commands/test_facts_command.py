"""`facts`: what it prints, as text and as JSON."""

import json

import pytest

from refimpl import __main__
from refimpl.cost.facts import claims


def say(capsys, *options, status=0):
    """What the command prints: on stdout, or on stderr when it is refused."""
    assert __main__.main(["facts", *options]) == status
    shown = capsys.readouterr()
    assert (shown.err if status == 0 else shown.out) == ""
    return shown.out if status == 0 else shown.err


def test_json_has_every_claim_with_its_verdict_value_and_derivation(capsys):
    out = say(capsys, "--json")
    found = json.loads(out)["claims"]
    assert out.count("\n") == 1 and [one["id"] for one in found] == [one.id for one in claims()]
    assert {"id", "claim", "verdict", "value", "unit", "derivation", "source"} == set(found[0])
    assert found[2]["verdict"] == "wrong" and abs(found[2]["value"] - 7 / 71) < 1e-9


def test_the_table_has_a_verdict_and_a_number_for_each(capsys):
    out = say(capsys)
    assert "c              wrong       p = 8, m = 64: a bubble of 7/70 = 10%" in out
    assert "0.0985915 of the total time" in out and "Huang" not in out
    assert max(map(len, out.splitlines())) <= 116
    assert sum(word in out for word in (" right ", " incomplete ", " wrong ")) == 3


def test_explain_adds_derivation_and_source(capsys):
    out = " ".join(say(capsys, "c", "--explain").split())
    assert "7/64 = 10.94% of the ideal time, 7/71 = 9.86% of the total" in out and "Huang et al. 2019" in out


def test_some_claims_only(capsys):
    found = json.loads(say(capsys, "h", "a", "h", "16-psi", "--json"))["claims"]
    assert [one["id"] for one in found] == ["h", "a", "16-psi"]


@pytest.mark.parametrize("name", ["u", "A", "psi"])
def test_an_unknown_claim_is_one_line(capsys, name):
    error = say(capsys, name, status=2)
    assert error.startswith(f"error: there is no claim '{name}': there are a, b, c") and error.count("\n") == 1
