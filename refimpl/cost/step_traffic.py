"""What a rank sends in a step: messages and bytes of every dimension and phase, and the link that they take.

    dimension    phases                                   how often
    tp           forward, backward, loss                  each layer and micro-batch             layer_traffic.py
                 finish: addends of norms, shared heads   once; with ZeRO 2, 3 each micro-batch
    cp, ep       forward, backward                        each layer and micro-batch             layer_traffic.py
    pp           forward, backward                        each boundary and micro-batch
                 tied: the table's gradient               once, between the two ends
    dp           reduce, gather                           traffic.zero_step, unit by unit
    agreement    how many targets count, the norm of all gradients, the loss: a few numbers so that all ranks agree

`rows(Seat(training, rank), sizes)` is exact for any rank and any micro-batch sizes: the tests compare it with what the
ledger counted while `refimpl.train` ran, message by message, and allow no difference. A machine's own libraries may
send a few more, for they choose other algorithms than rings; bytes a rank are the same for all that are optimal.
"""

from collections import Counter
from dataclasses import dataclass

from refimpl.cost import layer_traffic
from refimpl.cost.footprint import parts, unit_sizes
from refimpl.cost.pipeline import V
from refimpl.cost.seat import Sent, sharers
from refimpl.cost.traffic import padded

DIMENSIONS = {"tp": "tp", "tp kv": "tp", "expert_tp": "tp", "cp": "cp", "cp ulysses": "cp", "cp ring": "cp", "pp": "pp",
              "ep": "ep", "dp_cp": "dp", "expert_dp": "dp"}
AGREEMENT = "agreement"
AGREED = ("valid targets", "gradient norm", "total loss", "overflow", "balance", "loads")      # phases that only agree


@dataclass(frozen=True)
class Row:
    """Messages and bytes of one rank in one step.

    dimension    "tp", "cp", "pp", "ep", "dp" or "agreement"    phase    of the step, as the ledger of a run calls it
    group        whom it talks to: one of Layout's groups, or a part of one
    link         "domain", "node" or "network": how far that group reaches on a given GPU; "nodes" or "node" without one
    """

    dimension: str
    phase: str
    group: str
    messages: int
    bytes: int
    link: str


def rows(seat, sizes=None, routed=None, gpu=None):
    """All `Row`s of a rank's step, those without messages left out.

    seat      `seat.Seat`: the run, and which rank of it
    sizes     sequences in each of the rank's micro-batches; micro_batch in each, unless given
    routed    of a mixture of experts: see layer_traffic.dispatched; balanced unless given
    gpu       `hardware.GPU`, to know the links
    """
    training, sent = seat.training, Sent()
    sizes = [training.micro_batch] * training.microbatches if sizes is None else sizes
    stages = stages_of(training, seat.place["pp"])
    for b, times in Counter(sizes).items():
        sent.add(microbatch(seat, b, stages), times)
    mixtures = sum(not training.model.is_dense(number) for number in training.layers_of(seat.place["pp"]))
    layer_traffic.dispatched(sent, seat, mixtures, sizes, routed)
    data(sent, seat)
    tied(sent, seat)
    agreement(sent, seat)
    return [Row(dimension(group, phase), phase, group, messages, sent[group, phase], link(seat, group, gpu))
            for (group, phase), messages in sent.messages.items()]


def microbatch(seat, b, stages):
    """What one micro-batch of b sequences sends on the rank with these stages, but for a mixture's rows: `Sent`."""
    training, sent = seat.training, Sent()
    if 0 in stages:
        layer_traffic.embedding(sent, seat, b)
    for dense, times in Counter(map(training.model.is_dense, training.layers_of(seat.place["pp"]))).items():
        one = Sent()
        layer_traffic.layer(one, seat, b, dense)
        sent.add(one, times)
    if training.stages - 1 in stages:
        layer_traffic.head(sent, seat, b)
    pipeline(sent, seat, b, stages)
    return sent


def dimension(group, phase):
    """Which dimension sends in this group and phase."""
    return AGREEMENT if phase in AGREED else DIMENSIONS[group]


def totals(found, key="dimension"):
    """Messages and bytes of rows, summed: {dimension: (messages, bytes)}; key="group": agreement where it is sent."""
    sums = {}
    for row in found:
        name = row.dimension if key == "dimension" else DIMENSIONS[row.group]
        messages, nbytes = sums.get(name, (0, 0))
        sums[name] = messages + row.messages, nbytes + row.bytes
    return sums


def link(seat, group, gpu=None):
    """How far a group of the rank reaches."""
    ranks, layout = seat.group(group), seat.training.layout
    if gpu is not None:
        return gpu.span(ranks)
    return "nodes" if len({layout.node(rank) for rank in ranks}) > 1 else "node"


# The pipeline


def owner(training, stage):
    """The pipeline rank of a stage."""
    p = training.layout.pp
    return 2 * p - 1 - stage if training.schedule in V and stage >= p else stage % p


def stages_of(training, rank):
    """The stages of a pipeline rank."""
    return [stage for stage in range(training.stages) if owner(training, stage) == rank]


def pipeline(sent, seat, b, stages):
    """An activation to the next stage, its gradient to the one before, wherever that is another rank."""
    training, mine = seat.training, seat.place["pp"]
    shared = training.layout.tp if training.sequence_parallel else 1
    nbytes = b * (training.positions // shared) * training.model.hidden * training.item
    for stage in stages:
        for other, phase in ((stage + 1, "pp forward"), (stage - 1, "pp backward")):
            if 0 <= other < training.stages and owner(training, other) != mine:
                sent.note("pp", phase, (1, nbytes))


def tied(sent, seat):
    """The two ends of the pipeline exchange what replicas have summed of the table's gradient: a shard, under ZeRO."""
    training, mine = seat.training, seat.place["pp"]
    ends = owner(training, 0), owner(training, training.stages - 1)
    if training.model.tied and ends[0] != ends[1] and mine in ends:
        size = unit_sizes(training.model.embedding[:1], training, seat.place["tp"])["dense"]
        replicas = seat.collective("dp_cp")
        if training.zero:
            each = -(-size // replicas.P)
            size = max(min(size - replicas.rank * each, each), 0)
        sent.note("pp", "pp tied", (1, size * reduced(training)))


# Gradients and parameters


def reduced(training):
    """Bytes of a gradient as it is summed over replicas; of the two copies of grad_dtype "both" the wide one."""
    states = training.states
    return states.gradients - states.item if training.grad_dtype == "both" else states.gradients


def data(sent, seat):
    """Sums over replicas of every unit's gradients and gathers of its parameters, as ZeRO's stage has them."""
    training, mine = seat.training, seat.place["pp"]
    both = training.model.tied and training.first(mine) and training.last(mine)
    for times, units in parts(training, mine):
        for tensors in units:
            uses = 2 if both and tensors[0].name == "tokens" else 1            # a tied table, by both ends of the model
            unit(sent, seat, tensors, times, uses)


def unit(sent, seat, tensors, times=1, uses=1):
    """One unit of these tensors: its gradients summed over tp, where they are addends, and over replicas.

    times    how many such units there are    uses    parts of the model that work with it
    """
    training, sizes = seat.training, unit_sizes(tensors, seat.training, seat.place["tp"])
    zero, item = training.zero, training.item
    sums = training.microbatches if zero >= 2 else 1                           # of each micro-batch, or of all
    finish(sent, seat, tensors, times * sums)
    for kind, group in (("dense", "dp_cp"), ("experts", "expert_dp")):
        if not sizes[kind]:
            continue
        ring = seat.collective(group)
        if zero == 0:
            sent.note(group, "zero reduce", ring.reduce(sizes[kind], reduced(training)), times)
        else:
            n = padded(sizes[kind], ring.P)
            gathers = 2 * uses * training.microbatches if zero == 3 else 1
            sent.note(group, "zero reduce", ring.scatter(n, reduced(training)), times * sums)
            sent.note(group, "zero gather", ring.gather(n, item), times * gathers)


def finish(sent, seat, tensors, times):
    """Over tp: gradients of key-value heads that ranks share; sequence-parallel, those of norms, routers, positions."""
    training = seat.training
    share, item = sharers(training), seat.gradient_sums
    kv = sum(tensor.each for tensor in tensors if tensor.cut == "kv")          # one head's, weights and biases
    if share > 1 and kv:
        sent.note("tp kv", "finish", seat.collective("tp kv").reduce(kv, item), times)
    if training.sequence_parallel:
        n = sum(tensor.size for tensor in tensors if tensor.part in ("norms", "router") and tensor.name != "b"
                or tensor.name == "positions")
        if n:
            sent.note("tp", "finish", seat.collective("tp").reduce(n, item), times)


def agreement(sent, seat):
    """Numbers of 8 bytes, by doubling, one over each of the groups that the rank is in."""
    agreed = {"valid targets": ("dp_cp",), "gradient norm": ("tp", "dp_cp", "pp"), "total loss": ("dp_cp", "pp")}
    for phase, groups in agreed.items():
        for group in groups:
            sent.note(group, phase, seat.collective(group).agree())
    if seat.loss_scale:
        for group in ("tp", "dp_cp", "pp"):
            sent.note(group, "overflow", seat.collective(group).agree(item=4))
    sp, model = seat.training.sequence_parallel, seat.training.model
    if seat.balance and sp:
        sent.note("tp", "balance", seat.collective("tp").agree())
    if seat.biases:
        mixtures = sum(not model.is_dense(number) for number in seat.training.layers_of(seat.place["pp"]))
        for group in ("dp_cp", "tp") if sp else ("dp_cp",):
            sent.note(group, "loads", seat.collective(group).reduce(mixtures * model.experts, 8))
