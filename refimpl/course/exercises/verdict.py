"""What is wrong with a learner's function, told from what it returned, what it sent, or how it broke.

    not implemented     wrong shape      missing all-reduce    off by a factor    bias           wrong order
    wrong addends       wrong values     wrong gradient        not a number       wrong traffic  library used
    input changed       deadlock         messages left         collectives disagree              exception    too slow
    missing all-gather

Values first, gradients after the values of the forward, traffic last: right numbers at the wrong price are the last
thing to mend. The numbers are read by refimpl/diagnosis.py; here is what is particular to an exercise.
"""

import numpy as np

from refimpl import diagnosis
from refimpl.course.exercises.cases import chunks
from refimpl.course.exercises.finding import Wrong
from refimpl.course.exercises.traffic import judge_traffic
from refimpl.testing import cut, default_tolerance, norm_of_all, relative_difference, words
from refimpl.world.deadlock import numbered

SIGNS = [                                             # which sign means what, the surest first
    (diagnosis.not_finite, "not a number"),
    (diagnosis.addends, "missing all-reduce"),
    (diagnosis.factor, "off by a factor"),
]
LESSER_SIGNS = [
    (diagnosis.same_in_every_row, "bias"),
    (diagnosis.elsewhere, "wrong order"),
    (diagnosis.nearly, "wrong values"),
]
HEADLINES = {
    "not a number": "there are numbers that are none", "missing all-reduce": "the ranks' parts are not added up",
    "off by a factor": "the values are off by a factor", "bias": "every row is off by the same amount",
    "missing all-gather": "the ranks' shards are not put together",
    "wrong order": "right numbers in the wrong places", "wrong addends": "the sum has wrong addends",
    "everything added": "more is added up than belongs together",
}

GENERIC = {*HEADLINES, "wrong values"} - {"off by a factor", "not a number"}             # of a gradient: one kind


def judge(case, returned, changed, ledger):
    """Raise `Wrong` for the first thing that is wrong with a run.

    returned    what each rank's function returned    changed    per rank, the names of inputs that it changed
    """
    ranks = f"{case.size} rank{'s' * (case.size > 1)}, {case.words}: "
    results = [as_dict(case, result, rank, ranks) for rank, result in enumerate(returned)]
    judge_values(case, results, ranks)
    for rank, names in enumerate(changed):
        if names:
            raise Wrong("input changed", f"the result is right, but {names[0]} was changed",
                        f"{ranks}{names[0]} on rank {rank} is not what it was. The caller may still need it: "
                        "work on a copy.")
    judge_traffic(case, ledger, ranks)


def as_dict(case, result, rank, ranks):
    """What one rank returned, by name; `Wrong` unless it is as many arrays as there should be."""
    names = list(case.expected)
    parts = (result,) if len(names) == 1 else result
    wanted = "an array" if len(names) == 1 else f"{len(names)} arrays: {', '.join(names)}"
    if result is None:
        raise Wrong("wrong shape", "nothing is returned", f"{ranks}rank {rank} returned None, expected {wanted}. "
                    "Is there a return at the end?")
    are_arrays = isinstance(parts, tuple | list) and all(isinstance(part, np.ndarray | np.generic) for part in parts)
    if not are_arrays or len(parts) != len(names):
        has = type(result).__name__ + (f" of {len(result)}" if isinstance(result, tuple | list) else "")
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f"{ranks}rank {rank} returned a {has}, expected {wanted}.")
    return dict(zip(names, parts))


def judge_values(case, results, ranks):
    """Shapes and numbers: of the forward, then of the gradients."""
    norm = norm_of_all(case.expected.values())
    for name in sorted(case.expected, key=is_gradient):
        whole, mine = case.expected[name], [result[name] for result in results]
        parts = [cut(whole, case.shard[name], rank, case.size) for rank in range(case.size)]
        who = [f"{ranks}{name}{words(case.shard[name], whole, rank, case.size)}" for rank in range(case.size)]
        for rank, (has, wanted) in enumerate(zip(mine, parts)):
            if has.shape != wanted.shape:
                cause = diagnosis.wrong_shape(mine, parts, has, wanted, whole, rank, case.size)
                raise Wrong("wrong shape", f"{name} has the wrong shape",
                            f"{who[rank]} has shape {has.shape}, expected {wanted.shape}.", *sentence(cause))
            if has.dtype != wanted.dtype:
                raise Wrong("wrong shape", f"{name} has the wrong dtype",
                            f"{who[rank]} has dtype {has.dtype}, expected {wanted.dtype}.")
        for rank, (has, wanted) in enumerate(zip(mine, parts)):
            allowed = default_tolerance(whole.dtype, is_gradient(name))
            if not relative_difference(has, wanted, norm) <= allowed:             # NaN is not <= anything
                raise wrong_numbers(case, name, *cause_of(case, mine, parts, rank, whole), who[rank])


def wrong_numbers(case, name, kind, cause, who):
    """The `Wrong` for numbers that differ: of a gradient most kinds are one, and the cause says more."""
    headline = HEADLINES.get(kind, "the values are wrong")
    if is_gradient(name):
        forward_is_there = not all(map(is_gradient, case.expected))
        headline = f"the gradient {name} is wrong"
        if forward_is_there:
            headline = f"the forward is right, the gradient {name} is not"
        if kind in GENERIC:
            kind = "wrong gradient"
    if kind == "off by a factor":
        headline += f": {cause.partition(':')[0]}"                                # "4 times too large"
    return Wrong(kind, headline, f"{who} is wrong.", *sentence(cause))


def cause_of(case, mine, parts, rank, whole):
    """(diagnosis, what the numbers tell about it, or None)"""
    def first(signs):
        for sign, kind in signs:
            if found := sign(mine, parts, mine[rank], parts[rank], whole, rank, case.size):
                return kind, found

    with np.errstate(all="ignore"):                                               # wrong numbers may be any
        found = suspected(case, mine[rank], rank, whole) or first(SIGNS)
        if not found and case.addends is not None and whole is next(iter(case.expected.values())):
            found = (counted(case, mine[rank], rank) or mixed(case, mine[rank], rank) if whole.ndim == 1
                     else own_part(case, mine[rank], rank))
        return found or misplaced(case, mine[rank], whole) or first(LESSER_SIGNS) or ("wrong values", None)


def suspected(case, mine, rank, whole):
    """What a known mistake would return, if this is it."""
    for kind, cause, name, arrays in case.suspects:
        if whole is case.expected[name] and relative_difference(mine, arrays[rank]) < 1e-9:
            return kind, cause


def counted(case, mine, rank):
    """Of a sum over the ranks: whose addends are in a chunk of it, and how often. Least squares tell."""
    P, is_whole = case.size, mine.shape == case.addends[0].shape
    for k, has in enumerate(chunks(mine, P)) if is_whole else [(rank, mine)]:
        if len(has) < P or not np.isfinite(has).all():                            # too few equations
            continue
        addends = np.stack([chunks(x, P)[k] for x in case.addends], axis=1)       # (elements of the chunk, P)
        times = np.rint(np.linalg.lstsq(addends, has)[0])
        if (times == 1).all() or not np.array_equal(addends @ times, has):
            continue
        if not is_whole and times.max() == times.sum() == 1:
            return "missing all-reduce", f"chunk {k} has only the addend of rank {times.argmax()}: nothing was added"
        missing = np.flatnonzero(times == 0).tolist()
        said = [f"lacks what {numbered(missing)} brought"] if missing else []
        said += [f"has what rank {q} brought {times[q]:g} times" for q in np.flatnonzero((times != 0) & (times != 1))]
        return "wrong addends", f"chunk {k} " + " and ".join(said)


def mixed(case, mine, rank):
    """Of a chunk of a sum over the ranks: numbers of other chunks in it. Least squares tell, if there are enough."""
    addends = {(k, q): part for q, x in enumerate(case.addends) for k, part in enumerate(chunks(x, case.size))
               if part.shape == mine.shape}
    if len(mine) < len(addends) or not addends or not np.isfinite(mine).all():
        return None
    columns = np.stack(list(addends.values()), axis=1)                            # (elements of the chunk, P P)
    times = np.rint(np.linalg.lstsq(columns, mine)[0])
    found = sorted({k for (k, _), often in zip(addends, times) if often})
    if not np.array_equal(columns @ times, mine) or found in ([], [rank]):
        return None
    if len(found) == 1 and (times[[k == found[0] for k, _ in addends]] == 1).all():
        return None                                                               # finished, and another rank's
    if len(found) == 1:
        return "wrong order", f"this is chunk {found[0]}, and not yet all of its sum"
    return "wrong order", f"in it numbers of the chunks {' and '.join(map(str, found))} are added to each other"


def own_part(case, mine, rank):
    """Of a sum of products: the rank's own addend, with or without a bias."""
    rest = mine - case.addends[rank]
    if case.size > 1 and np.array_equal(rest, np.broadcast_to(rest[:1], rest.shape)):
        return "missing all-reduce", f"this is what rank {rank} has in its part of x and w; the others' are missing"


def misplaced(case, mine, whole):
    """Of a whole array of one axis: a chunk that is right, but for another place."""
    if mine.shape != whole.shape or whole.ndim != 1:
        return None
    has, wanted = chunks(mine, case.size), chunks(whole, case.size)
    for k in range(case.size):
        for other in range(case.size):
            if len(has[k]) and np.array_equal(has[k], wanted[other]) and not np.array_equal(has[k], wanted[k]):
                return "wrong order", f"in the place of chunk {k} there is chunk {other}"


def is_gradient(name):
    """Whether an output is a gradient: d + the name of an input."""
    return name.startswith("d")


def sentence(cause):
    """A cause as a line of its own, or no line."""
    return [cause[0].upper() + cause[1:] + "."] if cause else []
