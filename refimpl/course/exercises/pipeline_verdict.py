"""What is wrong with a learner's schedule, told from what `check` and `simulate` say about it.

    wrong shape        wrong actions        deadlock             wrong order         too much kept     bubble
    layers missing     wrong placement      arrow missing        not transitive      says too much
    not split          work done twice      wrong gradient

A schedule is judged by what it does, not by its letters: one that runs, keeps as little and takes as long as the known
one is right.
"""

import numpy as np

from refimpl.course.exercises.finding import Wrong
from refimpl.pipeline import Action, Schedule, ScheduleError, check, layers_of, parse, simulate
from refimpl.pipeline.check import misplaced, missing, needs

SHOWN = 2                                             # faults named in one verdict


# -- the order of actions ---------------------------------------------------------------------------------------------

def judge_order(known, rows):
    """Raise `Wrong` unless the lists of all ranks are as good a schedule as the known one."""
    p, m = known.stages, known.microbatches
    words = f"{p} rank{'s' * (p > 1)}, {m} micro-batches: "
    schedule = Schedule("your schedule", p, m, 1, known.placement,
                        [as_actions(row, rank, words) for rank, row in enumerate(rows)])
    halves = [f"{action} on rank {rank}" for rank, row in enumerate(schedule.ranks) for action in row
              if action.kind in "IW"]
    if faults := halves or misplaced(schedule) or missing(schedule):
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise Wrong("wrong actions", "the lists have not one F and one B for each micro-batch",
                    words + "; ".join(faults[:SHOWN]) + more + ".")
    try:
        check(schedule)
    except ScheduleError as error:
        raise Wrong("deadlock", "the ranks wait for each other",
                    words + str(error).partition(": ")[2].replace("; ", ";\n  ") + ".") from None
    if known.name == "gpipe":
        judge_phases(schedule, words)
    mine, par = simulate(schedule), simulate(known)
    for rank, (kept, enough) in enumerate(zip(mine.peak_activations, par.peak_activations, strict=True)):
        if kept > enough:
            raise Wrong("too much kept", f"it runs, but rank {rank} keeps {kept:g} activations at once",
                        f"{words}{enough:g} on rank {rank} would be enough. Its list is {in_words(schedule, rank)}.")
    if mine.makespan > par.makespan:
        rank = max(range(p), key=lambda r: mine.idle_seconds[r] - par.idle_seconds[r])
        gap = max(mine.idle[rank], key=lambda gap: gap.end - gap.start)
        raise Wrong("bubble", f"it runs, but takes {mine.makespan:g} where {par.makespan:g} would do",
                    f"{words}F takes 1 and B takes 2. Rank {rank} is idle {mine.idle_seconds[rank]:g} instead of "
                    f"{par.idle_seconds[rank]:g}, longest from {gap}.")


def judge_phases(schedule, words):
    """Raise `Wrong` if a forward comes after a backward."""
    for rank, row in enumerate(schedule.ranks):
        kinds = [action.kind for action in row]
        if "F" in kinds[kinds.index("B"):]:
            late = row[kinds.index("F", kinds.index("B"))]
            raise Wrong("wrong order", "a forward comes after a backward",
                        f"{words}on rank {rank} {late} comes after {row[kinds.index('B')]}. Its list is "
                        f"{in_words(schedule, rank)}.")


def as_actions(row, rank, words):
    """A rank's list as `Action`s; `Wrong` unless it is a list of words such as "0F3"."""
    if not isinstance(row, list | tuple):
        raise Wrong("wrong shape", "a rank's list is no list", f"{words}rank {rank} gets {row!r}; expected a list such "
                    f"as ['{rank}F0', '{rank}B0'].")
    actions = []
    for word in row:
        try:
            actions.append(word if isinstance(word, Action) else parse(word))
        except (TypeError, ValueError):
            raise Wrong("wrong shape", "there is something in a list that is no action",
                        f"{words}{word!r} on rank {rank}; expected such as '{rank}F0'.") from None
        if not isinstance(actions[-1], Action):
            raise Wrong("wrong actions", "there is a pair in a list", f"{words}{word!r} on rank {rank}.")
    return actions


def in_words(schedule, rank):
    """The list of a rank."""
    return " ".join(map(str, schedule.ranks[rank]))


# -- which rank has which layers --------------------------------------------------------------------------------------

def judge_placement(p, v, layers, results):
    """Raise `Wrong` unless each rank has the layers of its v stages in a loop."""
    words = f"{p} rank{'s' * (p > 1)}, {v} chunk{'s' * (v > 1)} each, {layers} layers: "
    held = [as_chunks(result, rank, v, words) for rank, result in enumerate(results)]
    flat = [layer for chunks in held for chunk in chunks for layer in chunk]
    for layer in range(layers):
        if flat.count(layer) != 1:
            times = f"{flat.count(layer)} times" if layer in flat else "on no rank"
            raise Wrong("layers missing", f"layer {layer} is there {times}", f"{words}{said(held)}.")
    if len(flat) > layers:
        raise Wrong("layers missing", f"there is no layer {max(flat)}", f"{words}{said(held)}.")
    right = wanted(p, v, layers)
    for rank in range(p):
        if held[rank] == right[rank]:
            continue
        if sorted(held[rank]) == right[rank]:
            raise Wrong("wrong order", f"the chunks of rank {rank} are in another order",
                        f"{words}rank {rank} has {held[rank]}, expected {right[rank]}.")
        cause = ""
        if [sum(chunks, []) for chunks in held] == [row[0] for row in wanted(p, 1, layers)]:
            cause = " That is one piece for each rank: a pipeline without interleaving."
        elif v == 2 and held == wanted(p, 2, layers, "v"):
            cause = " That is a V, down the ranks and up again; a loop goes down each time."
        raise Wrong("wrong placement", f"rank {rank} has layers of other stages",
                    f"{words}rank {rank} has {held[rank]}, expected {right[rank]}.{cause}")


def wanted(p, v, layers, placement="loop"):
    """Per rank a list of chunks, each a list of layers."""
    return [[list(chunk) for chunk in row] for row in layers_of(layers, p, v, placement)]


def as_chunks(result, rank, v, words):
    """What one rank returned as a list of lists of numbers; `Wrong` unless it is one."""
    try:
        chunks = [[int(layer) for layer in chunk] for chunk in result]
    except (TypeError, ValueError):
        raise Wrong("wrong shape", "what is returned has the wrong form", f"{words}rank {rank} returned {result!r}; "
                    "expected a list with a list of layers for each chunk.") from None
    if len(chunks) != v:
        raise Wrong("wrong shape", f"rank {rank} has {len(chunks)} chunk{'s' * (len(chunks) != 1)}",
                    f"{words}it returned {chunks}; expected {v}.")
    return chunks


def said(held):
    """All chunks of all ranks."""
    return ", ".join(f"rank {rank} has {chunks}" for rank, chunks in enumerate(held))


# -- what comes before what -------------------------------------------------------------------------------------------

def arrow(schedule, a, b):
    """Why b comes right after a: "list", "input", "gradient" or "own forward"; "" where there is no arrow."""
    (rank, at), (other, before) = schedule.where[b], schedule.where[a]
    if rank == other and at == before + 1:
        return "list"
    if a not in needs(schedule, b):
        return ""
    return "input" if b.kind == "F" else "gradient" if a.kind != "F" else "own forward"


def judge_answers(schedule, pairs, expected, answers):
    """Raise `Wrong` for the first pair of which the wrong thing is said."""
    words = f"{schedule.name}, {schedule.stages} ranks, {schedule.microbatches} micro-batches: "
    means = {"list": "{b} stands right behind {a} in the list of the same rank",
             "input": "{b} needs what {a} puts out", "gradient": "{b} needs the gradient that {a} hands down",
             "own forward": "{b} needs what {a} has kept"}
    for (a, b), answer in zip(pairs, answers, strict=True):
        if not isinstance(answer, bool | np.bool_):
            raise Wrong("wrong shape", "the answer is neither True nor False", f"{words}for {a} and {b}: {answer!r}.")
        if answer and not expected[a, b]:
            raise Wrong("says too much", f"{a} need not come before {b}", words
                        + ("an action does not come before itself." if a == b else
                           f"{b} can start before {a} has ended; but the answer is True."))
        if not answer and expected[a, b] and (why := arrow(schedule, a, b)):
            raise Wrong("arrow missing", f"{a} comes before {b}", words + means[why].format(a=a, b=b)
                        + "; but the answer is False.")
        if not answer and expected[a, b]:
            raise Wrong("not transitive", f"{a} comes before {b}, by way of others",
                        f"{words}there is a way of arrows from {a} to {b}; but the answer is False.")


# -- a backward in two halves -----------------------------------------------------------------------------------------

def two_parts(result):
    """(dx, the function for later) of what was returned; `Wrong` unless it is such a pair."""
    if not isinstance(result, tuple | list) or len(result) != 2 or not callable(result[1]):
        raise Wrong("wrong shape", "what is returned has the wrong form", f"{type(result).__name__} was returned; "
                    "expected dx and a function without arguments, which returns dw1 and dw2 when it is called.")
    return result


def judge_split(result, x, w1, w2, dy):
    """Raise `Wrong` unless the gradients are right and each half does its own two products, and no more."""
    dx, gradients, now, later = result
    words = f"x {x.shape}, w1 {w1.shape}, w2 {w2.shape}: "
    if not isinstance(gradients, tuple | list) or len(gradients) != 2:
        raise Wrong("wrong shape", "what comes later has the wrong form", f"{words}the function for later returned a "
                    f"{type(gradients).__name__}; expected dw1 and dw2.")
    da = dy @ w2.T
    for name, found, right in (("dx", dx, da @ w1.T), ("dw1", gradients[0], x.T @ da),
                               ("dw2", gradients[1], (x @ w1).T @ dy)):
        if np.shape(found) != right.shape:
            raise Wrong("wrong shape", f"{name} has the wrong shape", f"{words}{name} has shape {np.shape(found)}, "
                        f"expected {right.shape}.")
        if not np.array_equal(np.asarray(found), right):
            raise Wrong("wrong gradient", f"the gradient {name} is wrong", f"{words}the first row is "
                        f"{np.asarray(found)[0].tolist()}, expected {right[0].tolist()}.")
    if now > 2:
        raise Wrong("not split", "the gradients are right, but nothing is left for later",
                    f"{words}{now} products of matrices before dx was handed on, and {later} later; dx needs 2.")
    if now + later > 4:
        raise Wrong("work done twice", "the gradients are right, but a product is computed twice",
                    f"{words}{now} products of matrices for dx and {later} later; 2 and 2 are enough.")
