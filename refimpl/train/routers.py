"""What a mixture of experts asks of a step beside gradients: its auxiliary losses, and the balance that biases keep.

    routed(layer, micro-batch)   balance   ->  summed over the rank's own, over tp where it splits positions    the loss
                                 load      ->  summed over micro-batches, dp x cp (and tp likewise)             biases

Every rank of a stage has the same biases, and moves them by the same load of the whole step. (model/moe.py, router.py)
"""

from refimpl.arrays import to_host
from refimpl.collectives import all_reduce
from refimpl.model.router import update_bias
from refimpl.parallel.expert_groups import global_load

BALANCE, LOADS = "balance", "loads"                       # phases: the ledger's names


def balance(setup, mesh, stages):
    """This rank's part of the experts' auxiliary losses in this step, summed over sequences; on all tp ranks alike."""
    if not setup.config.balance:
        return 0.0
    total = sum(float(to_host(routed.balance)) for stage in stages.values() for _, routed in stage.routed)
    if setup.sequence_parallel:
        with mesh.comm.phase(BALANCE):
            total = float(all_reduce(total, mesh.tp, algorithm="doubling"))
    return total


def update_biases(setup, mesh, stages, buffers):
    """Move the routers' biases, {name: (E,)}, in place, by the load of the whole step; where none are, nothing."""
    if not buffers:
        return
    loads = {}
    for stage in stages.values():
        for part, routed in stage.routed:
            name = f"{part}.moe.bias"
            loads[name] = loads[name] + routed.load if name in loads else routed.load
    groups = (mesh.dp_cp, mesh.tp) if setup.sequence_parallel else (mesh.dp_cp,)
    with mesh.comm.phase(LOADS):
        loads = global_load(loads, *groups)
    for name, load in loads.items():
        buffers[name][...] = update_bias(buffers[name], load, setup.config.bias_rate)
