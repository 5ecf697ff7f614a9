"""Dispatch and combine: tokens travel to the ranks that have their experts, and what the experts made of them back.

    rank 0   t0 -> e0, e3    t1 -> e1          4 experts on 2 ranks: e0 e1 | e2 e3

             sorted by expert      t0 | t1 | t0          a row for each choice: a token that chose two is sent twice
             for rank              0    0    1
             counts                e0 1  e1 1 | e2 0  e3 1      sent first, as nobody else knows them
                 all-to-all                              rows of h features, as many as it takes, perhaps none
             on rank 1             e2: nothing    e3: t0 of rank 0, then what rank 1 has for e3

An all-to-all's transpose is the all-to-all the other way. So backward takes the same ways as forward, four in all for a
layer: dispatch and combine, and the gradient of what was combined, and of what was dispatched. (DeepSeek-V3, figure 4.)
A rank sends each time the rows that belong elsewhere: all_to_alls in cost/moe.py. With equal loads, of T tokens,

    T k h (P-1)/P elements

Letters: T tokens of the rank, k choices of each, h features, E experts, P ranks of the expert-parallel group.
"""

from itertools import accumulate, pairwise
from typing import NamedTuple

from refimpl.arrays import array_namespace, to_host
from refimpl.collectives import all_to_all, bounds
from refimpl.model.layers import rows as flat

COUNTS, DISPATCH, COMBINE = "expert counts", "dispatch", "combine"                                             # phases
COMBINE_BACKWARD, DISPATCH_BACKWARD = "combine backward", "dispatch backward"


class Plan(NamedTuple):
    """Who sends how many rows to whom, known on the host: it decides the shapes of all that follows."""

    order: object                      # (n,) numbers of the choices that count, sorted by expert; of T k
    choices: int                       # T k
    sent: list                         # rows for each rank
    received: list                     # of each rank a list: its rows for each expert that is here
    comm: object                       # the expert-parallel group; None: this rank alone
    kind = "statistics"                # what the memory meter counts them as


def plan(choice, experts, comm):
    """Sort the choices by expert, and exchange how many there are.

    choice (T, k) of 0..E-1; E for none, when the expert has no room    comm: group that shares E `experts`, or None
    ->  `Plan`    sends the counts of other ranks' experts, 8 bytes each, in a phase of their own
    ValueError for other choices, before anything is sent.
    """
    xp = array_namespace(choice)
    size = 1 if comm is None else comm.size
    flat, b = choice.reshape(choice.shape[0] * choice.shape[1]), bounds(experts, size)
    counts = to_host((flat[:, None] == xp.arange(experts + 1)).sum(axis=0))             # the host waits for the device
    if counts.sum() != flat.size:
        raise ValueError(f"{flat.size - counts.sum()} of {flat.size} choices are no expert; expected whole numbers, 0 "
                         f"to {experts - 1}, or {experts} for none")
    counts = counts[:experts]
    parts = [counts[b[r]:b[r + 1]] for r in range(size)]
    received = _exchange(parts, comm, COUNTS)
    order = xp.argsort(flat, kind="stable")[:int(counts.sum())]
    return Plan(order, flat.shape[0], [int(part.sum()) for part in parts], [part.tolist() for part in received], comm)


def to_experts(rows, plan, phase):
    """Send rows to the ranks of their experts.

    rows (n, h), sorted by expert    phase: what the ledger calls it
    ->  for each expert that is here its rows (n_e, h), those of rank 0 first
    """
    if rows.shape[0] != sum(plan.sent):
        raise ValueError(f"{rows.shape[0]} rows are given to send, and {sum(plan.sent)} choices count; expected a row "
                         "for each: xp.take(x, plan.order // k, axis=0)")
    parts = _exchange(_cut(rows, plan.sent), plan.comm, phase)
    return _transposed(parts, plan.received, len(plan.received[0]), rows[:0])


def from_experts(outputs, plan, phase, like):
    """Send rows back to where they came from: inverse and transpose of `to_experts`.

    outputs    for each expert that is here (n_e, h)    like (..., h): an array, as a rank without experts has no other
    ->  rows (n, h), sorted by expert
    """
    by_expert = list(zip(*plan.received, strict=True))
    parts = _transposed(outputs, by_expert, len(plan.received), flat(like)[:0])
    return array_namespace(like).concatenate(_exchange(parts, plan.comm, phase))


def placed(rows, plan):
    """Rows at the places of their choices, 0 where a choice does not count.  (n, h)  ->  (T k, h)"""
    out = array_namespace(rows).zeros((plan.choices, rows.shape[1]), rows.dtype)
    out[plan.order] = rows                                                              # places are all different
    return out


def _exchange(parts, comm, phase):
    """parts[r] to rank r; what came, by rank."""
    if comm is None:
        return parts
    with comm.phase(phase):
        return all_to_all(parts, comm)


def _cut(x, sizes):
    """x (n, h) in pieces of these sizes."""
    return [x[start:stop] for start, stop in pairwise(accumulate(sizes, initial=0))]


def _transposed(arrays, sizes, columns, empty):
    """Array i is blocks of sizes[i][0], sizes[i][1] ...: block 0 of all arrays joined, block 1 of all, ..."""
    blocks = [_cut(array, each) for array, each in zip(arrays, sizes, strict=True)]
    join = array_namespace(empty).concatenate
    return [join([empty, *(row[j] for row in blocks)]) for j in range(columns)]
