"""What a planner says beside the ranking: the classical rule, what would change, where the batch ends, who is where.

    the rule        tp fills the node, pp goes across nodes until the states fit, dp takes what is left (Narayanan et
                    al. 2021, section 3: takeaways 1 and 2; ZeRO 1 is Megatron's distributed optimizer)
    sensitivity     the best layout again with half the network, half the fabric, twice the sequence; a node more
    batch limit     a replica needs a sequence: dp <= B; and p micro-batches, or the bubble is more than half
"""

from dataclasses import replace

from refimpl.cost import footprint
from refimpl.cost.hardware import Link
from refimpl.cost.models import change
from refimpl.cost.planner import divisors, plan
from refimpl.cost.step import step


def classical(question):
    """(steps of the rule in words, `Ranked` or None): what somebody would do by hand."""
    node, model = question.gpu.node_size, question.model
    works = [tp for tp in divisors(question.gpus) if node % tp == 0 and model.heads % tp == 0
             and (model.latent or model.kv_heads % tp == 0 or tp % model.kv_heads == 0)]
    tp = max(works)
    words = [f"tp {tp}: as many as a node has, and the {model.heads} heads allow; its rings stay on the fabric"]
    for pp in divisors(question.gpus // tp):
        if pp > model.layers:
            break
        reason = ""
        small = replace(question, fixed=(("tp", tp), ("pp", pp), ("cp", 1)))
        for zero in (0, 1):
            found = plan(replace(small, fixed=(*small.fixed, ("zero", zero))))
            if found.layouts:
                best = found.layouts[0]
                words += [f"pp {pp} without ZeRO does not do: {reason}"] if zero else []
                how = "with" if zero else "without"
                words += [f"pp {pp}: the fewest stages with which it fits, {how} ZeRO 1; a stage sends little, so it "
                          "may cross nodes",
                          f"dp {best.training.layout.dp}: what is left; it sends once a step"]
                return words, best
            reason = found.refused[0].reason if found.refused else "it cannot be cut so"
        words.append(f"pp {pp} does not do: {reason}")
    return words, None


def sensitivity(question, best):
    """[(what, seconds, tokens a second)] of the best layout as things change, and of the best with one node more."""
    training, gpu = best.training, question.gpu
    half = lambda link: Link(link.alpha, link.bandwidth / 2)
    tokens = training.global_batch * training.sequence
    found = [("as it is", best.seconds, tokens)]
    found.append(("half the network's bandwidth", step(training, replace(gpu, network=half(gpu.network)),
                                                       question.overlap).seconds, tokens))
    found.append(("half the fabric's bandwidth", step(training, replace(gpu, fabric=half(gpu.fabric)),
                                                      question.overlap).seconds, tokens))
    model, twice = training.model, 2 * training.sequence
    if model.positions:                                                # learned ones: as many as it takes
        model = change(model, positions=max(model.positions, twice))
    longer = replace(training, model=model, sequence=twice)
    fits = sum(line.bytes for line in footprint.worst_stage(longer, gpu)) <= gpu.memory
    found.append((f"sequences of {twice}{'' if fits else ', which do not fit'}",
                  step(longer, gpu, question.overlap).seconds, 2 * tokens))
    more, count = one_node_more(question, best), question.gpus + gpu.node_size
    used = more is not None and more.seconds < best.seconds            # the batch may not divide over so many
    found.append((f"one node more, {count} GPUs: {f'dp {more.training.layout.dp}' if used else 'it stays idle'}",
                  more.seconds if used else best.seconds, tokens))
    return [(what, seconds, count / seconds) for what, seconds, count in found]


def one_node_more(question, best):
    """The best with a node's GPUs more, tp and ep as they are; None where the batch cannot be divided so."""
    layout = best.training.layout
    fixed = (("tp", layout.tp), ("cp", layout.cp), ("ep", layout.ep), ("expert_tp", layout.expert_tp))
    found = plan(replace(question, gpus=question.gpus + question.gpu.node_size, fixed=fixed))
    return found.layouts[0] if found.layouts else None


def batch_limit(question, best):
    """In words: how many GPUs this batch can keep busy, cut as the best layout is."""
    layout, batch = best.training.layout, question.batch
    shards = layout.tp * layout.pp * layout.cp
    m = best.training.microbatches
    words = (f"{batch} sequences are enough for {batch:,} replicas, {batch * shards:,} GPUs cut as here, one sequence "
             "each; beyond, only tp, pp and cp can use more GPUs")
    if layout.pp > 1:
        share = (layout.pp - 1) / (best.training.chunks * m)
        words += (f". Each replica has {m} micro-batches for {layout.pp} stages: bubble {share:.1%} of the work; with "
                  f"half the batch {2 * share:.1%}")
    return words


def expert_groups(layout):
    """In words: which GPUs share experts, for both kinds of cutting an expert, and whether they are on one node."""
    words = [f"ep {layout.ep} multiplies nothing: dp {layout.dp} x pp {layout.pp} x cp {layout.cp} x tp {layout.tp} = "
             f"{layout.world} GPUs"]
    for expert_tp in dict.fromkeys((1, layout.tp)):
        try:
            group = replace(layout, expert_tp=expert_tp).group("ep", 0)
        except ValueError as error:
            words.append(f"expert_tp {expert_tp}: {error}")
            continue
        nodes = len({rank // layout.node_size for rank in group})
        shown = ", ".join(map(str, group if len(group) <= 8 else [*group[:4], "...", group[-1]]))
        where = "inside one node" if nodes == 1 else f"across {nodes} nodes"
        words.append(f"expert_tp {expert_tp}: ep group [{shown}], {where}")
    return words
