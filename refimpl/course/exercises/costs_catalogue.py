"""The exercises of lessons 03, 11 and 13: bytes and FLOPs to count, layouts to design. See catalogue.py."""

from refimpl.course.exercises.exercise import Exercise

FITS = {
    "wrong product": "dp x tp x pp is the number of GPUs: dp = gpus // (tp * pp).",
    "wrong shape": "Return a dict with some of the keys in the file; what you leave out has the value given there.",
    "does not divide": "tp divides the heads, stages are no more than layers, dp times micro_batch divides the batch.",
}

COSTS = [
    Exercise(
        25, "model_states", "model states under ZeRO", "03", difficulty=1, minutes=15, kind="count",
        hints=(
            "Write the bytes of one parameter first, without ZeRO: the weight, its gradient, and what Adam keeps in "
            "float32. Then ask what each stage cuts.",
            "2, `gradient`, and 12 = 4 + 4 + 4 bytes. Each stage divides what the stages before it do, and one kind "
            "more: the largest comes first.",
            "share = lambda begins: psi / ranks if zero >= begins else psi; return 2 * share(3), gradient * share(2), "
            "12 * share(1).",
        ),
        advice={
            "copy forgotten": "Adam updates a float32 copy of the weights, 4 bytes, beside two moments of 4.",
            "wrong dtype": "A gradient has as many bytes as the argument says.",
            "wrong cut": "Stage 1 cuts the optimizer, stage 2 also gradients, stage 3 also weights.",
            "off by a factor": "Bytes, not elements, and those of one rank.",
        }),
    Exercise(
        26, "layer_keeps", "what a layer keeps", "03", difficulty=3, minutes=25, kind="count",
        hints=(
            "Go through the layer as the picture in the file does. For each array that is kept: how many elements, "
            "how many bytes each, and does tensor parallelism cut it?",
            "Outside the two blocks 10 s b h bytes, which only sequence parallelism cuts. Inside 24 s b h / t. The "
            "scores' 5 a s^2 b / t go with the heads, and are not kept if they are computed again.",
            "around = t if sequence_parallel else 1; full: 2*s*b*h/around; else s*b*h*(10/around + 24/t), plus "
            "5*a*s*s*b/t with recompute 'none'.",
        ),
        advice={
            "wrong cut": "Inside the blocks heads and hidden features are cut by t. Outside all is whole, or cut along "
                         "the sequence.",
            "probabilities": "Softmax's output 2, the mask 1, the dropped probabilities 2: five bytes, a s s b times, "
                             "cut by t like the heads. They are kept with 'none' alone.",
            "copy forgotten": "Outside 4 inputs of 2 bytes and 2 masks of 1; inside queries, keys, values and the "
                              "output, 2 each, and 4 h hidden features, before and after GELU.",
            "recomputation": "'selective' computes the scores again, 'full' the whole layer from its input.",
            "wrong dtype": "A mask has one byte an element, everything else two.",
            "off by a factor": "Bytes: two for each element, one for each element of a mask.",
        }),
    Exercise(
        27, "gpt3_layout", "a layout for GPT-3", "11", difficulty=2, minutes=20, kind="design",
        hints=(
            "The states alone are 18 bytes a parameter: over how many GPUs must tp x pp cut them? Keep tp inside a "
            "node of 8. Then let `check` say what does not fit, or what takes long.",
            "With sequence_parallel, selective recomputation and ZeRO 1 there is room to spare. What is slow then? A "
            "bubble becomes smaller with chunks, and tensor-parallel messages with a smaller tp.",
            'tp, pp = 4, 8; return {"dp": gpus // 32, "tp": 4, "pp": 8, "zero": 1, "chunks": 3, "recompute": '
            '"selective", "sequence_parallel": True}.',
        ),
        advice=FITS | {
            "does not fit": "More tp x pp cuts everything, ZeRO 1 the optimizer, selective recomputation the scores.",
            "too slow": "Chunks shorten `bubble`, a smaller tp `tp`, more stages `dp`; `again` is what is recomputed.",
            "ep multiplied": "GPT-3 has no experts: leave ep out.",
        }),
    Exercise(
        28, "moe_layout", "experts inside the node", "11", difficulty=3, minutes=25, kind="design",
        hints=(
            "409 billion parameters, of which most are experts'. ep cuts those, over ranks that are there already. How "
            "many of the ranks of one node may an expert-parallel group have, and what is left for tp and dp?",
            "With expert_tp = tp an expert's shards take the tp ranks of a node, and its group reaches over nodes. "
            "With expert_tp=1 every rank has whole experts: ep=8 fills a node. What is slow then? A model as narrow as "
            "this one has little for many tp ranks; stages leave each GPU fewer gradients, and chunks must divide "
            "the 80 layers.",
            'tp, pp = 2, 16; return {"dp": gpus // 32, "tp": 2, "pp": 16, "ep": 8, "expert_tp": 1, "zero": 1, '
            '"chunks": 5, "sequence_parallel": True}.',
        ),
        advice=FITS | {
            "ep multiplied": "ep is taken out of dp and tp: dp x tp x pp alone is the number of GPUs.",
            "across nodes": "With expert_tp=1 an ep group has neighbouring ranks, else every tp-th one; a node of 8 "
                            "has room for it if the last is less than 8 from the first.",
            "does not fit": "ep, pp and ZeRO 1 cut what experts take; a smaller micro_batch what activations take.",
            "too slow": "Chunks shorten `bubble`; a larger pp leaves fewer gradients to sum, `dp`, a smaller tp less "
                        "of `tp`.",
        }),
    Exercise(
        29, "bubble_shares", "the bubble, over two denominators", "13", difficulty=1, minutes=10, kind="count",
        hints=(
            "How long is one rank idle, in units of one micro-batch through one stage? And how long does it work?",
            "Idle: p-1 slots, or (p-1)/v with v chunks. Work: m slots. The ideal time is the work, the total time is "
            "the work and the idle time.",
            "idle = (p - 1) / v; return idle / m, idle / (m + idle).",
        ),
        advice={
            "wrong denominator": "The first is idle / ideal, the second idle / (ideal + idle).",
            "wrong addends": "Each stage waits for p-1 others, and v chunks make that v times shorter.",
        }),
    Exercise(
        30, "step_flops", "model FLOPs and hardware FLOPs", "13", difficulty=2, minutes=20, kind="count",
        hints=(
            "Count forward for one token first: 2 for each element of each matrix it meets. Then the two products of "
            "attention, which grow with the sequence, and the output table, once.",
            "Forward, for B sequences: layers 24 s h^2, core 4 s^2 h each; head 2 s h V. A backward takes twice the "
            "forward. Recomputation adds the core once, or the layers once, to the second number.",
            "layer, core = 24*B*s*h*h*layers, 4*B*s*s*h*layers; model = 3*(layer + core + 2*B*s*h*V); again = "
            "{'none': 0, 'selective': core, 'full': layer + core}[recompute]; return model, model + again.",
        ),
        advice={
            "off by a factor": "A multiplication and an addition are two operations.",
            "recomputation": "Model FLOPs are what the model needs; hardware FLOPs also what is done a second time.",
            "core forgotten": "Queries times keys, then probabilities times values: 2 s^2 h each, in every layer.",
            "head forgotten": "The output table is a product of h x V for every token.",
            "wrong addends": "Backward has two products for each of forward's: for the input and for the weight.",
        }),
]
