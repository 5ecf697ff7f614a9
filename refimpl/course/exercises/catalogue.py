"""Which exercises there are, and what is said about each: the lesson, the minutes, three hints.

An exercise is a file NN_name.py with a function of the same name. What its check runs is in cases.py; hints are here
and not in the file, so that nobody reads them by accident.
"""

from difflib import get_close_matches

from refimpl.course.exercises.bugs_catalogue import BUGS
from refimpl.course.exercises.composing_catalogue import COMPOSING
from refimpl.course.exercises.context_catalogue import CONTEXT
from refimpl.course.exercises.costs_catalogue import COSTS
from refimpl.course.exercises.exercise import KINDS, Exercise
from refimpl.course.exercises.experts_catalogue import EXPERTS
from refimpl.course.exercises.pipeline_catalogue import PIPELINES
from refimpl.course.exercises.replicas_catalogue import REPLICAS
from refimpl.course.exercises.steps_catalogue import STEPS

ALL = [
    Exercise(
        1, "ring_reduce_scatter", "the ring reduce-scatter", "01", difficulty=2, minutes=25,
        hints=(
            "Do step 0 by hand for four ranks, with the picture: which chunk does rank r send, and to which chunk of "
            "its own does it add what arrives? Then do step 1.",
            "In step s rank r sends chunk r-1-s and adds what it receives to chunk r-2-s, both modulo P. After P-1 "
            "steps chunk r has passed everybody else and is complete on rank r.",
            "sums = x.copy(); for step in range(P - 1): incoming = comm.sendrecv(<chunk r-step-1 of sums>, "
            "dst=(r + 1) % P, src=(r - 1) % P), then <chunk r-step-2 of sums> += incoming. Return chunk r of sums.",
        ),
        advice={
            "wrong traffic": "Send one chunk in each step, not the array: x[b[k]:b[k + 1]].",
            "wrong order": "The chunk that you own is the last to come to you: in step 0 rank r sends chunk r-1.",
            "missing all-reduce": "Add what arrives to your own chunk, in each of P-1 steps, before you send that on.",
            "wrong addends": "What you send on is the sum so far, not your own part of it; and there are P-1 steps.",
            "deadlock": "A send returns only when it is received. comm.sendrecv does both at once.",
        }),
    Exercise(
        2, "ring_all_gather", "the ring all-gather", "01", difficulty=1, minutes=15,
        hints=(
            "Keep a list of P blocks, of which you know one. In each step you send the block that you got last, and "
            "learn a new one.",
            "In step s rank r sends the block of rank r-s and receives that of rank r-s-1, both modulo P.",
            "blocks = [None] * P; blocks[r] = block; in step s: blocks[(r - s - 1) % P] = comm.sendrecv("
            "blocks[(r - s) % P], dst=(r + 1) % P, src=(r - 1) % P). Return np.concatenate(blocks).",
        ),
        advice={
            "wrong traffic": "Talk to your neighbours only: pass on the block that came last.",
            "wrong order": "What arrives in step s is the block of rank r-s-1: put it there.",
            "missing all-reduce": "Every rank has only its own block in place: the others have to travel.",
            "deadlock": "A send returns only when it is received. comm.sendrecv does both at once.",
        }),
    Exercise(
        3, "ring_all_reduce", "the ring all-reduce", "01", difficulty=2, minutes=20,
        hints=(
            "You have written both halves already: a reduce-scatter leaves chunk r complete on rank r, and an "
            "all-gather takes it from there.",
            "Split the array into P chunks. First lap: send chunk r-1-s, add to chunk r-2-s. Second lap: send chunk "
            "r-s, overwrite chunk r-s-1. All modulo P, s from 0 to P-2.",
            "y = x.copy(); two loops over range(P - 1). In the first: chunk(r - s - 2)[...] += comm.sendrecv("
            "chunk(r - s - 1), dst=right, src=left). In the second: chunk(r - s - 1)[...] = comm.sendrecv("
            "chunk(r - s), dst=right, src=left).",
        ),
        advice={
            "wrong traffic": "Split the array into P chunks, and let each go around the ring.",
            "missing all-reduce": "What arrives has to be added, and the finished chunks have to go around once more.",
            "wrong addends": "Look at the array after the first lap: is chunk r complete on rank r?",
            "wrong order": "After the first lap rank r has chunk r complete: that is what it sends first then.",
            "deadlock": "A send returns only when it is received. comm.sendrecv does both at once.",
        }),
    Exercise(
        4, "row_parallel_forward", "a row-parallel linear layer, forward", "05", difficulty=1, minutes=10,
        hints=(
            "x w is a sum over the input features, and each rank has some of them. What does a rank know after x @ w?",
            "Each rank's x @ w is one addend of the sum, of full shape. The ranks' sum is x w; b belongs to it once.",
            'y = all_reduce(x @ w, comm, algorithm="ring"); return y + b',
        ),
        advice={
            "missing all-reduce": "x @ w is only this rank's addend: all_reduce(x @ w, comm).",
            "wrong traffic": "One all-reduce of the product is all that has to travel.",
            "bias": "Add b after the all-reduce, where it counts once.",
        }),
    Exercise(
        5, "row_parallel_backward", "a row-parallel linear layer, backward", "05", difficulty=2, minutes=20,
        hints=(
            "Write down the gradients of a linear layer on one device. Then ask of each factor: does this rank have "
            "the part that it needs?",
            "dx_r = dy w_r^T and dw_r = x_r^T dy need only what the rank holds, since dy is whole. For db ask "
            "the same.",
            "return dy @ w.T, x.T @ dy, dy.sum(axis=0): no message at all. The all-reduce of the forward, turned "
            "around, is that dy is already the same on every rank.",
        ),
        advice={
            "wrong traffic": "Every rank has dy whole: what is there to send?",
            "off by a factor": "dy is the same on every rank, so a sum over the ranks counts it P times.",
        }),
    Exercise(
        6, "row_parallel_bias", "find the bug", "05", difficulty=2, minutes=10, kind="find the bug",
        hints=(
            "Run it on one rank and on two with w = 0. What should y be, and what is it?",
            "Which of the terms of y are addends of one rank, and which does every rank have whole?",
            "The bias is added on every rank before the sum, so it counts P times. Add it after the all-reduce. The "
            "backward is right as it is: each rank has all of dy.",
        ),
        advice={
            "bias": "Look at what every rank has whole, and where it is added.",
            "wrong gradient": "The backward was right as it was given: each rank has all of dy.",
            "off by a factor": "The backward was right as it was given: each rank has all of dy.",
        }),
    *PIPELINES,
    *REPLICAS,
    *CONTEXT,
    *EXPERTS,
    *COSTS,
    *COMPOSING,
    *BUGS,
    *STEPS,
]

BY_NAME = {exercise.name: exercise for exercise in ALL}


def of_kind(kind=None):
    """The exercises of a kind ("find the bug", or a part of it such as "bug"), or all; ValueError if there is none."""
    if kind is None:
        return ALL
    wanted = " ".join(kind.lower().split())
    fits = [known for known in KINDS if wanted and wanted in known]
    if len(fits) != 1:
        near = (get_close_matches(wanted, KINDS, n=1, cutoff=0.0) or KINDS)[0]
        raise ValueError(f"there is no kind {kind!r} of exercises: nearest {near!r}; there are {', '.join(KINDS)}")
    return [exercise for exercise in ALL if exercise.kind == fits[0]]


def find(name):
    """The exercise of this name, file or number ("ring_all_reduce", "03_ring_all_reduce.py", "3"); or ValueError."""
    wanted = str(name).rpartition("/")[2].removesuffix(".py")
    for exercise in ALL:
        number = str(exercise.number)
        if wanted in (exercise.name, exercise.filename.removesuffix(".py"), number, number.zfill(2)):
            return exercise
    near = get_close_matches(wanted, BY_NAME, n=1, cutoff=0.5)
    hint = f"perhaps {near[0]!r}?" if near else f"there are {', '.join(BY_NAME)}"
    raise ValueError(f"there is no exercise {str(name)!r}: {hint}")
