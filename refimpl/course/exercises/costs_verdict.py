"""What is wrong with a learner's count: the number held against what was counted, and against known mistakes.

    wrong shape        wrong cut         copy forgotten     wrong dtype        probabilities      off by a factor
    wrong denominator  wrong addends     recomputation      core forgotten     head forgotten     wrong values

A mistake is known by its number: each suspect is what somebody gets who makes exactly that one.
"""

import math
from numbers import Real

from refimpl.course.exercises.finding import Wrong

FACTORS = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 100, 1000, 1024)


def judge_numbers(words, names, expected, suspects, found):
    """Raise `Wrong` unless the numbers are those expected.

    words    the case    names    of the numbers    expected    the numbers themselves
    suspects [(diagnosis, cause, numbers)]: what known mistakes come to
    """
    numbers = [found] if isinstance(found, Real) and len(names) == 1 else found
    if not isinstance(numbers, list | tuple) or len(numbers) != len(names) or not all(
            isinstance(number, Real) and not isinstance(number, bool) for number in numbers):
        form = f"{len(names)} numbers, ({', '.join(names)})" if len(names) > 1 else f"a number, the {names[0]}"
        raise Wrong("wrong shape", "what is returned has the wrong form", f"{words}: expected {form}; it is {found!r}.")
    if alike(numbers, expected):
        return
    for diagnosis, cause, values in suspects:
        if alike(numbers, values) and not alike(values, expected):
            raise Wrong(diagnosis, cause, f"{words}: {compared(names, numbers, expected)}")
    pairs = [pair for pair in zip(numbers, expected, strict=True) if any(pair)]
    ratios = {round(number / right, 9) if right else None for number, right in pairs}
    ratio = ratios.pop() if len(ratios) == 1 else None
    if ratio and ratio > 0 and (len(pairs) > 1 or simple(ratio)):
        times = f"{ratio:g} times too large" if ratio > 1 else f"{1 / ratio:g} times too small"
        raise Wrong("off by a factor", f"what is returned is {times}", f"{words}: {compared(names, numbers, expected)}")
    what = "the numbers are not those that were" if len(names) > 1 else "the number is not the one that was"
    raise Wrong("wrong values", f"{what} counted", f"{words}: {compared(names, numbers, expected)}")


def simple(ratio):
    """Whether one number alone says by its ratio to the right one that a factor is wrong: any two numbers have a ratio.

    Few ranks, or one less; the bytes of an element, or its bits; a percentage; thousands of either kind.
    """
    return any(math.isclose(max(ratio, 1 / ratio), factor, rel_tol=1e-9) for factor in FACTORS)


def alike(numbers, others):
    """Whether they are equal, but for rounding."""
    return all(math.isclose(number, other, rel_tol=1e-9, abs_tol=1e-9)
               for number, other in zip(numbers, others, strict=True))


def compared(names, numbers, expected):
    """The first number that differs, beside the right one."""
    name, number, right = next(row for row in zip(names, numbers, expected, strict=True)
                               if not math.isclose(row[1], row[2], rel_tol=1e-9, abs_tol=1e-9))
    return f"{name}: yours {shown(number)}, counted {shown(right)}."


def shown(number):
    """A number as a learner reads it: "1,024", "0.0986"."""
    return f"{number:,.0f}" if math.isfinite(number) and number == int(number) else f"{number:,.6g}"
