"""The cheat sheet: one page of formulas, each with a number that the code of `cost/` has computed.

    python -m refimpl.course.cheat_sheet        writes docs/cheat_sheet.md; a test finds it out of date

A formula is words; the number beside it is the function's, for one example that all rows share, so that a formula that
has been changed changes the page.
"""

from pathlib import Path

from refimpl.cost import alpha_beta, context, memory, models, moe, pipeline, traffic
from refimpl.course.plots.files import write_text

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
    zero = lambda stage, k=1: sum(traffic.zero_step([64 * 10**6], 64, 0, stage, k).values()) / 10**6
    state = lambda stage: states_per_parameter(stage, 64) * 7.5
    bubble, interleaved = (pipeline.bubble(name, 8, 64, v) / (64 * 3) for name, v in (("1f1b", 1), ("interleaved", 2)))
    return [
        ("Collectives, n elements over P ranks", [
            ("ring all-reduce, sent by a rank", "2 (P-1)/P n", "P=4, n=100", f"{ring(100, 4):g}"),
            ("its time", "2 (P-1) α + 2 (P-1)/P n β", "P=8, 1 GB, α=5 µs, 100 GB/s",
             f"{alpha_beta.ring_all_reduce(8, 5e-6, 1e9 / 1e11) * 1e3:.2f} ms"),
            ("recursive doubling", "lg P (α + n β)", "the same",
             f"{alpha_beta.doubling_all_reduce(8, 5e-6, 1e9 / 1e11) * 1e3:.2f} ms"),
            ("reduce-scatter, all-gather", "(P-1)/P n each", "P=4, n=100",
             f"{traffic.ring_reduce_scatter(100, 4, 0):g}"),
        ]),
        ("Memory", [
            ("model states, mixed precision, Adam", "2 + 2 + 12 = 16 bytes a parameter", "7.5B", f"{state(0):.0f} GB"),
            ("ZeRO-1", "4 ψ + 12 ψ/N", "N=64", f"{state(1):.1f} GB"),
            ("ZeRO-2", "2 ψ + 14 ψ/N", "N=64", f"{state(2):.1f} GB"),
            ("ZeRO-3", "16 ψ/N", "N=64", f"{state(3):.1f} GB"),
            ("parameters of a GPT", "12 l h² (1 + 13/(12h) + (V+s)/(12 l h))", "GPT-3",
             f"{gpt3.parameters / GB:.1f}e9"),
            ("a layer's activations, float16", "s b h (34 + 5 a s/h)", "GPT-3", f"{layer():.0f} s b h"),
            ("tensor parallel", "s b h (10 + 24/t + 5 a s/(h t))", "t=8", f"{layer(t=t):.2f} s b h"),
            ("with sequence parallelism", "s b h (34/t + 5 a s/(h t))", "t=8",
             f"{layer(t=t, sequence_parallel=True):.2f} s b h"),
            ("selective recomputation", "34 s b h, /t with SP", "t=8, SP",
             f"{layer(t=t, sequence_parallel=True, recompute='selective'):.2f} s b h"),
            ("full recomputation", "2 s b h", "", f"{layer(recompute='full'):.0f} s b h"),
        ]),
        ("Sent by a rank", [
            ("data parallelism, ZeRO-1", "2 ψ (N-1)/N", "N=64, ψ=64e6", f"{zero(1):.0f}e6 elements"),
            ("ZeRO-2, k micro-batches", "(k+1) ψ (N-1)/N", "k=8", f"{zero(2, 8):.0f}e6 elements"),
            ("ZeRO-3, k micro-batches", "3 k ψ (N-1)/N", "k=8", f"{zero(3, 8):.0f}e6 elements"),
            ("tensor parallelism, a layer", "8 b s h (t-1)/t", "t=8", f"{block() / sbh:.2f} b s h"),
            ("with sequence parallelism", "10 b s h (t-1)/t", "t=8",
             f"{block(sequence_parallel=True) / sbh:.2f} b s h"),
            ("pipeline, a boundary and micro-batch", "b s h each way", "", "2 b s h"),
            ("experts, an all-to-all (4 a layer)", "tokens k h (ep-1)/ep", "4096 tokens, k=2, h=4096, ep=8",
             f"{moe.balanced_all_to_all(4096, 2, 4096, 8) * 2 / MIB:.0f} MiB in bfloat16"),
        ]),
        ("Pipelines, p stages, m micro-batches, v chunks", [
            ("bubble of the ideal time", "(p-1)/m, interleaved (p-1)/(v m)", "p=8, m=64",
             f"{bubble:.2%}, interleaved with v=2 {interleaved:.2%}"),
            ("bubble of the total time", "(p-1)/(m+p-1)", "p=8, m=64", f"{bubble / (1 + bubble):.2%}"),
            ("micro-batches kept, stage 0", "GPipe m, 1F1B p", "p=8, m=64",
             f"{pipeline.in_flight('gpipe', 8, 64, 1, 0):.0f}, {pipeline.in_flight('1f1b', 8, 64, 1, 0):.0f}"),
        ]),
        ("Context parallelism, P ranks", [
            ("positions on a rank", "s/P: linear, not constant", "s=131072, P=16", f"{131072 // 16:,}"),
            ("causal efficiency, contiguous", "tends to P/(2P-1)", "P=8, s=2^20",
             f"{context.efficiency(2**20, 8, 'contiguous'):.1%}"),
        ]),
        ("Work", [
            ("FLOPs of a step", "72 B l s h² (1 + s/(6h) + V/(12 l h))", "GPT-3, one sequence",
             f"{gpt3.flops(1) / 1e15:.2f}e15"),
            ("with full recomputation", "96 B l s h² (1 + s/(6h) + V/(16 l h))", "the same",
             f"{gpt3.flops(1, recompute='full') / 1e15:.2f}e15"),
        ]),
    ]


def states_per_parameter(stage, N):
    """Bytes of model states for each parameter, large models on N ranks."""
    return sum(memory.model_states([10**9 * N], N, stage).values()) / (10**9 * N)


def page():
    """The cheat sheet as Markdown."""
    lines = ["# Cheat sheet", "", "Letters: s sequence, b micro-batch, h hidden, a heads, l layers, V vocabulary, ψ "
             "parameters, N data-parallel ranks, t tensor-parallel ranks. Every number is computed by "
             "`refimpl.cost`; this page is written by `python -m refimpl.course.cheat_sheet`.", ""]
    for heading, entries in rows():
        lines += [f"## {heading}", "", "| what | formula | example | is |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(entry)} |" for entry in entries] + [""]
    return "\n".join(lines)


if __name__ == "__main__":
    write_text(PAGE, page())
    print(PAGE)
