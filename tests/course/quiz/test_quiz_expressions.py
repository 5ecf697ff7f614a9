"""Expressions of questions: they compute, and can do nothing else."""

import pytest

from refimpl.course.quiz.expressions import evaluate


class Thing:
    size = 3

    def double(self, n=1):
        return 2 * n


@pytest.mark.parametrize("text, value", [
    ("2 * (P-1) * n / P", 150.0),
    ("ceil(log2(P)) + max(1, n) - -n % 7", 2 + 100 - 5),
    ("n if P > 3 and not P == 5 else 0", 100),
    ("[n, P][1] + sum((1, 2))", 7),
    ("thing.size + thing.double(n=4)", 11),
    ("  P\n", 4),
])
def test_it_computes(text, value):
    assert evaluate(text, {"P": 4, "n": 100, "thing": Thing()}) == value


@pytest.mark.parametrize("text", [
    "__import__('os')", "open('x')", "().__class__", "P.__class__", "thing._secret", "'{0.__class__}'.format(P)",
    "[x for x in (1, 2)]", "lambda: 1", "(P := 3)", "{1: 2}", "f'{P}'", "P; n", "import os", "x = 1", "P +", "",
    "print(P)",
])
def test_what_is_not_arithmetic_is_refused(text):
    with pytest.raises(ValueError):
        evaluate(text, {"P": 4, "n": 100, "thing": Thing()})


def test_an_unknown_name_is_named():
    with pytest.raises(ValueError, match="there is no 'Q'; there is P, n"):
        evaluate("Q + 1", {"P": 4, "n": 100})
