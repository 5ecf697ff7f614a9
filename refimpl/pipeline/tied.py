"""Tied weights: the first stage's embedding and the last stage's output layer are one matrix, of which each has a copy.

    first stage   g_0 = sum over micro-batches of its own part        g_0 + g_last   ) the same bits on both, so that
    last stage    g_last = its own part                               g_0 + g_last   ) equal copies stay equal

One exchange of the two, at the end of the step: each sends its gradient to the other once. It comes after replicas have
reduced theirs: a sum of means is the mean of sums, but only if both copies are treated alike (case A22). In a gradient
norm the matrix counts once. (Megatron-LM's embedding group)
"""

from refimpl.precision import add_

TIED = "pp tied"                                         # the ledger's name for these messages


def add_tied(schedule, comm, gradients, tied):
    """Make both copies' gradients the sum of both, in place in `gradients`.

    gradients    {stage: {name: array}}, of this rank's stages
    tied         [(name in the first stage, name in the last stage)]; of arrays of the same shape
    ValueError for a name that the stage has no gradient for.
    """
    first, last = 0, len(schedule.placement) - 1
    ranks = schedule.placement[first], schedule.placement[last]
    for number, (one, other) in enumerate(tied):
        copies = (first, one), (last, other)
        for stage, name in copies:
            if stage in gradients and name not in gradients[stage]:
                raise ValueError(f"tied={list(tied)}: stage {stage} has no gradient {name!r}, "
                                 f"only {', '.join(gradients[stage])}")
        if copies[0] == copies[1] or comm.rank not in ranks:
            continue                                     # one array, whole already; or none of it here
        if ranks[0] == ranks[1]:
            a, b = (gradients[stage][name] for stage, name in copies)
        else:
            mine = copies[ranks.index(comm.rank)]
            peer = ranks[1 - ranks.index(comm.rank)]
            own = gradients[mine[0]][mine[1]]
            with comm.phase(TIED):
                theirs = comm.sendrecv(own, peer, peer, tag=number)
            a, b = (own, theirs) if comm.rank == ranks[0] else (theirs, own)
        total = a.copy()
        add_(total, b)                                   # in this order on both
        for stage, name in copies:
            if stage in gradients:
                gradients[stage][name] = total.copy()


def once(schedule, gradients, tied=()):
    """All gradients of a rank as [(stage, name, array)], each parameter of the model once: without the tied copies.

    For a norm over all parameters; the last stage's copies are the ones left out.
    """
    last = len(schedule.placement) - 1
    copies = {other for one, other in tied if last > 0 or one != other}
    return [(stage, name, g) for stage, named in gradients.items() for name, g in named.items()
            if not (stage == last and name in copies)]
