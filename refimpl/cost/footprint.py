"""What each GPU holds: a line for everything, and in each line the factors that it is the product of.

    kind             per GPU of pipeline rank r                                            cut by
    weights          2 bytes a parameter                                                    tp pp ep   ZeRO 3
    gradients        2 or 4, or both                                                        tp pp ep   ZeRO 2
    optimizer        12: float32 copy, two moments                                          tp pp ep   ZeRO 1
    activations      what the layers keep, of so many micro-batches as the schedule has     tp cp (sp) and m, not pp
                     in flight at once: 1F1B's first rank p of them, l/p layers each
    statistics       two numbers a position and norm, one with RMSNorm, which papers leave out    tp (sp) cp and m
    ends             embedding's mask; input of the last norm and of the output table       tp cp
    logits           float32, and their gradient                                            tp cp
    working          what is computed again in backward, one layer at a time                tp cp
    gathered         ZeRO 2, 3: gradients of a layer and the next, before they are cut; 3: their weights, too
    communication    what is on its way: pipeline, context ring, sequence-parallel gathers
    reserve          of a given GPU: context, libraries, and what the allocator cannot use

States are cut by ZeRO over the ranks that share them: dp cp for dense parameters, expert_dp for experts. The worst rank
of a tensor-parallel group is meant, the last one, whose uneven shards are the largest.
What a layer keeps: kept.py.
(Rajbhandari et al. 2020; Korthikanti et al. 2022, table 2, section 4.2.3. Latent attention and experts: our own count.)
"""

from dataclasses import dataclass
from math import ceil, prod

from refimpl.cost.kept import core_lines, expert_tokens, layer_lines, outside, tokens
from refimpl.cost.traffic import chunk, padded

KINDS = ("weights", "gradients", "optimizer", "activations", "statistics", "ends", "logits", "working", "gathered",
         "communication", "reserve")
KINDS_OF_PARAMETERS = ("dense", "experts")              # they have other replicas
CONTEXT = 1.5e9                            # bytes of context, kernels and communication library: an assumption
FRAGMENTED = 0.03                          # of what comes and goes, lost between blocks: an assumption


@dataclass(frozen=True)
class Line:
    """Bytes of one thing: the product of `factors` {name: number}, over `over` ranks rounded up."""

    kind: str
    what: str
    factors: dict
    over: int = 1

    @property
    def bytes(self):
        """How many bytes."""
        return ceil(prod(self.factors.values()) / self.over) if self.over > 1 else round(prod(self.factors.values()))

    @property
    def formula(self):
        """The factors in words: "layers 12 x elements 226,492,416 x bytes 2 / 8 ranks"."""
        words = " x ".join(f"{name} {number:,.10g}" if isinstance(number, float) else f"{name} {number:,}"
                           for name, number in self.factors.items())
        return words + (f" / {self.over} ranks" if self.over > 1 else "")


@dataclass(frozen=True)
class Footprint:
    """Lines of every pipeline rank: `stages`, a list of lists."""

    stages: list

    def kinds(self, rank):
        """Bytes by kind, all of KINDS, of one pipeline rank."""
        found = dict.fromkeys(KINDS, 0)
        for line in self.stages[rank]:
            found[line.kind] += line.bytes
        return found

    def total(self, rank=None):
        """Bytes of one pipeline rank, by default of the worst."""
        return sum(line.bytes for line in self.stages[self.worst if rank is None else rank])

    @property
    def worst(self):
        """The pipeline rank that holds most; the first of equals."""
        return max(range(len(self.stages)), key=lambda rank: self.total(rank))


def footprint(training, gpu=None):
    """The `Footprint` of a `Training`. With a `hardware.GPU`, what its context and allocator take is part of it."""
    return Footprint([stage(training, rank, gpu) for rank in range(training.layout.pp)])


def worst_stage(training, gpu=None):
    """The lines of the pipeline rank that holds most; only those are counted that could be it.

    Ranks with equal numbers of layers of each kind differ in what is in flight, and there is most of the largest.
    """
    fullest, model = {}, training.model
    for rank in range(training.layout.pp):
        held, flying = training.layers_of(rank), training.in_flight(rank)
        experts = sum(not model.is_dense(layer) for layer in held) if model.experts else 0
        alike = len(held), experts, training.first(rank), training.last(rank)
        if flying > fullest.get(alike, (0, 0))[0]:
            fullest[alike] = flying, rank
    return max((stage(training, rank, gpu) for _, rank in fullest.values()),
               key=lambda lines: sum(line.bytes for line in lines))


def stage(training, rank, gpu=None):
    """All lines of one pipeline rank."""
    lines = [*states(training, rank), *activations(training, rank), *ends(training, rank), *working(training, rank),
             *gathered(training, rank), *communication(training, rank)]
    return lines + (reserve(lines) if gpu is not None else [])


# Model states


def local(tensor, training, rank=None):
    """Elements of a tensor on one rank of its tensor-parallel group, unless given the last, whose share is largest."""
    t, copies = training.layout.tp, tensor.copies
    rank = t - 1 if rank is None else rank
    if tensor.part == "experts":
        t, copies = training.layout.expert_tp, tensor.copies // training.layout.ep
    units = {None: tensor.units, "heads": tensor.units // t, "kv": max(tensor.units // t, 1),
             "vocabulary": padded(tensor.units, t) // t}                        # as many rows on every rank
    held = units[tensor.cut] if tensor.cut in units else chunk(tensor.units, t, rank % t)
    return held * tensor.each * copies


def parts(training, rank):
    """What a pipeline rank is made of, in order: (times, units) of embedding, layers (dense ones first), head.

    A unit is a list of arrays that ZeRO cuts as one: a layer, or at the ends each table; with tp, what its ranks all
    have whole apart from what they cut (train/weights.py says why).
    """
    model, held = training.model, training.layers_of(rank)
    found = [(1, [[tensor] for tensor in model.embedding])] if training.first(rank) else []
    for dense in (True, False):
        layers = [layer for layer in held if model.is_dense(layer) == dense]
        if layers:
            found.append((len(layers), [model.tensors(layers[0])]))
    if training.last(rank):
        norm, table = model.output[:-1], model.output[-1]
        head = [[*norm, table]] if not model.tied else [norm] if training.first(rank) else [norm, [table]]
        found.append((1, head))                                  # a tied table is there twice, if the ends are apart
    return [(times, [half for unit in units for half in halves(unit, training)]) for times, units in found]


def halves(unit, training):
    """A unit as it is, or with tensor-parallel ranks its arrays that are cut, and those that are whole."""
    if training.layout.tp == 1:
        return [unit]
    both = [tensor for tensor in unit if tensor.cut], [tensor for tensor in unit if not tensor.cut]
    return [half for half in both if half]


def held_parameters(training, rank, ranks=None):
    """Parameters on a GPU of this pipeline rank: {"dense": ..., "experts": ...}.

    ranks    of the same form: pad each unit so that they can share it evenly
    """
    found = dict.fromkeys(KINDS_OF_PARAMETERS, 0)
    for times, units in parts(training, rank):
        for unit in units:
            for kind, size in unit_sizes(unit, training).items():
                found[kind] += times * (size if ranks is None else padded(size, ranks[kind]))
    return found


def unit_sizes(unit, training, rank=None):
    """Elements of a unit on one rank, as in `local`: {"dense": ..., "experts": ...}."""
    found = dict.fromkeys(KINDS_OF_PARAMETERS, 0)
    for tensor in unit:
        found["experts" if tensor.part == "experts" else "dense"] += local(tensor, training, rank)
    return found


def replicas(training):
    """How many ranks have the same parameters, which is over how many ZeRO may cut them."""
    return dict(zip(KINDS_OF_PARAMETERS, replicas_of(training.layout)))


def replicas_of(layout):
    """The same of a layout: of dense parameters, of experts."""
    line = layout.dp * layout.cp
    return line, line * layout.tp // (layout.ep * layout.expert_tp)


def states(training, rank):
    """Weights, gradients, optimizer: lines of one pipeline rank."""
    ranks, lines = replicas(training), []
    for kind, count in held_parameters(training, rank, ranks if training.zero else None).items():
        if count:
            lines += state_lines(count, training.states, ranks[kind], "" if kind == "dense" else "experts: ")
    return lines


def state_lines(parameters, states, ranks, prefix=""):
    """Lines of so many parameters that `ranks` ranks have alike; ZeRO cuts some of them. states: `States`"""
    return [Line(kind, prefix + kind, {"parameters": parameters, "bytes": item}, ranks if cut else 1)
            for kind, item, cut in states.kinds]


# Activations


def activations(training, rank):
    """What the layers of a pipeline rank keep: lines; "layers held" counts layers times micro-batches in flight, as if
    all chunks of the rank had as many layers."""
    model, held, lines = training.model, training.layers_of(rank), []
    for dense in (True, False):
        layers = [layer for layer in held if model.is_dense(layer) == dense]
        if layers:
            count = ceil(round(training.in_flight(rank) * len(layers), 9))
            lines += [Line("activations", what if dense or not model.dense_layers else f"{what} (with experts)",
                           {"layers held": count} | factors)
                      for what, factors in layer_lines(training, layers[0]).items()]
    if training.recompute != "full":
        layers = ceil(round(training.in_flight(rank) * len(held), 9))
        lines.append(Line("statistics", "of the norms", {"layers held": layers, "norms": 2} | _statistics(training)))
    return lines


def _statistics(training):
    return {"tokens": outside(training), "numbers": 2 if training.model.norm == "layer" else 1,
            "bytes": max(training.item, 4)}


def ends(training, rank):
    """What the embedding and the head keep, and the logits."""
    model, item, t, lines = training.model, training.item, training.layout.tp, []
    stream = {"tokens": outside(training), "h": model.hidden}
    if training.first(rank):
        held = {"in flight": training.in_flight_embedding()}
        ids = {"tokens": tokens(training), "bytes": 8 + 1}
        lines.append(Line("ends", "embedding: ids, and which are of its rows", held | ids))
        if model.dropout:
            lines.append(Line("ends", "embedding: dropout mask", held | stream | {"byte": 1}))
    if training.last(rank):
        held = {"in flight": training.in_flight_head()}
        lines += [Line("ends", what, held | stream | {"bytes": item}) for what in ("last norm: input", "head: input")]
        lines.append(Line("statistics", "of the last norm", held | _statistics(training)))
        logits = {"tokens": tokens(training), "V": chunk(model.vocabulary, t, t - 1), "bytes": max(item, 4)}
        lines += [Line("logits", "logits", held | logits), Line("logits", "their gradient", logits)]
    return lines


# What comes and goes


def working(training, rank):
    """What backward computes again: of the layer whose turn it is."""
    if training.recompute == "none":
        return []
    largest = max(set(training.layers_of(rank)), key=lambda layer: not training.model.is_dense(layer))
    again = core_lines(training) if training.recompute == "selective" else layer_lines(training, largest, "none")
    return [Line("working", f"again: {what}", factors) for what, factors in again.items()]


def gathered(training, rank):
    """Whole parts where only shards stay: gradients under ZeRO 2, 3, weights under 3; of the part at hand and of one on
    its way. A part is a layer, or an end of the model."""
    if training.zero < 2:
        return []
    ranks, sizes = replicas(training), []
    for times, units in parts(training, rank):
        held = [unit_sizes(unit, training) for unit in units]
        size = sum(padded(unit[kind], ranks[kind]) for unit in held for kind in unit if ranks[kind] > 1)
        sizes += min(times, 2) * [size]
    if not any(sizes):
        return []
    pair = max(a + b for a, b in zip(sizes, [*sizes[1:], 0]))
    kinds = (("gradients", training.states.gradients), ("weights", training.item))
    return [Line("gathered", f"{kind} of a part and the next", {"parameters": pair, "bytes": item})
            for kind, item in kinds[:2 if training.zero == 3 else 1]]


def communication(training, rank):
    """Buffers of messages on their way."""
    model, layout, item, lines = training.model, training.layout, training.item, []
    inside, h = tokens(training), model.hidden
    if layout.pp > 1:
        lines.append(Line("communication", "pipeline: an input and a gradient that arrive",
                          {"arrays": 2, "tokens": outside(training), "h": h, "bytes": item}))
    if training.sequence_parallel and layout.tp > 1:
        lines.append(Line("communication", "tp: a block's gathered input", {"tokens": inside, "h": h, "bytes": item}))
    if layout.cp > 1 and training.cp_kind != "ulysses":
        kv = model.heads // layout.tp if model.latent else max(model.kv_heads // layout.tp, 1)
        kv, blocks = max(kv, training.head_ranks), layout.cp if training.cp_kind == "gather" else 2
        lines.append(Line("communication", "cp: keys and values of other ranks",
                          {"blocks": blocks, "tokens": inside, "kv heads": kv, "features": model.key + model.value,
                           "bytes": item}))
    if layout.ep > 1 and any(not model.is_dense(layer) for layer in training.layers_of(rank)):
        lines.append(Line("communication", "ep: tokens to dispatch",
                          {"copies": expert_tokens(training), "h": h, "bytes": item}))
    return lines


def reserve(lines):
    """What a GPU cannot give to tensors: lines, beside those that come and go."""
    moving = sum(line.bytes for line in lines if line.kind not in ("weights", "gradients", "optimizer"))
    return [Line("reserve", "context, kernels, communication library (assumed)", {"bytes": int(CONTEXT)}),
            Line("reserve", "fragmentation (assumed)", {"share": FRAGMENTED, "bytes that come and go": moving})]
