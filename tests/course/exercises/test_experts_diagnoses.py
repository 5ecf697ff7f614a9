"""Wrong capacities, dispatches, combines and expert gradients, as learners and real codebases write them."""

import math

import numpy as np
import pytest
from diagnoses import assert_diagnosed, assert_solution_passes_and_stub_is_not_implemented

from refimpl.collectives import all_gather, all_reduce, all_to_all, bounds
from refimpl.course.exercises.checks import examine, examine_file
from refimpl.course.exercises.stubs import folder

# capacity


def room_of(choice, experts, factor, least):
    s, k = choice.shape
    return min(max(math.ceil(k * s / experts * factor), least), s)


def stay(choice, experts, room, tokens=None, reset=False):
    kept, taken = np.zeros(choice.shape, bool), np.zeros(experts, int)
    for t in range(len(choice)) if tokens is None else tokens:
        for j, e in enumerate(choice[t]):
            kept[t, j] = taken[e] < room
            taken[e] += 1
    return kept


def room_right(choice, experts, factor, least):
    room = room_of(choice, experts, factor, least)
    return room, stay(choice, experts, room)


def room_by_sorting(choice, experts, factor, least):
    """As a GPU does it: the place in the queue of each expert is a running sum."""
    room = room_of(choice, experts, factor, least)
    chosen = choice[..., None] == np.arange(experts)
    queue = np.cumsum(chosen.any(axis=1), axis=0)
    return np.int64(room), np.take_along_axis(queue, choice, 1) <= room


def room_without_k(choice, experts, factor, least):
    room = room_of(choice[:, :1], experts, factor, least)
    return room, stay(choice, experts, room)


def room_rounded_down(choice, experts, factor, least):
    s, k = choice.shape
    room = min(max(int(k * s / experts * factor), least), s)
    return room, stay(choice, experts, room)


def room_without_least(choice, experts, factor, least):
    return room_right(choice, experts, factor, 0)


def room_without_bound(choice, experts, factor, least):
    s, k = choice.shape
    room = max(math.ceil(k * s / experts * factor), least)
    return room, stay(choice, experts, room)


def room_of_one(choice, experts, factor, least):
    return 1, stay(choice, experts, 1)


def room_as_float(choice, experts, factor, least):
    room, kept = room_right(choice, experts, factor, least)
    return float(room), kept


def room_alone(choice, experts, factor, least):
    return room_of(choice, experts, factor, least)


def room_dropping_nothing(choice, experts, factor, least):
    return room_of(choice, experts, factor, least), np.ones(choice.shape, bool)


def room_for_the_last(choice, experts, factor, least):
    room = room_of(choice, experts, factor, least)
    return room, stay(choice, experts, room, range(len(choice) - 1, -1, -1))


def room_first_choices_first(choice, experts, factor, least):
    """As GShard does: a token's second choice gives way to everybody's first one."""
    room, taken = room_of(choice, experts, factor, least), np.zeros(experts, int)
    kept = np.zeros(choice.shape, bool)
    for j in range(choice.shape[1]):
        for t, e in enumerate(choice[:, j]):
            kept[t, j] = taken[e] < room
            taken[e] += 1
    return room, kept


def room_for_all_together(choice, experts, factor, least):
    room = room_of(choice, experts, factor, least)
    return room, (np.arange(choice.size) < room).reshape(choice.shape)


def room_one_too_many(choice, experts, factor, least):
    room = room_of(choice, experts, factor, least)
    return room, stay(choice, experts, room + 1)


def room_one_too_few(choice, experts, factor, least):
    room = room_of(choice, experts, factor, least)
    return room, stay(choice, experts, room - 1)


def room_as_numbers(choice, experts, factor, least):
    room, kept = room_right(choice, experts, factor, least)
    return room, kept.astype(int)


# counts

def count(choice, experts):
    return np.bincount(choice.reshape(-1), minlength=experts)


def counts_right(choice, experts, comm):
    b, counts = bounds(experts, comm.size), count(choice, experts)
    return np.stack(all_to_all([counts[b[r]:b[r + 1]] for r in range(comm.size)], comm))


def counts_by_hand(choice, experts, comm):
    """The same exchange, from send and receive."""
    b, counts, P = bounds(experts, comm.size), count(choice, experts), comm.size
    received = np.zeros((P, b[comm.rank + 1] - b[comm.rank]), int)
    received[comm.rank] = counts[b[comm.rank]:b[comm.rank + 1]]
    for turn in range(1, P):
        to, of = (comm.rank + turn) % P, (comm.rank - turn) % P
        received[of] = comm.sendrecv(counts[b[to]:b[to + 1]], dst=to, src=of)
    return received


def counts_of_its_own(choice, experts, comm):
    return count(choice, experts).reshape(comm.size, -1)


def counts_gathered(choice, experts, comm):
    b = bounds(experts, comm.size)
    return all_gather(count(choice, experts)[None], comm)[:, b[comm.rank]:b[comm.rank + 1]]


def counts_from_choices(choice, experts, comm):
    """Sends everybody's choices to everybody."""
    b = bounds(experts, comm.size)
    everything = all_to_all([choice] * comm.size, comm)
    return np.stack([count(each, experts)[b[comm.rank]:b[comm.rank + 1]] for each in everything])


def counts_in_turn(choice, experts, comm):
    counts = count(choice, experts)
    return np.stack(all_to_all([counts[r::comm.size] for r in range(comm.size)], comm))


def counts_first_choices(choice, experts, comm):
    return counts_right(choice[:, :1], experts, comm)


def counts_once(choice, experts, comm):
    b, counts = bounds(experts, comm.size), (count(choice, experts) > 0).astype(int)
    return np.stack(all_to_all([counts[b[r]:b[r + 1]] for r in range(comm.size)], comm))


def counts_turned(choice, experts, comm):
    return counts_right(choice, experts, comm).T.copy()


def counts_in_all(choice, experts, comm):
    return counts_right(choice, experts, comm).sum(axis=0)


def counts_even_shares(choice, experts, comm):
    """Only right where every rank has as many experts."""
    parts = count(choice, experts).reshape(comm.size, -1)
    return np.stack(all_to_all(list(parts), comm))


# combine

def combine_right(rows, order, weights):
    T, k = weights.shape
    outputs = np.zeros((T * k, rows.shape[1]))
    outputs[order] = rows
    return (weights[..., None] * outputs.reshape(T, k, -1)).sum(axis=1)


def combine_with_add_at(rows, order, weights):
    y = np.zeros((len(weights), rows.shape[1]))
    np.add.at(y, order // weights.shape[1], weights.reshape(-1)[order, None] * rows)
    return y


def combine_in_the_order_of_arrival(rows, order, weights):
    return combine_right(rows, np.arange(len(rows)), weights)


def combine_without_weights(rows, order, weights):
    return combine_right(rows, order, np.ones_like(weights))


def combine_mean(rows, order, weights):
    return combine_right(rows, order, np.full_like(weights, 1 / weights.shape[1]))


def combine_loses_rows(rows, order, weights):
    """The classic: += with repeated indices."""
    y = np.zeros((len(weights), rows.shape[1]))
    y[order // weights.shape[1]] += weights.reshape(-1)[order, None] * rows
    return y


def combine_misplaces_weights(rows, order, weights):
    y = np.zeros((len(weights), rows.shape[1]))
    np.add.at(y, order // weights.shape[1], weights.reshape(-1)[:len(order), None] * rows)
    return y


def combine_makes_up(rows, order, weights):
    counting = np.zeros(weights.size)
    counting[order] = weights.reshape(-1)[order]
    total = counting.reshape(weights.shape).sum(axis=1, keepdims=True)
    return combine_right(rows, order, weights / np.where(total > 0, total, 1))


def combine_divides_by_nothing(rows, order, weights):
    with np.errstate(all="ignore"):
        rows_of = np.bincount(order // weights.shape[1], minlength=len(weights))
        return combine_right(rows, order, weights) / rows_of[:, None]


def combine_by_choice(rows, order, weights):
    T, k = weights.shape
    outputs = np.zeros((T * k, rows.shape[1]))
    outputs[order] = rows
    return outputs.reshape(T, k, -1)


def combine_backwards(rows, order, weights):
    return combine_right(rows, order, weights)[::-1]


# gradients

def gradient(x, dy, choice, w, comm, dense=1.0, own=1.0):
    """Sums of dy, each rank's times `dense`, for dshared; times `own` for dw."""
    def to_experts(a):
        return np.concatenate(all_to_all([a[choice // len(w) == r] for r in range(comm.size)], comm))

    dshared, dw = all_reduce(dense * dy @ x, comm), np.zeros_like(w)
    np.add.at(dw, to_experts(choice % len(w)), to_experts(own * dy[:, None] * x))
    return dshared, dw


def total(x, comm):
    return all_reduce(np.array([float(len(x))]), comm)[0]


def gradient_right(x, dy, choice, w, comm):
    n = total(x, comm)
    return gradient(x, dy, choice, w, comm, 1 / n, 1 / n)


def gradient_divided_last(x, dy, choice, w, comm):
    n = total(x, comm)
    dshared, dw = gradient(x, dy, choice, w, comm)
    return dshared / n, dw / n


def gradient_as_given(x, dy, choice, w, comm):
    n = max(len(x), 1)
    return gradient(x, dy, choice, w, comm, 1 / n / comm.size, 1 / n)


def gradient_mean_of_means(x, dy, choice, w, comm):
    n = max(len(x), 1) * comm.size
    return gradient(x, dy, choice, w, comm, 1 / n, 1 / n)


def gradient_summed_twice(x, dy, choice, w, comm):
    n = total(x, comm)
    return gradient(x, dy, choice, w, comm, comm.size / n, 1 / n)


def gradient_undivided(x, dy, choice, w, comm):
    return gradient(x, dy, choice, w, comm)


def gradient_of_own_tokens(x, dy, choice, w, comm):
    n, dw = total(x, comm), np.zeros_like(w)
    here = choice // len(w) == comm.rank
    np.add.at(dw, choice[here] % len(w), dy[here, None] * x[here] / n)
    return all_reduce(dy @ x / n, comm), dw


def gradient_not_reduced(x, dy, choice, w, comm):
    n = total(x, comm)
    _, dw = gradient(x, dy, choice, w, comm, 1 / n, 1 / n)
    return dy @ x / n, dw


def gradient_gathers_tokens(x, dy, choice, w, comm):
    """Right numbers: every rank looks at all tokens."""
    x, dy, choice = (all_gather(a, comm) for a in (x, dy, choice))
    dw, here = np.zeros_like(w), choice // len(w) == comm.rank
    np.add.at(dw, choice[here] % len(w), dy[here, None] * x[here] / len(x))
    return dy @ x / len(x), dw


WRONG = [
    (room_right, "passed", []),
    (room_by_sorting, "passed", []),
    (room_without_k, "k forgotten", ["the mean load is 2 * 6 / 4"]),
    (room_rounded_down, "rounded down", ["Round up", "math.ceil"]),
    (room_without_least, "least forgotten", ["the room is 2, and should be 4", "5 tokens, 1 choice each, 4 experts"]),
    (room_without_bound, "above the sequence", ["the room is 16, and should be 4", "min(..., s)"]),
    (room_of_one, "wrong room", ["mind both bounds"]),
    (room_as_float, "wrong shape", ["no whole number"]),
    (room_alone, "wrong shape", ["expected room, kept"]),
    (room_as_numbers, "wrong shape", ["expected booleans of shape (5, 1); it is of shape (5, 1), int64"]),
    (room_dropping_nothing, "no capacity", ["choice 0 of token 4, expert 0, should be dropped"]),
    (room_for_the_last, "wrong ones dropped", ["choice 0 of token 0, expert 0, should stay", "Who comes first stays"]),
    (room_first_choices_first, "wrong order", ["token by token"]),
    (room_for_all_together, "counted together", ["room of its own"]),
    (room_one_too_many, "no capacity", ["Nothing is dropped"]),
    (room_one_too_few, "wrong values", ["should stay"]),
    (counts_right, "passed", []),
    (counts_by_hand, "passed", []),
    (counts_of_its_own, "not exchanged", ["the rank itself sends", "brings what you get"]),
    (counts_gathered, "wrong traffic", ["the counts of other ranks' experts are 4 elements in all"]),
    (counts_from_choices, "wrong traffic", ["each rank sent 4 elements in 1 message", "and no tokens"]),
    (counts_in_turn, "wrong experts", ["in blocks"]),
    (counts_first_choices, "choices missing", ["only each token's first choice"]),
    (counts_once, "choices missing", ["not how often"]),
    (counts_turned, "wrong order", ["transposed"]),
    (counts_in_all, "wrong shape", ["has shape (2,), expected (2, 2)"]),
    (counts_even_shares, "exception", ["3 ranks, 7 experts, 5, 0, 8 tokens", "cannot reshape"]),
    (combine_right, "passed", []),
    (combine_with_add_at, "passed", []),
    (combine_in_the_order_of_arrival, "not put back", ["sorted by expert", "undoes the sorting"]),
    (combine_without_weights, "weights forgotten", ["by its weight"]),
    (combine_mean, "weights forgotten", ["A mean is not"]),
    (combine_loses_rows, "rows lost", ["adds only one of them", "np.add.at"]),
    (combine_misplaces_weights, "weights misplaced", ["order[i], not number i"]),
    (combine_makes_up, "renormalised", ["not made up for"]),
    (combine_divides_by_nothing, "wrong values", ["is the first that is not right"]),
    (combine_by_choice, "wrong shape", ["y has shape (2, 2, 3), expected (2, 3)"]),
    (combine_backwards, "wrong values", ["token 0"]),
    (gradient_right, "passed", []),
    (gradient_divided_last, "passed", []),
    (gradient_as_given, "off by a factor",
     ["2 ranks, 2, 2 tokens", "the gradient dw is wrong: 2 times too large", "the number of all tokens"]),
    (gradient_mean_of_means, "mean of means", ["2 ranks, 3, 6 tokens", "however few tokens are in it", "once"]),
    (gradient_summed_twice, "off by a factor", ["the gradient dshared is wrong: 2 times too large"]),
    (gradient_undivided, "off by a factor", ["the gradient dshared is wrong"]),
    (gradient_of_own_tokens, "wrong gradient", ["the gradient dw is wrong"]),
    (gradient_not_reduced, "wrong gradient", ["missing all-reduce"]),
    (gradient_gathers_tokens, "wrong traffic", ["11 tokens have their expert elsewhere"]),
]
EXERCISE = {"room": "expert_capacity", "counts": "dispatch_counts", "combine": "moe_combine",
            "gradient": "expert_gradient"}


@pytest.mark.parametrize("function, diagnosis, says", WRONG, ids=[row[0].__name__ for row in WRONG])
def test_each_version_gets_its_diagnosis(function, diagnosis, says):
    verdict = examine(function, EXERCISE[function.__name__.partition("_")[0]])
    assert_diagnosed(verdict, diagnosis, says)


@pytest.mark.parametrize("name", EXERCISE.values())
def test_the_solution_passes_and_the_stub_is_not_implemented(name):
    assert_solution_passes_and_stub_is_not_implemented(name)


def test_the_gradient_as_given_is_the_one_that_is_found_out(tmp_path):
    """What stands in the learner's file, with the line deleted that raises."""
    path, = folder("exercises").glob("*_expert_gradient.py")
    text = "".join(line for line in path.read_text(encoding="utf-8").splitlines(True)
                   if not line.strip().startswith("raise NotImplementedError("))
    (tmp_path / "given.py").write_text(text, encoding="utf-8")
    verdict = examine_file(tmp_path / "given.py", "expert_gradient")
    assert verdict.diagnosis == "off by a factor" and "dw is wrong: 2 times too large" in verdict.headline
