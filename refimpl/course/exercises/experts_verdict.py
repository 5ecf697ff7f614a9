"""What is wrong with a learner's capacity or combine, told from what came out.

    wrong shape      k forgotten        rounded down      least forgotten     above the sequence    wrong room
    no capacity      over the capacity  counted together  wrong order         wrong ones dropped    wrong values
    not put back     weights forgotten  rows lost         weights misplaced   renormalised          not a number
"""

import math

import numpy as np

from refimpl.course.exercises.finding import Wrong

# -- capacity ---------------------------------------------------------------------------------------------------------


def judge_capacity(choice, experts, factor, least, result):
    """Raise `Wrong` unless the room is right, and the right choices stay."""
    s, k = choice.shape
    case = f"{s} tokens, {k} choice{'s' * (k > 1)} each, {experts} experts, factor {factor}, least {least}: "
    room, kept = parts(case, choice.shape, result)
    load = k * s / experts * factor
    expected = min(max(math.ceil(load), least), s)
    if room != expected:
        kind, cause = why_room(room, s, k, experts, factor, least)
        raise Wrong(kind, f"the room is {room}, and should be {expected}",
                    f"{case}the mean load is {k} * {s} / {experts}; times the factor that is {load:g}. {cause}")
    wanted = in_order(choice, room, experts)
    if not np.array_equal(kept, wanted):
        kind, cause = why_kept(choice, kept, room, experts)
        token, place = np.argwhere(kept != wanted)[0]
        raise Wrong(kind, "the room is right, who stays is not",
                    f"{case}choice {place} of token {token}, expert {choice[token, place]}, should "
                    f"{'stay' if wanted[token, place] else 'be dropped'}. {cause}")


def parts(case, shape, result):
    """The two that are returned: a whole number and an array of booleans; `Wrong` unless they are."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f"{case}expected room, kept: a whole number and an array; it is a {type(result).__name__}.")
    room, kept = result
    if isinstance(room, bool) or not isinstance(room, int | np.integer):
        raise Wrong("wrong shape", "the room is no whole number", f"{case}room is {room!r}.")
    if not isinstance(kept, np.ndarray) or kept.shape != shape or kept.dtype != bool:
        has = f"of shape {kept.shape}, {kept.dtype}" if isinstance(kept, np.ndarray) else f"a {type(kept).__name__}"
        raise Wrong("wrong shape", "kept has the wrong form", f"{case}expected booleans of shape {shape}; it is {has}.")
    return int(room), kept


def why_room(room, s, k, experts, factor, least):
    """What would give this room."""
    load = k * s / experts * factor
    bounded = lambda n: min(max(n, least), s)
    for value, kind, cause in (
            (max(math.ceil(load), least), "above the sequence", "No expert gets more tokens than there are."),
            (min(math.ceil(load), s), "least forgotten", "It is at least `least`."),
            (bounded(math.ceil(s / experts * factor)), "k forgotten", "Each token makes k choices."),
            (bounded(math.floor(load)), "rounded down", "Round up: with factor 1 an even load must fit."),
            (bounded(round(load)), "rounded down", "Round up: with factor 1 an even load must fit.")):
        if room == value:
            return kind, cause
    return "wrong room", "Round that up, then mind both bounds."


def in_order(choice, room, experts, tokens=None):
    """Who stays if the choices come token by token, or in another order of the tokens."""
    kept, taken = np.zeros(choice.shape, bool), np.zeros(experts, int)
    for t in range(len(choice)) if tokens is None else tokens:
        for j, e in enumerate(choice[t]):
            kept[t, j] = taken[e] < room
            taken[e] += kept[t, j]
    return kept


def by_choice(choice, room, experts):
    """All first choices before all second ones."""
    columns, taken = [], np.zeros(experts, int)
    for column in choice.T:
        columns.append(np.zeros(len(choice), bool))
        for t, e in enumerate(column):
            columns[-1][t] = taken[e] < room
            taken[e] += columns[-1][t]
    return np.stack(columns, axis=1)


def why_kept(choice, kept, room, experts):
    """What would keep these."""
    same = lambda other: np.array_equal(kept, other)
    if kept.all():
        return "no capacity", "Nothing is dropped."
    if same(in_order(choice, room, experts, range(len(choice) - 1, -1, -1))):
        return "wrong ones dropped", "Who comes first stays; here the last ones do."
    if same(by_choice(choice, room, experts)):
        return "wrong order", "Here all first choices come before all second ones; go token by token."
    if same((np.arange(choice.size) < room).reshape(choice.shape)):
        return "counted together", "Each expert has room of its own."
    if max(np.bincount(choice[kept], minlength=experts)) > room:
        return "over the capacity", f"An expert has more than {room}."
    return "wrong values", "Count for each expert what it has taken."


# -- combine ----------------------------------------------------------------------------------------------------------

def judge_combine(rows, order, weights, y):
    """Raise `Wrong` unless y is the weighted sum over each token's choices."""
    (T, k), (n, h) = weights.shape, rows.shape
    case = f"{T} tokens, {k} choice{'s' * (k > 1)} each, {n} rows: "
    if not isinstance(y, np.ndarray) or y.shape != (T, h):
        has = f"has shape {y.shape}" if isinstance(y, np.ndarray) else f"is a {type(y).__name__}"
        raise Wrong("wrong shape", "y has the wrong shape", f"{case}y {has}, expected ({T}, {h}).")
    if not np.isfinite(y).all():
        raise Wrong("not a number", "there are numbers that are none",
                    f"{case}{np.count_nonzero(~np.isfinite(y))} elements of y are not finite.")
    expected = combined(rows, order, weights)
    if np.allclose(y, expected, rtol=1e-12, atol=1e-12):
        return
    token = int(np.argwhere(~np.isclose(y, expected).all(axis=1))[0, 0])
    for kind, cause, wrong in suspects(rows, order, weights):
        if np.allclose(y, wrong, rtol=1e-9, atol=1e-9):
            raise Wrong(kind, "the values are wrong", f"{case}token {token} is not right. {cause}")
    raise Wrong("wrong values", "the values are wrong", f"{case}token {token} is the first that is not right: it is "
                f"{np.array2string(y[token], precision=4)}, expected {np.array2string(expected[token], precision=4)}.")


def combined(rows, order, weights):
    """The sum, choice by choice."""
    T, k = weights.shape
    y = np.zeros((T, rows.shape[1]))
    for row, choice in zip(rows, order):
        y[choice // k] += weights[choice // k, choice % k] * row
    return y


def suspects(rows, order, weights):
    """(diagnosis, sentence, y) of known mistakes."""
    (T, k), n = weights.shape, len(order)
    flat = weights.reshape(-1)
    by_choice = flat[order, None] * rows
    counts = np.zeros((T, k))
    counts.reshape(-1)[order] = flat[order]
    total = counts.sum(axis=1, keepdims=True)
    last, first = np.zeros((T, rows.shape[1])), np.zeros((T, rows.shape[1]))
    last[order // k] = by_choice                                     # of several rows for one place the last one stays
    first[order[::-1] // k] = by_choice[::-1]
    return [
        ("not put back", "Row i is not choice i: the rows are sorted by expert, order[i] says whose it is.",
         combined(rows, np.arange(n), weights)),
        ("weights forgotten", "Each row counts by its weight.", combined(rows, order, np.ones_like(weights))),
        ("weights forgotten", "A mean is not a weighted sum.", combined(rows, order, np.full_like(weights, 1 / k))),
        ("rows lost", "Two rows are for the same token, and y[tokens] += rows adds only one of them.", last),
        ("rows lost", "Two rows are for the same token, and only one of them is in y.", first),
        ("weights misplaced", "Row i has the weight number order[i], not number i.",
         combined(rows * flat[:n, None] / flat[order, None], order, weights)),
        ("renormalised", "The weights are the router's: what a full expert dropped is missing from y, and not made "
                         "up for.", combined(rows, order, weights / np.where(total > 0, total, 1))),
    ]
