"""Wrong plans, ZeRO-1 steps and norms, as learners and real code have them: each gets the diagnosis meant for it."""

import numpy as np
import pytest
from diagnoses import assert_diagnosed, assert_solution_passes_and_stub_is_not_implemented

from refimpl.collectives import all_gather, all_reduce, bounds, reduce_scatter
from refimpl.course.exercises.checks import examine
from refimpl.course.exercises.replicas_cases import ADAM
from refimpl.model.adam import Moments, update
from refimpl.parallel import data
from refimpl.parallel.units import Unit

# buckets


def plan_right(sizes, cap):
    return data.plan(sizes, cap)


def plan_as_tuples(sizes, cap):
    return tuple(map(tuple, data.plan(sizes, cap)))


def plan_in_the_order_of_forward(sizes, cap):
    return data.plan(dict(reversed(sizes.items())), cap)


def plan_smallest_first(sizes, cap):
    return data.plan(dict(sorted(sizes.items(), key=lambda pair: -pair[1])), cap)


def plan_closes_a_bucket_when_it_is_full(sizes, cap):
    """As PyTorch does: a bucket may hold more than the cap."""
    buckets, filled = [[]], 0
    for name, size in reversed(sizes.items()):
        if filled >= cap:
            buckets.append([])
            filled = 0
        buckets[-1].append(name)
        filled += size
    return [bucket for bucket in buckets if bucket]


def plan_one_each(sizes, cap):
    return [[name] for name in reversed(sizes)]


def plan_with_an_empty_bucket(sizes, cap):
    return [*data.plan(sizes, cap), []]


def plan_forgets_the_last_bucket(sizes, cap):
    return data.plan(sizes, cap)[:-1]


def plan_without_what_is_too_large(sizes, cap):
    return data.plan({name: size for name, size in sizes.items() if size <= cap}, cap)


def plan_as_one_list(sizes, cap):
    return list(reversed(sizes))


# a step of ZeRO-1

def adam_of(gradient, parameter, m, v, step):
    parameter, m, v = parameter.copy(), m.copy(), v.copy()
    update(parameter, gradient, Moments(m, v), step, ADAM)
    return parameter, m, v


def own(x, comm):
    b = bounds(len(x), comm.size)
    return x[b[comm.rank]:b[comm.rank + 1]]


def step_right(gradient, parameter, m, v, step, comm):
    mine, m, v = adam_of(reduce_scatter(gradient, comm), own(parameter, comm), m, v, step)
    return all_gather(mine, comm), m, v


def step_without_sum(gradient, parameter, m, v, step, comm):
    mine, m, v = adam_of(own(gradient, comm), own(parameter, comm), m, v, step)
    return all_gather(mine, comm), m, v


def step_with_the_mean(gradient, parameter, m, v, step, comm):
    return step_right(gradient / comm.size, parameter, m, v, step, comm)


def step_without_gather(gradient, parameter, m, v, step, comm):
    mine, m, v = adam_of(reduce_scatter(gradient, comm), own(parameter, comm), m, v, step)
    parameter = parameter.copy()
    own(parameter, comm)[...] = mine
    return parameter, m, v


def step_returns_its_shard(gradient, parameter, m, v, step, comm):
    return adam_of(reduce_scatter(gradient, comm), own(parameter, comm), m, v, step)


def step_by_all_reduce(gradient, parameter, m, v, step, comm):
    """Right numbers, half as many bytes again."""
    mine, m, v = adam_of(own(all_reduce(gradient, comm), comm), own(parameter, comm), m, v, step)
    return all_gather(mine, comm), m, v


def step_gathers_the_moments(gradient, parameter, m, v, step, comm):
    mine, m, v = step_returns_its_shard(gradient, parameter, m, v, step, comm)
    return all_gather(mine, comm), own(all_gather(m, comm), comm), own(all_gather(v, comm), comm)


def step_in_place(gradient, parameter, m, v, step, comm):
    mine = own(parameter, comm)
    update(mine, reduce_scatter(gradient, comm), Moments(m, v), step, ADAM)
    return all_gather(mine, comm), m, v


def step_counts_from_one(gradient, parameter, m, v, step, comm):
    return step_right(gradient, parameter, m, v, 1, comm)


def step_on_one_rank(gradient, parameter, m, v, step, comm):
    return step_right(gradient, parameter, m, v, step, comm) if comm.rank else (parameter, m, v)


# a unit

def unit_right(sizes, ranks, alignment):
    unit = Unit({name: (n,) for name, n in sizes.items()}, ranks, alignment)
    return [[tuple(piece[:3]) for piece in unit.pieces(rank)] for rank in range(ranks)]


def cut_at(sizes, cuts):
    """Pieces of the flat unit between these cuts."""
    held = []
    for begin, end in zip(cuts, cuts[1:]):
        pieces, first = [], 0
        for name, n in sizes.items():
            start, stop = max(begin - first, 0), min(end - first, n)
            pieces += [(name, start, stop)] * (start < stop)
            first += n
        held.append(pieces)
    return held


def unit_without_padding(sizes, ranks, alignment):
    return cut_at(sizes, bounds(sum(sizes.values()), ranks))


def unit_padded_for_the_ranks_alone(sizes, ranks, alignment):
    return unit_right(sizes, ranks, ranks)


def unit_with_padding_in_the_last_parameter(sizes, ranks, alignment):
    size, last = sum(sizes.values()), list(sizes)[-1]
    return unit_right({**sizes, last: sizes[last] + -size % alignment}, ranks, alignment)


def unit_rounded_down(sizes, ranks, alignment):
    size = sum(sizes.values())
    shard = max(size // ranks, 1)
    return cut_at(sizes, [shard * rank for rank in range(ranks + 1)])


def unit_parameters_whole(sizes, ranks, alignment):
    """Each parameter on one rank, as in DeepSpeed's first partition."""
    held = [[] for _ in range(ranks)]
    for k, (name, n) in enumerate(sizes.items()):
        held[k % ranks].append((name, 0, n))
    return held


def unit_on_every_rank(sizes, ranks, alignment):
    return [[(name, 0, n) for name, n in sizes.items()] for _ in range(ranks)]


def unit_in_places_of_the_unit(sizes, ranks, alignment):
    """start and stop count in the flat unit."""
    begins = dict(zip(sizes, np.cumsum([0, *sizes.values()])))
    return [[(name, start + begins[name], stop + begins[name]) for name, start, stop in pieces]
            for pieces in unit_right(sizes, ranks, alignment)]


def unit_other_way_round(sizes, ranks, alignment):
    rows = unit_right(dict(reversed(sizes.items())), ranks, alignment)
    return [row[::-1] for row in rows]


def unit_as_lengths(sizes, ranks, alignment):
    return [sum(stop - start for _, start, stop in pieces) for pieces in unit_right(sizes, ranks, alignment)]


def unit_with_empty_pieces(sizes, ranks, alignment):
    return [pieces or [(next(iter(sizes)), 0, 0)] for pieces in unit_right(sizes, ranks, alignment)]


# the order of ZeRO-3

def uses_of(units):
    return [("forward", u) for u in range(units)] + [("backward", u) for u in reversed(range(units))]


def order_of(units, ahead=1, free=True, reduce=True, again=True):
    """What the solution does, with things to get wrong."""
    uses, order, here = uses_of(units), [], set()
    for k, (what, u) in enumerate(uses):
        for _, wanted in uses[k:k + 1 + ahead]:
            if wanted not in here:
                order.append(f"gather {wanted}")
                here.add(wanted)
        order.append(f"{what} {u}")
        if what == "backward" and reduce:
            order.append(f"reduce {u}")
        if free and u not in [following for _, following in uses[k + 1:k + 1 + ahead]]:
            order.append(f"free {u}")
            here.discard(u)
    return order


def order_right(units):
    return order_of(units)


def order_reduces_at_the_end(units):
    """Right, though nothing of it hides behind backward; the buffers are another matter."""
    order = order_of(units, reduce=False)
    return order + [f"reduce {u}" for u in reversed(range(units))]


def order_one_at_a_time(units):
    return [word for what, u in uses_of(units)
            for word in (f"gather {u}", f"{what} {u}", *([f"reduce {u}"] * (what == "backward")), f"free {u}")]


def order_everything_first(units):
    words = [f"{what} {u}" for what, u in uses_of(units)]
    return [f"gather {u}" for u in range(units)] + words + [f"reduce {u}" for u in range(units)]


def order_two_ahead(units):
    return order_of(units, ahead=2)


def order_never_gathers(units):
    return [f"{what} {u}" for what, u in uses_of(units)]


def order_not_again_for_backward(units):
    """Frees in forward, and takes it that backward has the parameters."""
    seen, order = set(), []
    for word in order_of(units):
        if word.startswith("gather") and word in seen:
            continue
        seen.add(word)
        order.append(word)
    return order


def order_frees_before_use(units):
    return [f"gather {units - 1}", f"free {units - 1}", *order_of(units)] if units == 1 else [
        word for word in [f"free {units - 1}", *order_of(units)]]


def order_keeps_the_first(units):
    return order_of(units)[:-1]


def order_gathers_twice(units):
    return ["gather 0", "free 0", *order_of(units)]


def order_gathers_what_is_here(units):
    return ["gather 0", *order_of(units)]


def order_forgets_to_reduce(units):
    return order_of(units, reduce=False)


def order_reduces_too_early(units):
    return ["reduce 0", *order_of(units)]


def order_backward_like_forward(units):
    return [*order_of(units)[:1], *(f"forward {u}" for u in range(units)), *(f"backward {u}" for u in range(units))]


def order_of_numbers(units):
    return [0, 1, 2]


def order_in_other_words(units):
    return [f"fetch {u}" for u in range(units)]


# the norm

def norm_of(x):
    return np.sqrt((x**2).sum())


def clipped(sharded, replicated, most, norm):
    factor = most / norm if norm > most else 1.0
    return sharded * factor, replicated * factor


def clip_right(sharded, replicated, most, comm):
    norm = np.sqrt(all_reduce((sharded**2).sum(), comm) + (replicated**2).sum())
    return clipped(sharded, replicated, most, norm)


def clip_counts_replicas_on_rank_0(sharded, replicated, most, comm):
    """As Megatron does."""
    mine = (sharded**2).sum() + (replicated**2).sum() * (comm.rank == 0)
    return clipped(sharded, replicated, most, np.sqrt(all_reduce(mine, comm)))


def clip_counts_replicas_everywhere(sharded, replicated, most, comm):
    return clipped(sharded, replicated, most,
                   np.sqrt(all_reduce((sharded**2).sum() + (replicated**2).sum(), comm)))


def clip_by_its_own_norm(sharded, replicated, most, comm):
    return clipped(sharded, replicated, most, np.sqrt((sharded**2).sum() + (replicated**2).sum()))


def clip_without_replicas(sharded, replicated, most, comm):
    return clipped(sharded, replicated, most, np.sqrt(all_reduce((sharded**2).sum(), comm)))


def clip_adds_norms(sharded, replicated, most, comm):
    return clipped(sharded, replicated, most, all_reduce(norm_of(sharded), comm) + norm_of(replicated))


def clip_always(sharded, replicated, most, comm):
    norm = np.sqrt(all_reduce((sharded**2).sum(), comm) + (replicated**2).sum())
    with np.errstate(all="ignore"):
        return sharded * (most / norm), replicated * (most / norm)


def clip_at_most_one(sharded, replicated, most, comm):
    """As written, without a look at a norm of 0."""
    norm = np.sqrt(all_reduce((sharded**2).sum(), comm) + (replicated**2).sum())
    with np.errstate(all="ignore"):
        factor = np.minimum(1.0, most / norm) if norm else np.nan
    return sharded * factor, replicated * factor


def clip_gathers_everything(sharded, replicated, most, comm):
    whole = all_gather(sharded, comm)
    return clipped(sharded, replicated, most, np.sqrt((whole**2).sum() + (replicated**2).sum()))


def clip_in_place(sharded, replicated, most, comm):
    for x, clean in zip((sharded, replicated), clip_right(sharded, replicated, most, comm)):
        x[...] = clean
    return sharded, replicated


def clip_shards_only(sharded, replicated, most, comm):
    return clip_right(sharded, replicated, most, comm)[0], replicated


WRONG = [
    (plan_right, "passed", []), (plan_as_tuples, "passed", []),
    (plan_in_the_order_of_forward, "wrong order", ["in the order of forward", "backward finishes head first"]),
    (plan_smallest_first, "wrong order", ["not in the order of backward"]),
    (plan_closes_a_bucket_when_it_is_full, "over the cap", ["bucket 0", "10 elements", "before you put it in"]),
    (plan_one_each, "too many buckets", ["4 buckets where 3 would do"]),
    (plan_with_an_empty_bucket, "too many buckets", ["4 buckets where 3 would do", "One of yours is empty."]),
    (plan_forgets_the_last_bucket, "gradients missing", ["embed is in 0 buckets", "the end of your loop"]),
    (plan_without_what_is_too_large, "gradients missing", ["cap 1", "w1 is in 0 buckets"]),
    (plan_as_one_list, "wrong shape", ["expected lists of names"]),
    (step_right, "passed", []),
    (step_without_sum, "missing all-reduce", ["with the gradient of its own rank alone", "with reduce_scatter"]),
    (step_with_the_mean, "off by a factor", ["2 times too small a gradient", "with the mean"]),
    (step_without_gather, "missing all-gather", ["only the rank's own shard is new", "all_gather(mine, comm)"]),
    (step_returns_its_shard, "wrong shape", ["parameter", "has shape (2,), expected (4,)", "an all-gather is missing"]),
    (step_by_all_reduce, "wrong traffic", ["values are right", "one all-reduce sends 8 over all ranks"]),
    (step_gathers_the_moments, "wrong traffic", ["one all-reduce sends 8 over all ranks"]),
    (step_in_place, "input changed", ["parameter was changed", "give it copies"]),
    (step_counts_from_one, "wrong values", ["in its first step"]),
    (step_on_one_rank, "deadlock", ["rank 0 has returned"]),
    (unit_right, "passed", []),
    (unit_without_padding, "padding", ["cut as it is, without padding", "padded to 16, 4 on each rank"]),
    (unit_padded_for_the_ranks_alone, "padding", ["w 57, 2 ranks, alignment 4", "padded to a multiple of 2"]),
    (unit_with_padding_in_the_last_parameter, "padding", ["padding counts as a parameter", "rank 3 has [('v', 3, 7)]"]),
    (unit_rounded_down, "elements missing", ["element 3 of v is on 0 ranks"]),
    (unit_parameters_whole, "padding", ["not of the length of the padded unit"]),
    (unit_on_every_rank, "held twice", ["element 0 of w is on 4 ranks"]),
    (unit_in_places_of_the_unit, "padding", ["padding counts as a parameter"]),
    (unit_other_way_round, "wrong order", ["not the right ones"]),
    (unit_as_lengths, "wrong shape", ["expected 4 lists of (name, start, stop)"]),
    (unit_with_empty_pieces, "wrong shape", ["8 ranks", "a piece has elements"]),
    (order_right, "passed", []), (order_reduces_at_the_end, "passed", []),
    (order_one_at_a_time, "not prefetched", ["forward 1 comes next", "the network rests now"]),
    (order_everything_first, "too much kept", ["3 units are whole at once", "now [0, 1, 2] are"]),
    (order_two_ahead, "too much kept", ["3 units are whole at once"]),
    (order_never_gathers, "used before gathered", ["unit 0 is used, but is not here"]),
    (order_not_again_for_backward, "not prefetched", ["while backward 2 computes", "backward 1 comes next"]),
    (order_frees_before_use, "wrong actions", ["unit 2 is freed, but is not here"]),
    (order_keeps_the_first, "never freed", ["1 unit is whole when the step ends", "[0] would stay"]),
    (order_gathers_twice, "wrong traffic", ["unit 0 is gathered 3 times"]),
    (order_gathers_what_is_here, "wrong traffic", ["gathered although it is here"]),
    (order_forgets_to_reduce, "not reduced", ["unit 0 is summed 0 times"]),
    (order_reduces_too_early, "wrong order", ["before it is there", "backward 0 comes later"]),
    (order_backward_like_forward, "wrong order", ["not computed in their order"]),
    (order_of_numbers, "wrong actions", ["0 is no action"]),
    (order_in_other_words, "wrong actions", ["'fetch 0' is no action", "gather, forward"]),
    (clip_right, "passed", []), (clip_counts_replicas_on_rank_0, "passed", []),
    (clip_counts_replicas_everywhere, "wrong addends", ["counts 2 times in the norm", "those of replicas once"]),
    (clip_by_its_own_norm, "missing all-reduce", ["the norm of what it has itself"]),
    (clip_without_replicas, "wrong addends", ["does not count in the norm"]),
    (clip_adds_norms, "wrong addends", ["squares that add up"]),
    (clip_always, "off by a factor", ["most 1000", "never above 1"]),
    (clip_at_most_one, "not a number", ["not finite", "gradients may be 0"]),
    (clip_gathers_everything, "wrong traffic", ["4 ranks", "one all-reduce sends 6 over all ranks", "one number"]),
    (clip_in_place, "input changed", ["sharded was changed"]),
    (clip_shards_only, "off by a factor", ["replicated of rank 0", "13 times what it should be"]),
]
EXERCISE = {"plan": "bucket_plan", "step": "zero_1_step", "unit": "unit_partition", "order": "zero_3_order",
            "clip": "clip_norm"}


@pytest.mark.parametrize("function, diagnosis, says", WRONG, ids=[row[0].__name__ for row in WRONG])
def test_each_version_gets_its_diagnosis(function, diagnosis, says):
    verdict = examine(function, EXERCISE[function.__name__.partition("_")[0]])
    assert_diagnosed(verdict, diagnosis, says)


@pytest.mark.parametrize("name", EXERCISE.values())
def test_the_solution_passes_and_the_stub_is_not_implemented(name):
    assert_solution_passes_and_stub_is_not_implemented(name)
