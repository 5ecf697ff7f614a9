"""What is wrong with a learner's mesh, resharding or count, told from what it returned.

    wrong shape    wrong values    order ignored    wrong order
    out of range   not divided                                        coordinates
    not a partition     other axes differ     transposed              groups
    only sizes     only the first group       only the slowest     one rank      crossings
    held twice     added up     hole not noticed     refused     wrong cut     input changed         reshard
    gather forgotten    one block    one lap    limit of many ranks    bytes    over all ranks    sp saves traffic

What a known mistake would return is computed beside what is right, and compared: the first that fits gives its name.
"""

from functools import lru_cache

import numpy as np

from refimpl.collectives import bounds
from refimpl.course.exercises.finding import Wrong
from refimpl.course.exercises.replicas_verdict import short
from refimpl.layout import Layout
from refimpl.measure.ledger import Ledger
from refimpl.model.config import Config, block_shapes
from refimpl.parallel import block, shards
from refimpl.testing import cut
from refimpl.world.local import run_local

DEFAULT = "tp-cp-dp-pp"


def layout_of(sizes, order, node_size=8):
    """The `Layout` with these sizes."""
    return Layout(**sizes, order=order, node_size=node_size)


def backwards(order):
    """The order from its end."""
    return "-".join(reversed(order.split("-")))


# -- coordinates ------------------------------------------------------------------------------------------------------

def judge_coordinates(sizes, order, places):
    """Raise `Wrong` unless each rank is where `Layout` says."""
    case = f"sizes {words(sizes)}, order {order}: "
    right, other, fixed = (layout_of(sizes, each) for each in (order, backwards(order), DEFAULT))
    for rank, place in enumerate(places):
        if not isinstance(place, dict) or set(place) != set(sizes):
            raise Wrong("wrong shape", "what is returned has the wrong form",
                        f"{case}expected a dict with tp, cp, dp and pp for rank {rank}; it is {short(place)}.")
    expected = [right.coordinates(rank) for rank in range(right.world)]
    mine = [dict(place) for place in places]
    if mine == expected:
        return
    rank = next(rank for rank in range(right.world) if mine[rank] != expected[rank])
    where = f"{case}rank {rank} is at {words(expected[rank])}; you say {words(mine[rank])}."
    undivided = [{axis: rank % size for axis, size in sizes.items()} for rank in range(right.world)]
    for kind, headline, suspect in (
            ("wrong order", "the last axis of the order changes fastest",
             [other.coordinates(r) for r in range(right.world)]),
            ("order ignored", "this is the default order, whatever order is asked for",
             [fixed.coordinates(r) for r in range(right.world)]),
            ("not divided", "every axis is read off the rank itself", undivided)):
        if mine == suspect:
            raise Wrong(kind, headline, where)
    for axis, size in sizes.items():
        if not all(isinstance(place[axis], int | np.integer) and 0 <= place[axis] < size for place in mine):
            raise Wrong("out of range", f"a place along {axis} is none",
                        f"{where} Places along {axis} are 0 to {size - 1}.")
    raise Wrong("wrong values", "ranks are in wrong places", where)


def words(numbers):
    """{"tp": 2, ...} in words, in a fixed order: "tp 2, cp 1"."""
    return ", ".join(f"{axis} {numbers[axis]}" for axis in ("tp", "cp", "dp", "pp"))


# -- groups -----------------------------------------------------------------------------------------------------------

def judge_groups(axis, sizes, order, groups):
    """Raise `Wrong` unless these are the axis's groups."""
    case = f"sizes {words(sizes)}, order {order}, groups along {axis}: "
    layout = layout_of(sizes, order)
    lists = isinstance(groups, list | tuple) and all(isinstance(group, list | tuple | range) for group in groups)
    if not lists or not all(isinstance(rank, int | np.integer) for group in groups for rank in group):
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f"{case}expected a list of lists of ranks; it is {short(groups)}.")
    mine, expected = [[int(rank) for rank in group] for group in groups], layout.groups(axis)
    if mine == expected:
        return
    where = f"{case}expected {short(expected)}; yours are {short(mine)}."
    everybody = sorted(rank for group in mine for rank in group)
    if everybody != list(range(layout.world)):
        odd = next((rank for rank in [*range(layout.world), *everybody] if everybody.count(rank) != 1
                    or rank >= layout.world), 0)
        raise Wrong("not a partition", f"rank {odd} is in {everybody.count(odd)} groups"
                    + ("" if 0 <= odd < layout.world else " and does not exist"), f"{where} Each of the ranks 0 to "
                    f"{layout.world - 1} is in one.")
    if sorted(map(sorted, mine)) == sorted(map(sorted, expected)):
        raise Wrong("wrong order", "the right groups, in the wrong order", where)
    if sorted(mine) == layout_of(sizes, DEFAULT).groups(axis):
        raise Wrong("order ignored", "these are the groups of the default order", where)
    if sorted(map(sorted, mine)) == sorted(sorted(ranks) for ranks in zip(*expected)):
        raise Wrong("transposed", f"in these groups everybody has the same place along {axis}", where)
    for group in mine:
        apart = [other for other in sizes if other != axis
                 and len({layout.coordinates(rank)[other] for rank in group}) > 1]
        if apart:
            raise Wrong("other axes differ", f"the ranks of a group differ along {apart[0]}",
                        f"{where} In {group} they are at "
                        f"{', '.join(str(layout.coordinates(r)[apart[0]]) for r in group)} along {apart[0]}.")
    raise Wrong("wrong values", "these are not the groups", where)


# -- nodes ------------------------------------------------------------------------------------------------------------

def judge_crossing(sizes, order, node_size, axes):
    """Raise `Wrong` unless these are the axes whose groups leave a node."""
    case = f"sizes {words(sizes)}, order {order}, nodes of {node_size}: "
    if not isinstance(axes, list | tuple | set | frozenset) or not set(axes) <= set(sizes):
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f"{case}expected a list of some of tp, cp, dp and pp; it is {short(axes)}.")
    layout, mine = layout_of(sizes, order, node_size), set(axes)
    expected = {axis for axis in sizes if layout.crosses_nodes(axis)}
    if mine == expected:
        return
    odd = next(axis for axis in ("tp", "cp", "dp", "pp") if (axis in mine) != (axis in expected))
    group = next((g for g, n in zip(layout.groups(odd), layout.node_crossings(odd)) if n), layout.groups(odd)[0])
    nodes = sorted({layout.node(rank) for rank in group})
    where = (f"{case}{odd} {'crosses' if odd in expected else 'does not cross'}: its group {group} is on node"
             f"{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}.")
    fixed = layout_of(sizes, DEFAULT, node_size)
    for kind, headline, suspect in (
            ("one rank", "an axis of one rank is said to cross",
             expected | {axis for axis in sizes if sizes[axis] == 1}),
            ("only the first group", "only the first group was looked at",
             {axis for axis in sizes if layout.node_crossings(axis)[0]}),
            ("order ignored", "this is so in the default order", {axis for axis in sizes if fixed.crosses_nodes(axis)}),
            ("only sizes", "this compares sizes with the node's", {axis for axis in sizes if sizes[axis] > node_size}),
            ("only the slowest", "this is the slowest axis, and no other", {order.split("-")[-1]}),
            ("only the slowest", "this is the slowest axis of several ranks, and no other", slowest(sizes, order))):
        if mine == suspect:
            raise Wrong(kind, headline, where)
    raise Wrong("wrong values", f"{odd} is {'missing' if odd in expected else 'there, but stays inside'}", where)


def slowest(sizes, order):
    """The last axis of the order that has more than one rank, as a set; empty where there is none."""
    return set([axis for axis in order.split("-") if sizes[axis] > 1][-1:])


# -- checkpoints ------------------------------------------------------------------------------------------------------

def judge_reshard(size, spans, ranks, case, answer):
    """Raise `Wrong` unless the new shards are right, or a hole was refused. answer: what was returned, and the files"""
    returned, files = answer
    whole, case = np.arange(size) + 100.0, f"{case}: "
    missing = sorted(set(range(size)) - {k for start, stop in spans for k in range(start, stop)})
    if missing and not isinstance(returned, ValueError):
        raise Wrong("hole not noticed", f"element {missing[0]} is in no file, and nothing is said",
                    f"{case}expected a ValueError; returned was {short(returned)}.")
    if missing:
        return
    if isinstance(returned, ValueError):
        raise Wrong("refused", "files that have everything were refused", f'{case}ValueError: "{returned}".')
    if not isinstance(returned, list | tuple) or len(returned) != ranks or not all(
            isinstance(part, np.ndarray) and part.ndim == 1 for part in returned):
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f"{case}expected a list of {ranks} arrays; it is {short(returned)}.")
    b = bounds(size, ranks)
    expected = [whole[b[rank]:b[rank + 1]] for rank in range(ranks)]
    joined = np.concatenate(returned)
    if any(not np.array_equal(part, right) for part, right in zip(returned, expected)):
        rank = next(r for r in range(ranks) if not np.array_equal(returned[r], expected[r]))
        where = f"{case}new rank {rank} has {listed(returned[rank])}, and should have {listed(expected[rank])}."
        if np.array_equal(joined, whole):
            raise Wrong("wrong cut", "everything is there, but cut in other places", where)
        if joined.size > size:
            raise Wrong("held twice", f"{joined.size} elements of {size}: some are there twice", where)
        if joined.size == size and np.array_equal(np.sort(joined), whole):
            raise Wrong("wrong order", "all elements are there, in the order of the files", where)
        if joined.size == size and (joined > whole).any() and (joined % 100 >= 0).all() and joined.max() >= 200:
            raise Wrong("added up", "what several files have was added up", where)
        raise Wrong("wrong values", "the shards are wrong", where)
    if any(not np.array_equal(piece, whole[start:start + piece.size]) for start, piece in files) or any(
            np.shares_memory(part, piece) for part in returned for _, piece in files if part.size and piece.size):
        raise Wrong("input changed", "a shard shares memory with a file's piece, or a piece was changed",
                    f"{case}the next step of training would write into it. Work on a copy.")


def listed(array):
    """An array's numbers, some of them."""
    return short([float(x) for x in array])


# -- what a layer sends -----------------------------------------------------------------------------------------------

@lru_cache
def counted(b, s, h, t, sequence_parallel):
    """(elements sent by rank 0 in forward, in backward), of a layer that runs here."""
    config = Config("gpt2", vocabulary=16, hidden=h, layers=1, heads=8)
    parameters = {name: np.ones(shape) for name, shape in block_shapes(config).items()}
    x, log = np.ones((b, s, h)), Ledger()

    def program(comm):
        mine = shards.shard(parameters, config, comm.rank, t)
        part = cut(x, 1, comm.rank, t) if sequence_parallel else x
        with comm.phase("forward"):
            y, saved = block.forward(part, mine, config, comm, sequence_parallel=sequence_parallel)
        with comm.phase("backward"):
            block.backward(y, saved)

    run_local(program, t, ledger=log)
    return tuple(log.bytes_sent(rank=0, phase=phase) // x.itemsize for phase in ("forward", "backward"))


def judge_elements(b, s, h, t, sequence_parallel, answer):
    """Raise `Wrong` unless these are the two numbers that a ledger counts."""
    case = (f"b {b}, s {s}, h {h}, {t} rank{'s' * (t > 1)}, {'with' if sequence_parallel else 'without'} sequence "
            "parallelism: ")
    numbers = isinstance(answer, list | tuple) and len(answer) == 2 and all(
        isinstance(n, int | float | np.number) and not isinstance(n, bool) for n in answer)
    if not numbers:
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f"{case}expected two numbers, of forward and of backward; it is {short(answer)}.")
    forward, backward = counted(b, s, h, t, sequence_parallel)
    mine = tuple(map(float, answer))
    if mine == (forward, backward):
        return
    where = f"{case}you say {mine[0]:g} forward and {mine[1]:g} backward; counted are {forward} and {backward}."
    plain, n = forward, b * s * h
    for kind, headline, suspect in (
            ("gather forgotten", "backward gathers the inputs once more", (plain, plain)),
            ("sp saves traffic", "sequence parallelism does not make forward cheaper", (plain / 2, backward)),
            ("sp saves traffic" if sequence_parallel else "one lap", "half of what is sent", (plain / 2, plain / 2)),
            ("limit of many ranks", "this is what endless many ranks would send",
             (4 * n, (6 if sequence_parallel else 4) * n)),
            ("over all ranks", "this is what all ranks send together", (t * forward, t * backward)),
            ("bytes", "these are bytes", (2 * forward, 2 * backward)),
            ("bytes", "these are bytes", (8 * forward, 8 * backward)),
            ("one block", "this is half of what is sent", (forward / 2, backward / 2))):
        if mine == suspect:
            raise Wrong(kind, headline, where)
    raise Wrong("wrong values", "the ledger counts something else", where)
