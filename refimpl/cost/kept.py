"""What one layer keeps of one micro-batch from its forward to its backward, line by line.

    s b h (34 + 5 a s/h) bytes of a GPT-2 style layer in float16, dropout masks of one byte each:

    norm 1: input 2    attention: input 2    queries 2    keys, values 4    probabilities 5 a s/h    output 2    mask 1
    norm 2: input 2    MLP: input 2          hidden 8 + 8                                                        mask 1

    tp      cuts what lies between the inputs of the two blocks and their outputs; with sp also those and the masks
    cp      cuts everything, along the sequence; a ring, as flash attention, keeps a number a row and no probabilities
    fewer key-value heads, SwiGLU's third array, latent attention, experts: the lines say how much

Every line is a product of named factors, which are what is multiplied and what --explain prints. That a GPT or a Llama
keeps as much as memory.py's formula says, the tests compare. (Korthikanti et al. 2022, section 4. Latent attention,
experts: our own count, of what the straightforward code keeps.)
"""

from math import ceil

from refimpl.cost.traffic import chunk


def layer_lines(training, layer, recompute=None):
    """What one layer keeps of one micro-batch, {what: {factor: number}}, from forward to backward."""
    model, t, item = training.model, training.layout.tp, training.item
    recompute = training.recompute if recompute is None else recompute
    inside, around, h = tokens(training), outside(training), model.hidden
    if recompute == "full":
        return {"the layer's input": {"tokens": around, "h": h, "bytes": item}}
    stream = {"tokens": around, "h": h, "bytes": item}
    found = {"norm 1: input": stream, "attention: input": stream}
    heads, kv = model.heads // t, max(model.kv_heads // t, 1)
    if model.latent:
        x = model.latent
        found["latents, before and after their norm"] = {"tokens": inside, "features": 2 * (x.q + x.kv) + x.rotary,
                                                         "bytes": item}
        kv = heads
    kv = max(kv, training.head_ranks)                           # who exchanges heads has at least one in the end
    found["queries"] = {"tokens": inside, "heads": heads, "features": model.key, "bytes": item}
    found["keys, values"] = {"tokens": inside, "kv heads": kv, "features": model.key + model.value, "bytes": item}
    found |= core_lines(training) if recompute == "none" else {}
    found["attention: output"] = {"tokens": inside, "heads": heads, "features": model.value, "bytes": item}
    mask = {"tokens": around, "h": h, "byte": 1}
    found |= {"mask 1": mask} if model.dropout else {}
    found |= {"norm 2: input": stream, "MLP: input": stream}
    found |= _mlp_lines(training) if model.is_dense(layer) else _expert_lines(training)
    return found | ({"mask 2": mask} if model.dropout else {})


def core_lines(training):
    """What the attention's core keeps of one micro-batch beside queries, keys, values and its output."""
    model, b, s = training.model, training.micro_batch, training.sequence
    heads, rows = model.heads // training.layout.tp // training.head_ranks, training.positions * training.head_ranks
    item = training.item
    if training.flash or rows < s:                              # a ring merges blocks; it has nothing else to keep
        return {"log-sum-exp of the scores": {"b": b, "rows": rows, "heads": heads, "bytes": max(item, 4)}}
    each = 2 * item + 1 if model.dropout else item              # probabilities, dropped ones and the mask
    return {"probabilities": {"b": b, "rows": rows, "columns": s, "heads": heads, "bytes": each}}


def _mlp_lines(training, name="MLP", ffn=None):
    model, t = training.model, training.layout.tp
    ffn = model.ffn if ffn is None else ffn
    return {f"{name}: hidden": {"tokens": tokens(training), "ffn": chunk(ffn, t, t - 1), "arrays": model.ups + 1,
                                "bytes": training.item}}


def _expert_lines(training):
    """Balanced: a rank's experts get as many tokens as its own ranks send, top_k copies of each."""
    model, layout, item = training.model, training.layout, training.item
    copies, ffn = expert_tokens(training), chunk(model.expert_ffn, layout.expert_tp, layout.expert_tp - 1)
    moved = {"copies": copies, "h": model.hidden, "bytes": item}
    router = {"tokens": outside(training), "experts": model.experts, "bytes": max(item, 4)}
    found = {"router: probabilities": router, "experts: input": moved,
             "experts: hidden": {"copies": copies, "ffn": ffn, "arrays": model.ups + 1, "bytes": item},
             "experts: output": moved}
    if model.shared_experts:
        found |= _mlp_lines(training, "shared experts", model.shared_experts * model.expert_ffn)
    return found


def expert_tokens(training):
    """Tokens, with their copies, that the experts of one rank work on in a micro-batch, if all have as much to do."""
    layout = training.layout
    own = tokens(training) if layout.expert_tp == layout.tp else ceil(tokens(training) / layout.tp)
    return own * training.model.top_k


def tokens(training):
    """Tokens of a micro-batch inside the two blocks of a layer: those of a context-parallel rank."""
    return training.micro_batch * training.positions


def outside(training):
    """Tokens outside the blocks: a share of them where the sequence is cut along tp, too."""
    return tokens(training) // training.layout.tp if training.sequence_parallel else tokens(training)

