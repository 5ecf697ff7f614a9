"""What a run took, dimension by dimension: messages and bytes, memory by kind, time by what it went into.

Which dimension a message belongs to is known by the group that it was sent in:

    tp    in each layer, embedding, head, loss            cp    keys and values, or heads
    pp    activations and their gradients, tied tables    ep    tokens to experts and back
    dp    gradients and parameters of replicas, dense (dp x cp) and experts'
"""

from refimpl.train import activity, predicted

GROUPS = {
    "tp": ("tp", "tp kv", "expert_tp"),
    "cp": ("cp", "cp ulysses", "cp ring"),
    "pp": ("pp",),
    "ep": ("ep",),
    "dp": ("dp_cp", "expert_dp"),
}


def sent(log, ranks):
    """{dimension: {"messages": [per rank], "bytes": [per rank]}} of all that was sent, from a `Ledger`."""
    count = lambda ask, names, rank: sum(ask(rank=rank, group=name) for name in names)
    return {dimension: {"messages": [count(log.messages, names, rank) for rank in range(ranks)],
                        "bytes": [count(log.bytes_sent, names, rank) for rank in range(ranks)]}
            for dimension, names in GROUPS.items()}


def formula(setup, log, steps, skipped=0):
    """What cost/step_traffic.py says that was sent: {"messages": {dimension: [per rank]}, "bytes": ...}; None for a run
    that it does not know. A mixture's routing is the ledger's."""
    try:
        found = predicted.sent(setup, log, steps, skipped)
    except ValueError:                                             # uneven positions, say
        return None
    return {name: {dimension: counts[name] for dimension, counts in found.items()} for name in ("messages", "bytes")}


def memory(histories):
    """Bytes by kind of every rank: [{"at_rest": {...}, "peak": {...}, "total_peak": ...}]."""
    return [{"at_rest": history.live, "peak": history.peak, "total_peak": history.total_peak} for history in histories]


def time(log, histories, stretches=None):
    """Seconds: {"total", "virtual"} of the run, {"step", "compute", "communication", "waiting"} of its last step.

    stretches    what each rank did in the last step on the virtual clock, see activity.py; the three are means over
                 ranks, and add up to the step of a mean rank
    Without them seconds are real ones, and there is one figure more: the share of them, of the whole run, that MPI
    ranks waited for messages. Ranks of one process take turns, and wait for nothing.
    """
    ranks = len(histories)
    if stretches is None:
        waited = log.time(kind="wait") / ranks / max(sum(history.seconds for history in histories) / ranks, 1e-9)
        return {"total": max(history.seconds for history in histories), "virtual": False, "step": None, "compute": None,
                "communication": None, "waiting": None, "waiting_share": waited or None}
    spent = [activity.seconds(mine) for mine in stretches]
    mean = {what: sum(one.get(what, 0.0) for one in spent) / ranks for what in (activity.COMPUTE, activity.WAITING)}
    step = sum(sum(one.values()) for one in spent) / ranks
    return {"total": max(history.clock for history in histories), "virtual": True, "step": step,
            "compute": mean[activity.COMPUTE], "communication": step - sum(mean.values()),
            "waiting": mean[activity.WAITING]}


def stretches(log, histories):
    """What every rank did in its last step, on the virtual clock: see activity.py."""
    return activity.activity(log, GROUPS, [history.began for history in histories],
                             [history.clock for history in histories])
