"""What is wrong with a learner's plan, told from what it would do: buckets, shards of a unit, ZeRO-3's order.

    wrong shape          gradients missing    wrong order       over the cap       too many buckets
    elements missing     held twice           padding           wrong values
    wrong actions        used before gathered                   too much kept      never freed
    not prefetched       not reduced          wrong traffic

A plan of one's own is right if it does what was asked: it is run here, not compared word by word.
"""

from refimpl.collectives import bounds
from refimpl.course.exercises.finding import Wrong
from refimpl.parallel.data import plan
from refimpl.parallel.units import Unit

# -- buckets ----------------------------------------------------------------------------------------------------------


def judge_buckets(sizes, cap, buckets):
    """Raise `Wrong` unless these are the buckets that `data.plan` makes."""
    case = f"sizes {sizes}, cap {cap}: "
    lists = isinstance(buckets, list | tuple) and all(isinstance(names, list | tuple) for names in buckets)
    if not lists or not all(isinstance(name, str) for names in buckets for name in names):
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f"{case}expected lists of names, such as [['head'], ['block 1']]; it is {short(buckets)}.")
    names = [name for bucket in buckets for name in bucket]
    if sorted(names) != sorted(sizes):
        odd = [f"{name} is in {names.count(name)} buckets" for name in {**sizes, **dict.fromkeys(names)}
               if names.count(name) != (name in sizes)]
        raise Wrong("gradients missing", "not every gradient is in one bucket", f"{case}{odd[0]}.")
    if names != list(reversed(sizes)):
        forward = names == list(sizes)
        raise Wrong("wrong order", "the gradients are in the order of forward" if forward
                    else "the gradients are not in the order of backward",
                    f"{case}the first bucket has {buckets[0]}; backward finishes {next(reversed(sizes))} first.")
    for k, bucket in enumerate(buckets):
        filled = sum(sizes[name] for name in bucket)
        if filled > cap and len(bucket) > 1:
            raise Wrong("over the cap", "a bucket holds more than it may",
                        f"{case}bucket {k}, {list(bucket)}, has {filled} elements.")
    if [list(bucket) for bucket in buckets] != (best := plan(sizes, cap)):
        raise Wrong("too many buckets", f"{len(buckets)} buckets where {len(best)} would do",
                    f"{case}yours are {short(buckets)}; {best} would do."
                    + " One of yours is empty." * any(not bucket for bucket in buckets))


def short(thing):
    """What somebody returned, not too long."""
    words = repr(thing)
    return words if len(words) < 90 else f"{words[:85]} ..."


# -- units ------------------------------------------------------------------------------------------------------------

def judge_partition(sizes, ranks, alignment, held):
    """Raise `Wrong` unless each rank has the pieces that `Unit` gives it."""
    case = f"{words_of(sizes)}, {ranks} rank{'s' * (ranks > 1)}, alignment {alignment}: "
    unit = Unit({name: (n,) for name, n in sizes.items()}, ranks, alignment)
    expected = [[piece[:3] for piece in unit.pieces(rank)] for rank in range(ranks)]
    try:
        mine = [[(str(name), int(start), int(stop)) for name, start, stop in pieces] for pieces in held]
    except (TypeError, ValueError):
        mine = None
    if mine is None or len(mine) != ranks:
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f"{case}expected {ranks} lists of (name, start, stop), one for each rank; it is {short(held)}.")
    if mine == expected:
        return
    rank = next(rank for rank in range(ranks) if mine[rank] != expected[rank])
    where = f"{case}rank {rank} has {short(mine[rank])}, and should have {short(expected[rank])}."
    pieces = [piece for row in mine for piece in row]
    if any(name not in sizes or start >= stop for name, start, stop in pieces):
        raise Wrong("wrong shape", "a piece is none", f"{where} A piece has elements, of a parameter that there is.")
    if any(stop > sizes[name] for name, _, stop in pieces):
        raise Wrong("padding", "padding counts as a parameter", where)
    count = {name: covered(name, pieces, sizes[name]) for name in sizes}
    for name, times in count.items():
        if min(times) != 1 or max(times) != 1:
            kind = "held twice" if max(times) > 1 else "elements missing"
            k = times.index(max(times) if kind == "held twice" else 0)
            raise Wrong(kind, f"element {k} of {name} is on {times[k]} ranks", where)
    lengths, size = [sum(stop - start for _, start, stop in row) for row in mine], sum(sizes.values())
    if lengths != [unit.held(rank) for rank in range(ranks)]:
        cuts = bounds(size, ranks)
        plain = [stop - start for start, stop in zip(cuts, cuts[1:])]
        aligned = [Unit({"all": (size,)}, ranks).held(r) for r in range(ranks)]
        cause = (" This is the unit cut as it is, without padding." if lengths == plain else
                 f" This is the unit padded to a multiple of {ranks}." if lengths == aligned else "")
        raise Wrong("padding", "the shards are not of the length of the padded unit", where + cause,
                    f"{size} elements are padded to {unit.padded}, {unit.shard} on each rank.")
    raise Wrong("wrong order", "the right number of elements, but not the right ones", where)


def covered(name, pieces, n):
    """How many pieces each element of a parameter is in: a list."""
    times = [0] * n
    for other, start, stop in pieces:
        if other == name:
            for k in range(max(start, 0), stop):
                times[k] += 1
    return times


def words_of(sizes):
    """Sizes in words: "w 6, b 3"."""
    return ", ".join(f"{name} {n}" for name, n in sizes.items())


# -- the order of ZeRO-3 ----------------------------------------------------------------------------------------------

ACTIONS = ("gather", "forward", "backward", "reduce", "free")


def judge_order(units, order):
    """Raise `Wrong` unless a step in this order computes the right things, in as little memory as asked."""
    case = f"{units} unit{'s' * (units > 1)}: "
    actions = [parsed(word, units, case) for word in listed(order, case)]
    uses = [("forward", u) for u in range(units)] + [("backward", u) for u in reversed(range(units))]
    if [action for action in actions if action[0] in ("forward", "backward")] != uses:
        raise Wrong("wrong order", "the units are not computed in their order",
                    f"{case}expected {', '.join(f'{what} {u}' for what, u in uses)}, with other things between.")
    walk(actions, uses, units, case)
    for u in range(units):
        gathered, reduced = actions.count(("gather", u)), actions.count(("reduce", u))
        if reduced != 1:
            raise Wrong("not reduced", f"the gradient of unit {u} is summed {reduced} times", f"{case}once is right.")
        if gathered > 2:
            raise Wrong("wrong traffic", f"unit {u} is gathered {gathered} times", f"{case}twice is enough.")


def listed(order, case):
    """The order as a list."""
    if not isinstance(order, list | tuple):
        raise Wrong("wrong shape", "what is returned has the wrong form",
                    f'{case}expected a list such as ["gather 0", "forward 0"]; it is {short(order)}.')
    return order


def parsed(word, units, case):
    """("gather", 0) of "gather 0"."""
    what, _, number = word.partition(" ") if isinstance(word, str) else ("", "", "")
    if what not in ACTIONS or not number.isdigit() or int(number) >= units:
        raise Wrong("wrong actions", f"{word!r} is no action",
                    f"{case}expected {', '.join(ACTIONS)} and the number of a unit, 0 to {units - 1}.")
    return what, int(number)


def walk(actions, uses, units, case):
    """Follow the order with a rank's memory in mind."""
    here, done, left = set(), set(), list(uses)
    for number, (what, u) in enumerate(actions):
        at = f"{case}action {number}, {what} {u}: "
        if what == "gather":
            if u in here:
                raise Wrong("wrong traffic", f"unit {u} is gathered although it is here", f"{at}nothing has freed it.")
            here.add(u)
            if len(here) > 2:
                raise Wrong("too much kept", f"{len(here)} units are whole at once", f"{at}now {sorted(here)} are.")
        elif what == "free":
            if u not in here:
                raise Wrong("wrong actions", f"unit {u} is freed, but is not here", f"{at}it was not gathered before.")
            here.remove(u)
        elif what == "reduce":
            if u not in done:
                raise Wrong("wrong order", f"the gradient of unit {u} is summed before it is there",
                            f"{at}backward {u} comes later.")
        else:
            if u not in here:
                raise Wrong("used before gathered", f"unit {u} is used, but is not here", f"{at}gather it before.")
            left.pop(0)
            if left and left[0][1] not in here:
                raise Wrong("not prefetched", f"nothing is on its way while {what} {u} computes",
                            f"{at}{left[0][0]} {left[0][1]} comes next, and its unit has not been gathered: "
                            "the network rests now, and the computing after.")
            if what == "backward":
                done.add(u)
    if here:
        raise Wrong("never freed", f"{len(here)} unit{'s are' if len(here) > 1 else ' is'} whole when the step ends",
                    f"{case}{sorted(here)} would stay in memory.")
