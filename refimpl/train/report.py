"""What a run took, dimension by dimension: messages and bytes, memory by kind, time by what it went into.

Which dimension a message belongs to is known by the group that it was sent in:

    tp    in each layer, embedding, head, loss            cp    keys and values, or heads
    pp    activations and their gradients, tied tables    ep    tokens to experts and back
    dp    gradients and parameters of replicas, dense (dp x cp) and experts'
"""

GROUPS = {
    "tp": ("tp", "tp kv", "expert_tp"),
    "cp": ("cp", "cp ulysses", "cp ring"),
    "pp": ("pp",),
    "ep": ("ep",),
    "dp": ("dp_cp", "expert_dp"),
}


BACKGROUND = ("zero reduce", "zero gather", "zero replicate")          # phases of work that a rank does beside its own
COMPUTE = ("matmul", "attention", "attention backward")                # kinds of computing that operators declare


def sent(log, ranks):
    """{dimension: {"messages": [per rank], "bytes": [per rank]}} of all that was sent, from a `Ledger`."""
    count = lambda ask, names, rank: sum(ask(rank=rank, group=name) for name in names)
    return {dimension: {"messages": [count(log.messages, names, rank) for rank in range(ranks)],
                        "bytes": [count(log.bytes_sent, names, rank) for rank in range(ranks)]}
            for dimension, names in GROUPS.items()}


def memory(histories):
    """Bytes by kind of every rank: [{"at_rest": {...}, "peak": {...}, "total_peak": ...}]."""
    return [{"at_rest": history.live, "peak": history.peak, "total_peak": history.total_peak} for history in histories]


def time(log, histories, virtual):
    """Seconds by what they went into, the mean over ranks: {"total", "compute", "waiting", "virtual"}.

    virtual    by the network's clock; else real seconds, of which only MPI ranks know what they waited for: None
    Waiting is what a rank did instead of computing; what was sent in the background meanwhile is not in it.
    """
    ranks = len(histories)
    waited = (log.time(kind="wait") - sum(log.time(kind="wait", phase=phase) for phase in BACKGROUND)) / ranks
    if not virtual:
        return {"total": max(history.seconds for history in histories), "compute": None, "waiting": waited or None,
                "virtual": False}
    compute = sum(log.time(kind=kind) for kind in COMPUTE) / ranks
    return {"total": max(history.clock for history in histories), "compute": compute, "waiting": waited,
            "virtual": True}
