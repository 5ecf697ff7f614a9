"""Wrong meshes, resharded checkpoints and counts, as learners and real codebases write them."""

import itertools

import numpy as np
import pytest
from diagnoses import assert_diagnosed, assert_solution_passes_and_stub_is_not_implemented

from refimpl.collectives import all_gather, all_reduce, bounds
from refimpl.course.exercises.checks import examine
from refimpl.layout import Layout

# coordinates


def place_right(rank, sizes, order):
    return Layout(**sizes, order=order).coordinates(rank)


def place_slowest_first(rank, sizes, order):
    return place_right(rank, sizes, "-".join(reversed(order.split("-"))))


def place_in_the_default_order(rank, sizes, order):
    return place_right(rank, sizes, "tp-cp-dp-pp")


def place_in_the_order_of_the_sizes(rank, sizes, order):
    return place_right(rank, sizes, "-".join(sizes))


def place_without_dividing(rank, sizes, order):
    return {axis: rank % sizes[axis] for axis in order.split("-")}


def place_without_modulo(rank, sizes, order):
    place = {}
    for axis in order.split("-"):
        place[axis] = rank
        rank //= sizes[axis]
    return place


def place_as_a_tuple(rank, sizes, order):
    return tuple(place_right(rank, sizes, order).values())


def place_without_small_axes(rank, sizes, order):
    return {axis: k for axis, k in place_right(rank, sizes, order).items() if sizes[axis] > 1}


# groups

def group_right(axis, sizes, order):
    return Layout(**sizes, order=order).groups(axis)


def group_as_ranges(axis, sizes, order):
    return [tuple(np.array(group)) for group in group_right(axis, sizes, order)]


def group_of_neighbours(axis, sizes, order):
    """Blocks of neighbours, whatever the axis."""
    size, world = sizes[axis], np.prod(list(sizes.values()))
    return [list(range(start, start + size)) for start in range(0, world, size)]


def group_in_the_default_order(axis, sizes, order):
    return group_right(axis, sizes, "tp-cp-dp-pp")


def group_with_the_same_place(axis, sizes, order):
    return [list(ranks) for ranks in zip(*group_right(axis, sizes, order))]


def group_from_every_rank(axis, sizes, order):
    """One group for each rank: many times the same."""
    layout = Layout(**sizes, order=order)
    return [layout.group(axis, rank) for rank in range(layout.world)]


def group_last_first(axis, sizes, order):
    return group_right(axis, sizes, order)[::-1]


def group_in_a_flat_list(axis, sizes, order):
    return [rank for group in group_right(axis, sizes, order) for rank in group]


# nodes

def cross_right(sizes, order, node_size):
    layout = Layout(**sizes, order=order, node_size=node_size)
    return [axis for axis in sizes if layout.crosses_nodes(axis)]


def cross_as_a_set(sizes, order, node_size):
    return set(cross_right(sizes, order, node_size))


def cross_by_the_first_group(sizes, order, node_size):
    layout = Layout(**sizes, order=order, node_size=node_size)
    return [axis for axis in sizes if layout.node_crossings(axis)[0]]


def cross_by_reach(sizes, order, node_size):
    """Right where nodes divide: how far an axis reaches, against the node."""
    found, stride = [], 1
    for axis in order.split("-"):
        stride *= sizes[axis]
        if sizes[axis] > 1 and stride > node_size:
            found.append(axis)
    return found


def cross_by_the_slowest(sizes, order, node_size):
    return [axis for axis in order.split("-") if sizes[axis] > 1][-1:]


def cross_by_the_last_name(sizes, order, node_size):
    return order.split("-")[-1:]


def cross_also_alone(sizes, order, node_size):
    return cross_right(sizes, order, node_size) + [axis for axis in sizes if sizes[axis] == 1]


def cross_by_size(sizes, order, node_size):
    return [axis for axis in sizes if sizes[axis] > node_size]


def cross_in_the_default_order(sizes, order, node_size):
    return cross_right(sizes, "tp-cp-dp-pp", node_size)


def cross_says_how_often(sizes, order, node_size):
    return len(cross_right(sizes, order, node_size))


# files

def put_together(files, size):
    whole, there = np.zeros(size), np.zeros(size, bool)
    for start, piece in files:
        whole[start:start + len(piece)] = piece
        there[start:start + len(piece)] = True
    return whole, there


def shards_of(whole, ranks):
    return [part.copy() for part in np.split(whole, bounds(len(whole), ranks)[1:-1])]


def reshard_right(files, size, ranks):
    whole, there = put_together(files, size)
    if not there.all():
        raise ValueError("there is a hole")
    return shards_of(whole, ranks)


def reshard_in_the_order_of_the_files(files, size, ranks):
    whole = np.concatenate([piece for _, piece in files])
    if len(whole) < size:
        raise ValueError("too few")
    return shards_of(whole, ranks)


def reshard_joined_by_start(files, size, ranks):
    """Sorted, but what is there twice stays twice."""
    whole = np.concatenate([piece for _, piece in sorted(files, key=lambda file: file[0])])
    if len(whole) < size:
        raise ValueError("too few")
    return shards_of(whole, ranks)


def reshard_adds_up(files, size, ranks):
    whole, there = np.zeros(size), put_together(files, size)[1]
    for start, piece in files:
        whole[start:start + len(piece)] += piece
    if not there.all():
        raise ValueError("there is a hole")
    return shards_of(whole, ranks)


def reshard_with_holes(files, size, ranks):
    return shards_of(put_together(files, size)[0], ranks)


def reshard_counts_elements(files, size, ranks):
    """Refuses what is there more than once, as if it were wrong."""
    if sum(len(piece) for _, piece in files) != size:
        raise ValueError("not the right number of elements")
    return reshard_right(files, size, ranks)


def reshard_cut_as_numpy_does(files, size, ranks):
    whole, there = put_together(files, size)
    if not there.all():
        raise ValueError("there is a hole")
    return np.array_split(whole, ranks)


def reshard_whole(files, size, ranks):
    return np.concatenate(reshard_right(files, size, ranks))


def reshard_hands_pieces_on(files, size, ranks):
    """Right numbers, but a shard that is a piece is that piece itself."""
    found = reshard_right(files, size, ranks)
    for k, part in enumerate(found):
        for _, piece in files:
            if len(piece) == len(part) > 0 and np.array_equal(piece, part):
                found[k] = piece
    return found


# gradients

def finish_right(norm, positions, row_bias, column_weight, comm):
    return all_reduce(norm, comm), all_reduce(positions, comm), row_bias, column_weight


def finish_in_one_go(norm, positions, row_bias, column_weight, comm):
    flat = all_reduce(np.concatenate([norm, positions.ravel()]), comm, algorithm="ring")
    return flat[:norm.size], flat[norm.size:].reshape(positions.shape), row_bias, column_weight


def finish_nothing(norm, positions, row_bias, column_weight, comm):
    return norm, positions, row_bias, column_weight


def finish_norm_only(norm, positions, row_bias, column_weight, comm):
    return all_reduce(norm, comm), positions, row_bias, column_weight


def finish_with_the_mean(norm, positions, row_bias, column_weight, comm):
    norm, positions, *others = finish_right(norm, positions, row_bias, column_weight, comm)
    return norm / comm.size, positions / comm.size, *others


def finish_the_bias_too(norm, positions, row_bias, column_weight, comm):
    norm, positions, row_bias, column_weight = finish_right(norm, positions, row_bias, column_weight, comm)
    return norm, positions, all_reduce(row_bias, comm), column_weight


def finish_everything(norm, positions, row_bias, column_weight, comm):
    """All four summed; where columns are no multiple of the ranks this does not even run."""
    bias = row_bias
    return *finish_right(norm, positions, row_bias, column_weight, comm)[:2], bias, all_reduce(column_weight, comm)


def finish_and_gathers(norm, positions, row_bias, column_weight, comm):
    """Right numbers; the weight goes around and is cut again."""
    columns = column_weight.shape[1]
    whole = all_gather(column_weight, comm, axis=1)
    b = bounds(whole.shape[1], comm.size)
    assert columns == b[comm.rank + 1] - b[comm.rank]
    return *finish_right(norm, positions, row_bias, column_weight, comm)[:3], whole[:, b[comm.rank]:b[comm.rank + 1]]


def finish_in_place(norm, positions, row_bias, column_weight, comm):
    norm[...] = all_reduce(norm, comm)
    return norm, all_reduce(positions, comm), row_bias, column_weight


def finish_on_one_rank(norm, positions, row_bias, column_weight, comm):
    return finish_right(norm, positions, row_bias, column_weight, comm) if comm.rank else (
        norm, positions, row_bias, column_weight)


# counts

def count_right(b, s, h, t, sequence_parallel):
    once = b * s * h * (t - 1) / t
    return 4 * once, (6 if sequence_parallel else 4) * once


def count_without_the_gather(b, s, h, t, sequence_parallel):
    return count_right(b, s, h, t, False)


def count_sp_as_half(b, s, h, t, sequence_parallel):
    forward, backward = count_right(b, s, h, t, False)
    return (forward / 2, backward / 2) if sequence_parallel else (forward, backward)


def count_forward_as_half(b, s, h, t, sequence_parallel):
    forward, backward = count_right(b, s, h, t, sequence_parallel)
    return forward / (2 if sequence_parallel else 1), backward


def count_for_endless_ranks(b, s, h, t, sequence_parallel):
    return 4 * b * s * h, (6 if sequence_parallel else 4) * b * s * h


def count_bytes(b, s, h, t, sequence_parallel):
    return tuple(2 * n for n in count_right(b, s, h, t, sequence_parallel))


def count_one_block(b, s, h, t, sequence_parallel):
    return tuple(n / 2 for n in count_right(b, s, h, t, sequence_parallel))


def count_all_reduces_of_one_lap(b, s, h, t, sequence_parallel):
    forward, backward = count_right(b, s, h, t, sequence_parallel)
    return (forward, backward) if sequence_parallel else (forward / 2, backward / 2)


def count_all_ranks(b, s, h, t, sequence_parallel):
    return tuple(t * n for n in count_right(b, s, h, t, sequence_parallel))


def count_together(b, s, h, t, sequence_parallel):
    return sum(count_right(b, s, h, t, sequence_parallel))


WRONG = [
    (place_right, "passed", []),
    (place_slowest_first, "wrong order", ["the last axis of the order changes fastest", "rank 1 is at tp 1, cp 0"]),
    (place_in_the_default_order, "order ignored", ["order tp-cp-pp-dp", "whatever order is asked for"]),
    (place_in_the_order_of_the_sizes, "wrong values", ["ranks are in wrong places"]),
    (place_without_dividing, "not divided", ["read off the rank itself", "divide by its base"]),
    (place_without_modulo, "out of range", ["Places along tp are 0 to 1"]),
    (place_as_a_tuple, "wrong shape", ["expected a dict with tp, cp, dp and pp"]),
    (place_without_small_axes, "wrong shape", ["expected a dict with tp, cp, dp and pp"]),
    (group_right, "passed", []), (group_as_ranges, "passed", []),
    (group_of_neighbours, "other axes differ", ["differ along tp", "at 0, 1 along tp", "the product of the faster"]),
    (group_in_the_default_order, "order ignored", ["order tp-cp-pp-dp"]),
    (group_with_the_same_place, "transposed", ["the same place along tp"]),
    (group_from_every_rank, "not a partition", ["rank 0 is in 2 groups"]),
    (group_last_first, "wrong order", ["the right groups, in the wrong order"]),
    (group_in_a_flat_list, "wrong shape", ["expected a list of lists"]),
    (cross_right, "passed", []), (cross_as_a_set, "passed", []),
    (cross_by_the_first_group, "only the first group", ["[6, 7, 8] is on nodes 0, 1"]),
    (cross_by_reach, "only the first group", ["[6, 7, 8] is on nodes 0, 1"]),
    (cross_by_the_slowest, "only the slowest", ["of several ranks", "tp crosses", "look at the groups of each"]),
    (cross_by_the_last_name, "only the slowest", ["tp crosses"]),
    (cross_also_alone, "one rank", ["cp does not cross", "sends nothing"]),
    (cross_by_size, "only sizes", ["pp crosses: its group [0, 4] is on nodes 0, 1"]),
    (cross_in_the_default_order, "order ignored", ["order tp-cp-pp-dp, nodes of 8"]),
    (cross_says_how_often, "wrong shape", ["expected a list of some of"]),
    (reshard_right, "passed", []),
    (reshard_in_the_order_of_the_files, "wrong order", ["6..9, 0..2, 3..5", "in the order of the files"]),
    (reshard_joined_by_start, "held twice", ["20 elements of 10"]),
    (reshard_adds_up, "added up", ["what several files have was added up"]),
    (reshard_with_holes, "hole not noticed", ["element 3 is in no file", "raise a ValueError"]),
    (reshard_counts_elements, "refused", ["0..4, 0..4, 5..9, 5..9", "not the right number of elements"]),
    (reshard_cut_as_numpy_does, "wrong cut", ["new rank 0 has", "bounds(size, ranks)"]),
    (reshard_whole, "wrong shape", ["expected a list of 2 arrays"]),
    (reshard_hands_pieces_on, "input changed", ["shares memory"]),
    (finish_right, "passed", []), (finish_in_one_go, "passed", []),
    (finish_nothing, "missing all-reduce", ["norm", "over the rank's own positions"]),
    (finish_norm_only, "missing all-reduce", ["positions", "zeros elsewhere"]),
    (finish_with_the_mean, "off by a factor", ["2 times too small", "summed, not averaged"]),
    (finish_the_bias_too, "off by a factor", ["2 times too large", "whole on every rank already"]),
    (finish_everything, "wrong addends", ["other ranks' columns were added"]),
    (finish_and_gathers, "wrong traffic", ["summing two of the four gradients"]),
    (finish_in_place, "input changed", ["norm was changed"]),
    (finish_on_one_rank, "deadlock", ["rank 0 has returned"]),
    (count_right, "passed", []),
    (count_without_the_gather, "gather forgotten", ["counted are 96 and 144", "has s/t positions"]),
    (count_sp_as_half, "sp saves traffic", ["half of what is sent"]),
    (count_forward_as_half, "sp saves traffic", ["does not make forward cheaper"]),
    (count_for_endless_ranks, "limit of many ranks", ["(t-1)/t"]),
    (count_bytes, "bytes", ["Elements are asked for"]),
    (count_one_block, "one block", ["A layer has two blocks"]),
    (count_all_reduces_of_one_lap, "one lap", ["without sequence parallelism", "two laps"]),
    (count_all_ranks, "over all ranks", ["one rank sends"]),
    (count_together, "wrong shape", ["expected two numbers"]),
]
EXERCISE = {"place": "rank_to_coordinates", "group": "axis_groups", "cross": "crossing_axes", "reshard": "reshard",
            "finish": "finish_gradients", "count": "layer_elements"}


@pytest.mark.parametrize("function, diagnosis, says", WRONG, ids=[row[0].__name__ for row in WRONG])
def test_each_version_gets_its_diagnosis(function, diagnosis, says):
    verdict = examine(function, EXERCISE[function.__name__.partition("_")[0]])
    assert_diagnosed(verdict, diagnosis, says)


@pytest.mark.parametrize("name", EXERCISE.values())
def test_the_solution_passes_and_the_stub_is_not_implemented(name):
    assert_solution_passes_and_stub_is_not_implemented(name)


@pytest.mark.parametrize("name", EXERCISE.values())
def test_every_advice_can_be_given(name):
    """A diagnosis with advice is one that some version above gets, so that none is there in vain."""
    from refimpl.course.exercises.catalogue import find

    got = {diagnosis for function, diagnosis, _ in WRONG if EXERCISE[function.__name__.partition("_")[0]] == name}
    assert set(find(name).advice) <= got, set(find(name).advice) - got


def test_what_the_check_counts_is_the_formula_of_the_papers():
    from refimpl.course.exercises.composing_verdict import counted

    for b, t, sequence_parallel in itertools.product((1, 3), (1, 2, 4), (False, True)):
        once = b * 8 * 16 * (t - 1) // t
        assert counted(b, 8, 16, t, sequence_parallel) == (4 * once, (6 if sequence_parallel else 4) * once)
