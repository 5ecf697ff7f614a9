"""The cheat sheet: one page of formulas, each with a number that the code of `cost/` has computed.

    python -m refimpl.course.cheat_sheet        writes docs/cheat_sheet.md; a test finds it out of date

A formula is words; the number beside it is the function's, for one example that all rows share, so that a formula that
has been changed changes the page.
"""

from pathlib import Path

from refimpl.cost import alpha_beta, context, hardware, memory, models, moe, pipeline, step_traffic, traffic
from refimpl.cost.seat import Seat
from refimpl.cost.states import States
from refimpl.cost.training import Training
from refimpl.course.plots.files import write_text
from refimpl.course.widgets.restart_explorer import between_failures, young
from refimpl.layout import Layout

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cheat_sheet.md"
MIB, GB = 2**20, 1e9


def rows():
    """[(heading, [(what, formula, example, number)])]"""
    gpt3 = models.find("gpt3-175b")
    s, b, h, a, t = 2048, 1, gpt3.hidden, gpt3.heads, 8
    sbh = s * b * h
    layer = lambda **how: memory.layer_activations(s, b, h, a, **how) / sbh
    ring = lambda n, P: traffic.ring_all_reduce(n, P, 0)
    block = lambda **how: sum(traffic.tensor_parallel_block(b, s, h, t, 0, **how).values())
    zero = lambda stage, m=1: sum(traffic.zero_step([64 * 10**6], 64, 0, stage, m).values()) / 10**6
    state = lambda **how: States(**how).per_parameter(64) * 7.5
    bubble, interleaved, split = (pipeline.bubble(name, 8, 64, v) / (64 * 3)
                                  for name, v in (("1f1b", 1), ("interleaved", 2), ("zb_h1", 1)))
    keeps = lambda name, v=1: pipeline.in_flight(name, 8, 64, v, 0)
    middle = Seat(Training(gpt3, Layout(pp=8), s), 1)                  # sends to either side
    sent_on = step_traffic.totals(step_traffic.rows(middle))["pp"][1] / middle.training.item
    positions = Training(models.find("llama3-70b"), Layout(cp=16), 131072).positions
    long = dict(b=1, s=8192, kv_heads=8, d=128, P=8)                   # Llama 3 70B: 64 query heads, g = 8 for each
    days = lambda flops: flops * gpt3.parameters * 300e9 / (1024 * 140e12) / 86400
    between = between_failures(16384, years=5)
    return [
        ("Collectives, n elements over P ranks", [
            ("ring all-reduce, sent by a rank", "2 (P-1)/P n", "P=4, n=100", f"{ring(100, 4):g}"),
            ("its time", "2 (P-1) α + 2 (P-1)/P n β", "P=8, 1 GB, α=5 µs, 100 GB/s",
             f"{alpha_beta.ring_all_reduce(8, 5e-6, 1e9 / 1e11) * 1e3:.2f} ms"),
            ("recursive doubling", "lg P (α + n β)", "the same",
             f"{alpha_beta.doubling_all_reduce(8, 5e-6, 1e9 / 1e11) * 1e3:.2f} ms"),
            ("halving and doubling, P a power of 2", "2 lg P α + 2 (P-1)/P n β", "the same",
             f"{alpha_beta.rabenseifner_all_reduce(8, 5e-6, 1e9 / 1e11) * 1e3:.2f} ms"),
            ("reduce-scatter, all-gather", "(P-1)/P n each", "P=4, n=100",
             f"{traffic.ring_reduce_scatter(100, 4, 0):g}"),
        ]),
        ("Memory", [
            ("model states, Adam; weights, gradients in bfloat16", "2 + 2 + 12 = 16 bytes a parameter", "7.5B",
             f"{state():.0f} GB"),
            ("ZeRO-1, of these", "4 ψ + 12 ψ/N", "N=64", f"{state(zero=1):.1f} GB"),
            ("ZeRO-2, of these", "2 ψ + 14 ψ/N", "N=64", f"{state(zero=2):.1f} GB"),
            ("ZeRO-3, of these", "16 ψ/N", "N=64", f"{state(zero=3):.1f} GB"),
            ("with gradients in float32", "2 + 4 + 12 = 18 bytes a parameter", "7.5B",
             f"{state(grad_dtype='float32'):.0f} GB"),
            ("parameters of a GPT", "12 l h² (1 + 13/(12h) + (V+s)/(12 l h))", "GPT-3",
             f"{gpt3.parameters / GB:.1f}e9"),
            ("a layer's activations, float16", "s b h (34 + 5 a s/h)", "GPT-3", f"{layer():.0f} s b h"),
            ("tensor parallel", "s b h (10 + 24/t + 5 a s/(h t))", "t=8", f"{layer(t=t):.2f} s b h"),
            ("with sequence parallelism", "s b h (34/t + 5 a s/(h t))", "t=8",
             f"{layer(t=t, sequence_parallel=True):.2f} s b h"),
            ("selective recomputation", "34 s b h, /t with SP", "t=8, SP",
             f"{layer(t=t, sequence_parallel=True, recompute='selective'):.2f} s b h"),
            ("full recomputation", "2 s b h", "GPT-3", f"{layer(recompute='full'):.0f} s b h"),
        ]),
        ("Sent by a rank: for data parallelism in a step, else for a micro-batch", [
            ("data parallelism, ZeRO-1", "2 ψ (N-1)/N", "N=64, ψ=64e6", f"{zero(1):.0f}e6 elements"),
            ("ZeRO-2, m micro-batches", "(m+1) ψ (N-1)/N", "m=8", f"{zero(2, 8):.0f}e6 elements"),
            ("ZeRO-3, m micro-batches", "3 m ψ (N-1)/N", "m=8", f"{zero(3, 8):.0f}e6 elements"),
            ("tensor parallelism, a layer", "8 b s h (t-1)/t", "t=8", f"{block() / sbh:.2f} b s h"),
            ("with sequence parallelism", "10 b s h (t-1)/t", "t=8",
             f"{block(sequence_parallel=True) / sbh:.2f} b s h"),
            ("ring attention, a layer forward", "2 b s h/g (P-1)/P", "P=8, g=8, h=8192, s=8192",
             f"{context.ring_attention(**long)['forward'] / MIB:g} MiB in bfloat16"),
            ("Ulysses, the same", "(2 + 2/g) b s h/P (P-1)/P", "the same",
             f"{context.ulysses_attention(heads=64, **long)['forward'] / MIB:g} MiB in bfloat16"),
            ("pipeline, a rank in the middle", "b s h each way", "GPT-3, p=8", f"{sent_on / sbh:g} b s h"),
            ("experts, an all-to-all (4 a layer)", "tokens k h (ep-1)/ep", "4096 tokens, k=2, h=4096, ep=8",
             f"{moe.balanced_all_to_all(4096, 2, 4096, 8) * 2 / MIB:.0f} MiB in bfloat16"),
        ]),
        ("Pipelines, p stages, m micro-batches, v chunks", [
            ("bubble of the ideal time", "(p-1)/m, interleaved (p-1)/(v m)", "p=8, m=64",
             f"{bubble:.2%}, interleaved with v=2 {interleaved:.2%}"),
            ("bubble of the total time", "(p-1)/(m+p-1)", "p=8, m=64", f"{bubble / (1 + bubble):.2%}"),
            ("ZB-H1, backward split in B and W", "(p-1)(F+B-W) of m (F+B+W)", "p=8, m=64, F=B=W", f"{split:.2%}"),
            ("micro-batches kept, stage 0", "GPipe m, 1F1B min(p, m), interleaved p + (p-1)/v", "p=8, m=64, v=2",
             f"{keeps('gpipe'):g}, {keeps('1f1b'):g}, {keeps('interleaved', 2):g}"),
        ]),
        ("Context parallelism over P ranks; experts", [
            ("positions on a rank", "s/P: linear, not constant", "s=131072, P=16", f"{positions:,}"),
            ("causal efficiency, contiguous", "tends to P/(2P-1)", "P=8, s=2^20",
             f"{context.efficiency(2**20, 8, 'contiguous'):.1%}"),
            ("tokens that an expert takes", "k s/E times a factor, rounded up", "s=4096, E=8, k=2, factor 1.25",
             f"{moe.capacity(2, 4096, 8, 1.25):,}"),
        ]),
        ("Work", [
            ("FLOPs of a step", "72 B l s h² (1 + s/(6h) + V/(12 l h))", "GPT-3, one sequence",
             f"{gpt3.flops(1) / 1e15:.2f}e15"),
            ("with full recomputation", "96 B l s h² (1 + s/(6h) + V/(16 l h))", "the same",
             f"{gpt3.flops(1, recompute='full') / 1e15:.2f}e15"),
            ("MFU, if HFU counts full recomputation", "HFU 6/8, nearly", "the same, HFU 52%",
             f"{0.52 * gpt3.flops(1) / gpt3.flops(1, recompute='full'):.0%}"),
            ("seconds for T tokens, n GPUs of X FLOP/s", "6 ψ T/(n X), recomputed 8 ψ T/(n X)",
             "GPT-3, T=300e9, n=1024, X=140e12", f"{days(6):.0f} days, {days(8):.0f} days"),
        ]),
        ("Running", [
            ("a checkpoint, all in float32", "12 bytes a parameter", "405B",
             f"{States().optimizer * 405 / 1e3:.2f} TB"),
            ("M, from one failure to the next", "life of a GPU/GPUs", "16,384 GPUs, 5 years", f"{between:.0f} min"),
            ("interval between checkpoints of δ", "sqrt(2 δ M)", "the same, δ=2 min", f"{young(2, between):.0f} min"),
        ]),
        ("GPUs, dense bfloat16; links each way", [
            (name, "peak; NVLink; network; memory", "", data_sheet(hardware.find(name)))
            for name in ("a100-80gb", "h100-sxm", "b200")
        ]),
    ]


def data_sheet(gpu):
    """What a training run can count on, as text."""
    links = ", ".join(f"{gpu.link(span).bandwidth / GB:.0f} GB/s" for span in ("domain", "network"))
    return f"{gpu.flops('bfloat16') / 1e12:.0f} TFLOP/s, {links}, {gpu.memory / GB:.1f} GB"


def page():
    """The cheat sheet as Markdown."""
    lines = ["# Cheat sheet", "", "Letters: s sequence, b sequences of a micro-batch, h hidden, a heads, g query heads "
             "for each key-value head, l layers, V vocabulary, ψ parameters; N data-parallel ranks, t tensor-parallel "
             "ranks, p pipeline stages, ep expert-parallel ranks, P ranks of any group; m micro-batches of a step, B "
             "sequences of a step; E experts, k of them for a token; α seconds a message, β seconds a byte, n elements "
             "or bytes. Every number is computed by the code of the course; this page is written by "
             "`python -m refimpl.course.cheat_sheet`.", ""]
    for heading, entries in rows():
        lines += [f"## {heading}", "", "| what | formula | example | is |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(entry)} |" for entry in entries] + [""]
    return "\n".join(lines)


if __name__ == "__main__":
    write_text(PAGE, page())
    print(PAGE)
