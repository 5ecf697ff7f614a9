"""Wrong schedules, placements, predicates and backwards, as learners write them: each gets its diagnosis."""

import numpy as np
import pytest
from diagnoses import assert_diagnosed

from refimpl.course.exercises.checks import examine, examine_file
from refimpl.course.exercises.stubs import folder
from refimpl.pipeline import build, happens_before, parse


def F(rank, numbers):
    return [f"{rank}F{k}" for k in numbers]


def B(rank, numbers):
    return [f"{rank}B{k}" for k in numbers]


# gpipe

def gpipe_right(rank, p, m):
    return F(rank, range(m)) + B(rank, range(m))


def gpipe_last_backward_first(rank, p, m):
    """The order of the paper's figure, and as good."""
    return F(rank, range(m)) + B(rank, reversed(range(m)))


def gpipe_as_actions(rank, p, m):
    return tuple(map(parse, gpipe_right(rank, p, m)))


def gpipe_without_backwards(rank, p, m):
    return F(rank, range(m))


def gpipe_one_too_many(rank, p, m):
    return F(rank, range(m + 1)) + B(rank, range(m + 1))


def gpipe_on_stage_0(rank, p, m):
    return F(0, range(m)) + B(0, range(m))


def gpipe_one_by_one(rank, p, m):
    return [word for k in range(m) for word in (f"{rank}F{k}", f"{rank}B{k}")]


def gpipe_every_rank_its_own_order(rank, p, m):
    turned = [(k + rank) % m for k in range(m)]
    return F(rank, turned) + B(rank, turned)


def gpipe_in_one_string(rank, p, m):
    return " ".join(gpipe_right(rank, p, m))


def gpipe_numbers(rank, p, m):
    return list(range(m))


def gpipe_split(rank, p, m):
    return F(rank, range(m)) + [f"{rank}{kind}{k}" for k in range(m) for kind in "IW"]


def gpipe_pairs(rank, p, m):
    return [f"({rank}F{k};{rank}B{k})" for k in range(m)]


# 1f1b

def one_with(warm_up):
    """1F1B with a warm-up to get wrong."""
    def row(rank, p, m):
        ahead = warm_up(rank, p, m)
        steady = [word for k in range(m - ahead) for word in (f"{rank}F{ahead + k}", f"{rank}B{k}")]
        return F(rank, range(ahead)) + steady + B(rank, range(max(m - ahead, 0), m))
    return row


one_right = one_with(lambda rank, p, m: min(m, p - 1 - rank))
one_too_far_ahead = one_with(lambda rank, p, m: min(m, p - rank))
one_without_warm_up = one_with(lambda rank, p, m: 0)
one_warm_up_by_rank = one_with(lambda rank, p, m: min(m, rank))
one_without_min = one_with(lambda rank, p, m: p - 1 - rank)


def one_that_is_gpipe(rank, p, m):
    return gpipe_right(rank, p, m)


def one_backward_first(rank, p, m):
    row = one_right(rank, p, m)
    return row[-1:] + row[:-1]


def one_forgets_the_cool_down(rank, p, m):
    return one_right(rank, p, m)[:m + 1]


def one_split(rank, p, m):
    return [word.replace("B", "I") for word in one_right(rank, p, m)]


# placement

def place_right(rank, p, v, layers):
    S = p * v
    return [range(layers * s // S, layers * (s + 1) // S) for s in range(rank, S, p)]


def place_neighbours(rank, p, v, layers):
    S = p * v
    return [range(layers * s // S, layers * (s + 1) // S) for s in range(rank * v, rank * v + v)]


def place_v(rank, p, v, layers):
    S = p * v
    if v != 2:
        return place_right(rank, p, v, layers)
    return [range(layers * s // S, layers * (s + 1) // S) for s in (rank, S - 1 - rank)]


def place_backwards(rank, p, v, layers):
    return place_right(rank, p, v, layers)[::-1]


def place_rounds_down(rank, p, v, layers):
    each = layers // (p * v)
    return [range(s * each, s * each + each) for s in range(rank, p * v, p)]


def place_rest_at_the_end(rank, p, v, layers):
    each, S = layers // (p * v), p * v
    return [range(s * each, layers if s == S - 1 else s * each + each) for s in range(rank, S, p)]


def place_single_layers(rank, p, v, layers):
    return list(range(rank, layers, p))


def place_one_chunk(rank, p, v, layers):
    return [[layer for chunk in place_right(rank, p, v, layers) for layer in chunk]]


def place_one_too_far(rank, p, v, layers):
    return [[layer + 1 for layer in chunk] for chunk in place_right(rank, p, v, layers)]


# happens before

def direct(ranks, b, kinds=("list", "input", "gradient", "own")):
    """What must have ended right before b, of the kinds of arrows that are not forgotten."""
    everything = {action for row in ranks for action in row}
    stage, kind, k = b
    found = [row[at - 1] for row in ranks for at, action in enumerate(row) if action == b and at] * ("list" in kinds)
    if kind == "F":
        found += [(stage - 1, "F", k)] * ("input" in kinds)
    else:
        found += [(stage + 1, "B", k)] * ("gradient" in kinds) + [(stage, "F", k)] * ("own" in kinds)
    return [action for action in found if action in everything]


def all_before(ranks, b, **options):
    found, todo = set(), [b]
    while todo:
        for action in direct(ranks, todo.pop(), **options):
            if action not in found:
                found.add(action)
                todo.append(action)
    return found


def before_right(ranks, a, b):
    return a in all_before(ranks, b)


def before_without_own_forward(ranks, a, b):
    """Right as well: in a schedule that can run a forward stands before its backward in the same list."""
    return a in all_before(ranks, b, kinds=("list", "input", "gradient"))


def before_direct_only(ranks, a, b):
    return a in direct(ranks, b)


def before_forgets_lists(ranks, a, b):
    return a in all_before(ranks, b, kinds=("input", "gradient", "own"))


def before_forgets_inputs(ranks, a, b):
    return a in all_before(ranks, b, kinds=("list", "gradient", "own"))


def before_forgets_gradients(ranks, a, b):
    return a in all_before(ranks, b, kinds=("list", "input", "own"))


def before_same_list_only(ranks, a, b):
    return any(a in row and b in row and row.index(a) < row.index(b) for row in ranks)


def before_itself(ranks, a, b):
    return a == b or before_right(ranks, a, b)


def before_the_other_way(ranks, a, b):
    return before_right(ranks, a, b) or before_right(ranks, b, a)


def before_without_return(ranks, a, b):
    before_right(ranks, a, b)


def before_without_memory(ranks, a, b):
    return any(action == a or before_without_memory(ranks, a, action) for action in direct(ranks, b))


# split backward

def split_right(dy, saved):
    x, a, w1, w2 = saved
    da = dy @ w2.T
    return da @ w1.T, lambda: (x.T @ da, a.T @ dy)


def split_by_einsum(dy, saved):
    x, a, w1, w2 = saved
    da = np.einsum("to,ho->th", dy, w2)
    return np.dot(da, w1.T), lambda: (x.T @ da, np.matmul(a.T, dy))


def split_all_at_once(dy, saved):
    x, a, w1, w2 = saved
    da = dy @ w2.T
    dw1, dw2 = x.T @ da, a.T @ dy
    return da @ w1.T, lambda: (dw1, dw2)


def split_half(dy, saved):
    x, a, w1, w2 = saved
    da = dy @ w2.T
    dw2 = np.dot(a.T, dy)
    return da @ w1.T, lambda: (x.T @ da, dw2)


def split_computes_da_again(dy, saved):
    x, a, w1, w2 = saved
    return dy @ w2.T @ w1.T, lambda: (x.T @ (dy @ w2.T), a.T @ dy)


def split_computes_a_again(dy, saved):
    x, a, w1, w2 = saved
    da = dy @ w2.T
    return da @ w1.T, lambda: (x.T @ da, (x @ w1).T @ dy)


def split_swapped(dy, saved):
    x, a, w1, w2 = saved
    da = dy @ w2.T
    return da @ w1.T, lambda: (a.T @ dy, x.T @ da)


def split_doubles_dw2(dy, saved):
    x, a, w1, w2 = saved
    da = dy @ w2.T
    return da @ w1.T, lambda: (x.T @ da, 2 * a.T @ dy)


def split_sign(dy, saved):
    x, a, w1, w2 = saved
    da = dy @ w2.T
    return -da @ w1.T, lambda: (x.T @ da, a.T @ dy)


def split_returns_arrays(dy, saved):
    x, a, w1, w2 = saved
    da = dy @ w2.T
    return da @ w1.T, x.T @ da, a.T @ dy


def split_later_is_nothing(dy, saved):
    return split_right(dy, saved)[0], lambda: None


def split_wrong_size(dy, saved):
    x, a, w1, w2 = saved
    return w1 @ w2, lambda: (w1, w2)


WRONG = [
    (gpipe_right, "passed", []),
    (gpipe_last_backward_first, "passed", []),
    (gpipe_as_actions, "passed", []),
    (gpipe_without_backwards, "wrong actions", ["backward of stage 0, micro-batch 0, on rank 0", "and 6 more"]),
    (gpipe_one_too_many, "wrong actions", ["0F4 on rank 0: there are micro-batches 0 to 3"]),
    (gpipe_on_stage_0, "wrong actions", ["0F0 is on rank 1, but stage 0 is on rank 0"]),
    (gpipe_split, "wrong actions", ["0I0 on rank 0"]),
    (gpipe_pairs, "wrong actions", ["a pair in a list"]),
    (gpipe_one_by_one, "wrong order", ["on rank 0 0F1 comes after 0B0", "no backward before its last forward"]),
    (gpipe_every_rank_its_own_order, "bubble", ["it runs, but takes", "in the same order"]),
    (gpipe_in_one_string, "wrong shape", ["a rank's list is no list", "'0F0'"]),
    (gpipe_numbers, "wrong shape", ["0 on rank 0; expected such as '0F0'"]),
    (one_right, "passed", []),
    (one_that_is_gpipe, "too much kept", ["rank 0 keeps 4 activations at once", "2 on rank 0 would be enough"]),
    (one_too_far_ahead, "too much kept", ["rank 0 keeps 3 activations", "p-r are enough"]),
    (one_without_warm_up, "bubble", ["it runs, but takes 24 where 15 would do", "as there are ranks behind it"]),
    (one_warm_up_by_rank, "deadlock", ["rank 0 cannot start 0B0 before 1B0", "The first rank warms up longest"]),
    (one_backward_first, "deadlock", ["ranks wait for each other", "0B3"]),
    (one_without_min, "wrong actions", ["4 ranks, 2 micro-batches: 0F2 on rank 0", "smaller than the warm-up"]),
    (one_forgets_the_cool_down, "wrong actions", ["needs one B"]),
    (one_split, "wrong actions", ["0I0 on rank 0"]),
    (place_right, "passed", []),
    (place_neighbours, "wrong placement", ["rank 0 has [[0, 1], [2, 3]]", "a pipeline without interleaving"]),
    (place_v, "wrong placement", ["That is a V", "after the last rank comes the first"]),
    (place_backwards, "wrong order", ["rank 0 has [[4, 5], [0, 1]], expected [[0, 1], [4, 5]]"]),
    (place_rounds_down, "layers missing", ["3 ranks, 2 chunks each, 14 layers", "layer 12 is there on no rank"]),
    (place_rest_at_the_end, "wrong placement", ["14 layers"]),
    (place_single_layers, "wrong shape", ["a list of layers for each chunk"]),
    (place_one_chunk, "wrong shape", ["rank 0 has 1 chunk", "expected 2"]),
    (place_one_too_far, "layers missing", ["layer 0 is there on no rank"]),
    (before_right, "passed", []),
    (before_without_own_forward, "passed", []),
    (before_direct_only, "not transitive", ["by way of others", "nothing new"]),
    (before_forgets_lists, "arrow missing", ["stands right behind", "three kinds of arrows"]),
    (before_forgets_inputs, "arrow missing", ["0F0 comes before 1F0", "1F0 needs what 0F0 puts out"]),
    (before_forgets_gradients, "arrow missing", ["0B0 needs the gradient that 1B0 hands down"]),
    (before_same_list_only, "arrow missing", ["needs what"]),
    (before_itself, "says too much", ["does not come before itself"]),
    (before_the_other_way, "says too much", ["can start before"]),
    (before_without_return, "wrong shape", ["neither True nor False", "None"]),
    (before_without_memory, "too slow", ["1f1b, 4 ranks, 8 micro-batches", "go on from there only once"]),
    (split_right, "passed", []),
    (split_by_einsum, "passed", []),
    (split_all_at_once, "not split", ["4 products of matrices before dx was handed on", "called later"]),
    (split_half, "not split", ["3 products of matrices before dx"]),
    (split_computes_da_again, "work done twice", ["2 products of matrices for dx and 3 later", "Keep da"]),
    (split_computes_a_again, "work done twice", ["3 later"]),
    (split_swapped, "wrong shape", ["dw1 has shape (3, 2), expected (2, 3)"]),
    (split_doubles_dw2, "wrong gradient", ["the gradient dw2 is wrong"]),
    (split_sign, "wrong gradient", ["the gradient dx is wrong"]),
    (split_returns_arrays, "wrong shape", ["expected dx and a function without arguments"]),
    (split_later_is_nothing, "wrong shape", ["returned a NoneType; expected dw1 and dw2"]),
    (split_wrong_size, "wrong gradient", ["dx"]),
]
EXERCISE = {"gpipe": "gpipe_order", "one": "one_f_one_b", "place": "interleaved_placement", "before": "happens_before",
            "split": "split_backward"}
NAMES = {function: name for name, function in globals().items() if callable(function)}


@pytest.mark.parametrize("function, diagnosis, says", WRONG, ids=[NAMES[row[0]] for row in WRONG])
def test_each_version_gets_its_diagnosis(function, diagnosis, says):
    seconds = 1.0 if diagnosis == "too slow" else 10.0
    verdict = examine(function, EXERCISE[NAMES[function].partition("_")[0]], seconds)
    assert_diagnosed(verdict, diagnosis, says)


@pytest.mark.parametrize("name", EXERCISE.values())
def test_the_solution_passes_and_the_stub_is_not_implemented(name):
    for impl, diagnosis in (("solutions", "passed"), ("exercises", "not implemented")):
        path, = folder(impl).glob(f"[0-9][0-9]_{name}.py")
        assert examine_file(path, name).diagnosis == diagnosis


@pytest.mark.parametrize("name", EXERCISE.values())
def test_what_breaks_is_shown_with_its_line(name):
    def broken(*given):
        return 1 / 0

    verdict = examine(broken, name)
    assert verdict.diagnosis == "exception" and "ZeroDivisionError" in str(verdict) and "1 / 0" in str(verdict)


def test_the_predicate_of_the_tests_is_that_of_the_library():
    """Two that were written apart agree on all pairs, so that a mistake in one of them shows."""
    schedule = build("interleaved", 2, 4, 2)
    actions = [action for row in schedule.ranks for action in row]
    for b in actions:
        before = all_before(schedule.ranks, b)
        assert before == {a for a in actions if happens_before(schedule, a, b)}
