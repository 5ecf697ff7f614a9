"""What is wrong with a learner's merge, owner or block rule, told from what came out.

    wrong shape      overflow        not a number    not weighted      lse not merged      wrong values
    contiguous       striped         not back        wrong owner       wrong place
    diagonal lost    pairs lost      work wasted     mask wasted       mask forgotten
"""

import numpy as np

from refimpl.course.exercises.finding import Wrong
from refimpl.model.blockwise import merge
from refimpl.parallel.context_layout import all_positions

# -- merge ------------------------------------------------------------------------------------------------------------


def judge_merge(out1, lse1, out2, lse2, result):
    """Raise `Wrong` unless out and lse are those of all keys."""
    case = f"lse {shown(lse1)} and {shown(lse2)}: "
    shapes = [out1.shape, lse1.shape]
    if not isinstance(result, tuple | list) or [np.shape(x) for x in result] != shapes:
        has = [np.shape(x) for x in result] if isinstance(result, tuple | list) else f"a {type(result).__name__}"
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f"{case}expected out {shapes[0]} and lse {shapes[1]}; it is {has}.")
    out, lse = map(np.asarray, result)
    expected_out, expected_lse = merge(out1, lse1, out2, lse2)
    if not np.isfinite(out).all() or np.isnan(lse).any() or np.isposinf(lse).any():
        kind, cause = broken(lse1, lse2, out, lse)
        raise Wrong(kind, "there are numbers that are none", f"{case}out {shown(out[0])}, lse {shown(lse)}. {cause}")
    if not close(out, expected_out):
        for kind, cause, wrong in suspects(out1, lse1, out2, lse2):
            if close(out, wrong):
                raise Wrong(kind, "out is wrong", f"{case}{cause}")
        row = int(np.argwhere(~np.isclose(out, expected_out).all(axis=1))[0, 0])
        raise Wrong("wrong values", "out is wrong",
                    f"{case}row {row} is {shown(out[row])}, expected {shown(expected_out[row])}.")
    if not close(lse, expected_lse):
        raise Wrong("lse not merged", "out is right, lse is not",
                    f"{case}lse is {shown(lse)}, expected {shown(expected_lse)}: the log of the sum of both blocks' "
                    "sums of exponentials. The next merge needs it.")


def broken(lse1, lse2, out, lse):
    """Why something is not finite: the scores' size, or -inf."""
    if np.isinf(lse1).any() or np.isinf(lse2).any():
        return "not a number", "-inf means that no key was seen: exp of it is 0, but -inf minus -inf is no number."
    return "overflow", ("exp(1000) is more than any float. Subtract the larger lse first: both exponentials are 1 at "
                        "most.")


def suspects(out1, lse1, out2, lse2):
    """(diagnosis, sentence, out) of known mistakes."""
    with np.errstate(all="ignore"):
        share = (lse1 / (lse1 + lse2))[:, None]
        by_lse = share * out1 + (1 - share) * out2
        larger = np.maximum(lse1, lse2)
        sums = np.exp(lse1 - larger)[:, None] * out1 + np.exp(lse2 - larger)[:, None] * out2
        turned = merge(out2, lse1, out1, lse2)[0]
    return [
        ("not weighted", "This is the mean of both: a block counts by its sum of exponentials.", (out1 + out2) / 2),
        ("not weighted", "This adds both up: each is divided by its own sum, so the two weigh too much.", out1 + out2),
        ("not weighted", "lse is a logarithm: a block weighs exp(lse).", by_lse),
        ("not divided", "Divide by the sum of the weights: out must be an average of values.", sums),
        ("not weighted", "The weights are exchanged: out1 counts by exp(lse1).", turned),
    ]


def close(a, b):
    """Equal up to rounding, -inf included."""
    return np.allclose(a, b, rtol=1e-9, atol=1e-12)


def shown(x):
    """A few numbers in words."""
    return np.array2string(np.asarray(x), precision=4, separator=", ")


# -- zigzag -----------------------------------------------------------------------------------------------------------

def judge_owners(length, P, answers):
    """Raise `Wrong` unless each position has its rank and its place there."""
    case = f"{length} positions on {P} rank{'s' * (P > 1)}: "
    try:
        found = [(int(rank), int(place)) for rank, place in answers]
    except (TypeError, ValueError):
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f"{case}expected rank, place: two whole numbers; for position 0 it is {answers[0]!r}.") from None
    expected = owners(length, P, "zigzag")
    if found == expected:
        return
    ranks = [rank for rank, _ in found]
    p = next(p for p in range(length) if found[p][0] != expected[p][0]) if ranks != [r for r, _ in expected] else None
    if p is None:
        p = next(p for p in range(length) if found[p] != expected[p])
        raise Wrong("wrong place", "the ranks are right, the places are not",
                    f"{case}position {p} is number {expected[p][1]} of rank {expected[p][0]}'s positions, counted from "
                    f"0; you say {found[p][1]}.")
    size = length // (2 * P)
    kind, cause = "wrong owner", f"It is in chunk {p // size} of {2 * P}."
    for layout, words in (("contiguous", "Here each rank has one piece: the last one would do most of the work."),
                          ("striped", "Here positions are dealt out one by one; zigzag deals out chunks.")):
        if ranks == [rank for rank, _ in owners(length, P, layout)]:
            kind, cause = layout, words
    if ranks == [q // size % P for q in range(length)]:
        kind, cause = "not back", "After the last rank the chunks go back: chunk P is the last rank's again."
    raise Wrong(kind, "positions have the wrong rank",
                f"{case}position {p} belongs to rank {expected[p][0]}; you say {found[p][0]}. {cause}")


def owners(length, P, layout):
    """(rank, place) of every position."""
    found = {p: (rank, place) for rank, mine in enumerate(all_positions(length, P, layout))
             for place, p in enumerate(mine)}
    return [found[p] for p in range(length)]


# -- blocks -----------------------------------------------------------------------------------------------------------

def judge_blocks(pairs, answers):
    """Raise `Wrong` unless each block is told rightly. What loses pairs is said before what wastes work."""
    problems = {}
    for (queries, keys), answer in zip(pairs, answers):
        seen = [key <= query for query in queries for key in keys]
        expected = "all" if all(seen) else "part" if any(seen) else "none"
        if answer not in ("all", "part", "none"):
            raise Wrong("wrong shape", "what is returned has the wrong form",
                        f'queries {queries}, keys {keys}: expected "all", "part" or "none"; it is {answer!r}.')
        if answer != expected:
            kind, cause = why_block(queries, keys, answer, expected)
            said = f'queries {queries}, keys {keys}: you say "{answer}", but it is "{expected}". {cause}'
            problems.setdefault(kind, said)
    for kind, headline in (("pairs lost", "pairs that are seen are left out"),
                           ("diagonal lost", "a query sees its own position, too"),
                           ("mask forgotten", "pairs that must not be seen are seen"),
                           ("work wasted", "blocks are computed that nobody sees"),
                           ("mask wasted", "a mask is applied where none is needed")):
        if kind in problems:
            raise Wrong(kind, headline, problems[kind])


def why_block(queries, keys, answer, expected):
    """The kind of mistake, and a sentence."""
    if answer == "none":
        strict = not any(key < query for query in queries for key in keys)
        return ("diagonal lost", "The same position is seen.") if strict else (
            "pairs lost", f"Query {queries[-1]} sees key {keys[0]}.")
    if answer == "all":
        return "mask forgotten", f"Query {queries[0]} must not see key {keys[-1]}."
    if expected == "none":
        return "work wasted", "All keys come after all queries."
    return "mask wasted", "Every query sees every key."
