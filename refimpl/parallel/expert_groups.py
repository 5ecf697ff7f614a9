"""Who holds which expert: groups dealt out anew over the ranks that are there, and how gradients become whole.

    4 experts, dp = 2, tp = 2, ranks 0 1 | 2 3

    ep=2, expert_tp=2    ranks 0 and 1: experts 0 1, half of their features each        ranks 2 and 3: experts 2 3
    ep=4, expert_tp=1    rank 0: expert 0, whole        rank 1: expert 1        rank 2: expert 2        rank 3: expert 3

No rank is added: ep goes over dp x cp, which split the batch anyway, and with expert_tp = 1 over tp, too. (layout.py;
Lepikhin et al. 2020; Megatron calls the second "parallel folding".)

    expert_tp = tp   the ranks of a tp group have the same tokens, or gather them (sequence-parallel)
    expert_tp = 1    tp ranks have different tokens, so this needs sequence parallelism: else each of them would
                     dispatch the same ones, and every expert see a token tp times

Once a step the gradients of experts are summed over expert_dp, the ranks that have the same ones, all others over
dp_cp. Both add up what a loss gives that is divided by the count of *all* tokens, so both are right. To average
instead, over expert_dp, ep times fewer ranks, makes the experts' ep times too large (deepspeedai/DeepSpeed #6545).
"""

from dataclasses import dataclass
from typing import NamedTuple

from refimpl.parallel import tensor


class Share(NamedTuple):
    """Which experts, and which part of their features, a rank holds."""

    rank: int = 0                      # of the ep ranks that share the experts
    size: int = 1
    tp_rank: int = 0                   # of the expert_tp ranks that share an expert's features
    tp_size: int = 1


@dataclass(frozen=True)
class Experts:
    """The groups of one rank that a mixture of experts needs beside tp; None: the rank is alone in it."""

    ep: object = None                  # ranks with other experts, to which tokens travel
    expert_tp: object = None           # ranks with other features of the same experts: the tp group, or one rank
    cp: object = None                  # ranks with other positions of the same sequences

    @property
    def share(self):
        """What the rank holds: `Share`."""
        place = lambda comm: (0, 1) if comm is None else (comm.rank, comm.size)
        return Share(*place(self.ep), *place(self.expert_tp))


def of_mesh(mesh):
    """The groups of a mesh: for `Place.experts`."""
    return Experts(mesh.ep, mesh.expert_tp, mesh.cp)


def check_groups(groups, comm, sequence_parallel):
    """ValueError unless the expert_tp group is the tp group `comm`, or one rank of a sequence-parallel one."""
    check_sizes(groups.share.tp_size, comm.size, sequence_parallel)


def check_sizes(expert_tp, tp, sequence_parallel):
    """ValueError unless experts can be cut over `expert_tp` ranks where all else is over `tp`."""
    if expert_tp not in (1, tp):
        raise ValueError(f"expert_tp={expert_tp} with tp={tp}: expected {tp} or 1")
    if expert_tp == 1 < tp and not sequence_parallel:
        raise ValueError(f"expert_tp=1 with tp={tp} and without sequence parallelism: all {tp} tp ranks would dispatch "
                         f"the same tokens; expected sequence_parallel=True, or expert_tp={tp}")


def check_place(place, comm, sequence_parallel):
    """ValueError unless a `Place` has groups that fit; it may have none where all positions are here, or in tp."""
    if place is not None and place.experts is not None:
        check_groups(place.experts, comm, sequence_parallel)
    elif place is not None and place.core is not None:
        raise ValueError("place.core says that other ranks have positions of these sequences, and place.experts does "
                         "not say which; expected experts=expert_groups.of_mesh(mesh)")


# Once a step


def is_expert(name):
    """Whether the parameter of this name is one of the experts', which ranks of one ep group do not have alike."""
    return name.endswith(("moe.w1", "moe.w2"))


def sum_over_replicas(gradients, dp_cp, expert_dp):
    """Sum each gradient over the ranks that have the same parameter and other tokens: two all-reduces.

    gradients    by name, finished over tp (shards.finish), of a loss that is divided by the count of all tokens
    """
    experts = {name: g for name, g in gradients.items() if is_expert(name)}
    others = {name: g for name, g in gradients.items() if name not in experts}
    return gradients | tensor.summed_together(others, dp_cp) | tensor.summed_together(experts, expert_dp)


def global_load(loads, *groups):
    """The load of the whole step on every rank, for router.update_bias: the sum over all that have other tokens.

    loads     each layer's (E,), by name, summed over the rank's micro-batches
    groups    dp_cp and, sequence-parallel, tp    ->  dict by name
    """
    for comm in groups:
        loads = tensor.summed_together(loads, comm)
    return loads
