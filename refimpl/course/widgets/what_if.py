"""What if: a known layout beside yours, in seconds of a step and in GB of the fullest GPU.

    step     as it was   |products|moved|again|messages|bubble|replicas|   21 s      MFU 49%
             yours       |products|moved|...                              23 s
    memory   as it was   |weights|gradients|optimizer|activations|other|  35 GB     : the GPU's memory

Seconds are cost/step.py's, bytes cost/footprint.py's. What is changed may be the layout, or the machine: links of
another bandwidth, more GPUs, longer sequences.
"""

from dataclasses import replace

from refimpl.cost.footprint import footprint
from refimpl.cost.hardware import Link
from refimpl.cost.hardware import find as find_gpu
from refimpl.cost.step import step
from refimpl.course.widgets.cases import CASES, FIRST, training_of
from refimpl.course.widgets.interactive import Explorer, option, stops
from refimpl.course.widgets.memory_bar import HIGH, LEFT, bar, by_colour, capacity, gb, total_of
from refimpl.course.widgets.svg import box, legend, picture, text, width_of

PARTS = {                                  # what a step's parts are called, with the colour of what they are
    "products": ("matrix products", "forward"), "moved": ("norms, masks: memory", "forward"),
    "again": ("recomputed", "purple"), "messages": ("waiting for tp, cp, ep, pp", "backward"),
    "bubble": ("bubble", "idle"), "replicas": ("sums over replicas, optimizer", "weight")}
WIDE = 640
START = dict(tp=1, pp=1, cp=1, ep=1, expert_tp=0, zero=0, chunks=1, micro_batch=1, recompute="none", network=1.0,
             gpus=1.0, sequence=1.0)


def draw_what_if(case=FIRST, network=1.0, **settings):
    """The case's own layout and the one of the settings, compared: a `Picture`.

    network    bandwidth between nodes, times what it is; settings: those of `cases.training_of`
    """
    known = CASES[case]
    settings = known.start | settings
    card = find_gpu(known.gpu)
    slower = replace(card, network=Link(card.network.alpha, card.network.bandwidth * network))
    before, after = training_of(known, **known.start), training_of(known, **settings)
    steps = step(before, card), step(after, slower)
    held = footprint(before, card), footprint(after, card)
    factor = tokens_per_second(steps[1]) / tokens_per_second(steps[0])
    fits = held[1].total() <= card.memory
    same = after == before and network == 1
    title = (f"{case}: as it was" if same else
             f"{'Faster' if factor > 1.005 else 'Slower' if factor < 0.995 else 'As fast'}: {factor:.2f} times the "
             f"tokens a second{'' if fits else ', but it does not fit'}")
    shapes = [text(12, 24, title, 16, bold=True),
              text(12, 43, f"{case}, {known.batch:,} sequences of {known.sequence:,} a step", 12, kind="faint"),
              text(12, 59, f"As it was: {known.notes}", 12, kind="faint"),
              text(12, 84, "A step, in seconds", bold=True)]
    scale = WIDE / max(one.seconds for one in steps)
    for k, (name, one) in enumerate(zip(("as it was", "yours"), steps)):
        shapes.append(time_bar(94 + 56 * k, name, one, scale, layout_words(one.training)))
    shapes.append(legend(LEFT, 214, [("forward", "products and memory"), ("purple", "recomputed"),
                                     ("backward", "messages waited for"), ("idle", "bubble"),
                                     ("weight", "replicas, optimizer")]))
    shapes.append(text(12, 244, "Memory of the fullest GPU", bold=True))
    scale = WIDE / max(*(min(one.total(), 2.6 * card.memory) for one in held), 1.1 * card.memory)
    for k, (name, one) in enumerate(zip(("as it was", "yours"), held)):
        shapes.append(bar(256 + 32 * k, name, by_colour(one), scale, bold=k == 1))
    totals = [total_of(256 + 32 * k, by_colour(one), scale, bold=k == 1) for k, one in enumerate(held)]
    shapes += [capacity(card, scale, 250, 316), *totals, legend(LEFT, 356, [
        ("forward", "weights"), ("backward", "gradients"), ("weight", "optimizer"), ("purple", "activations"),
        ("idle", "other")])]
    shapes += figures(392, steps)
    losses = grouped(steps[1])
    largest = max((name for name in losses if name not in ("products", "moved")), key=losses.get)
    return picture(930, 480, *shapes, title=title,
                   words=f"A step takes {steps[1].seconds:.3g} s, {steps[0].seconds:.3g} s as it was; MFU "
                   f"{steps[1].mfu:.1%}, {steps[0].mfu:.1%}. The largest loss is {PARTS[largest][0]}, "
                   f"{losses[largest]:.2f} s. The fullest GPU holds {gb(held[1].total())} of {gb(card.memory)}.")


def grouped(one):
    """A step's seconds by PARTS."""
    parts = dict(one.breakdown)
    messages = sum(parts.pop(name) for name in ("tp", "cp", "ep", "pp"))
    replicas = parts.pop("dp") + parts.pop("optimizer")
    return {name: parts.get(name, 0.0) for name in ("products", "moved", "again")} | {
        "messages": messages, "bubble": parts["bubble"], "replicas": replicas}


def tokens_per_second(one):
    """Of all GPUs."""
    return one.training.global_batch * one.training.sequence / one.seconds


def layout_words(training):
    """A layout in one line: "DP 16 x TP 8 x PP 8, ZeRO 1, ..."."""
    layout = training.layout
    axes = " x ".join(f"{axis.upper()} {getattr(layout, axis)}" for axis in ("dp", "tp", "cp", "pp")
                      if axis in ("dp", "tp") or getattr(layout, axis) > 1)
    ep = f", EP {layout.ep} of expert-TP {layout.expert_tp}" if layout.ep > 1 else ""
    chunks = f", {training.chunks} chunks" if training.chunks > 1 else ""
    return (f"{axes}{ep}, ZeRO {training.zero}{chunks}, {training.microbatches} micro-batches of "
            f"{training.micro_batch}, recompute {training.recompute}")


def time_bar(y, label, one, scale, words):
    """A step as a stacked bar, what it is below it."""
    shapes, x = [text(LEFT - 8, y + 18, label, 13, "end", label == "yours")], LEFT
    for name, seconds in grouped(one).items():
        wide = seconds * scale
        name_, kind = PARTS[name]
        shown = f"{seconds:.2f}" if width_of(f"{seconds:.2f}", 11) + 6 < wide else ""
        shapes.append(box(x, y, max(wide - 0.7, 0), HIGH, shown, kind, 11, hint=f"{name_}: {seconds:.3f} s", round=1)
                      if wide > 0.3 else "")
        x += wide
    return ("".join(shapes) + text(x + 7, y + 18, f"{one.seconds:.3g} s, MFU {one.mfu:.1%}", 13, bold=label == "yours",
                                   kind="ink halo") + text(LEFT, y + HIGH + 16, words, 12, kind="faint"))


def figures(y, steps):
    """The numbers of both, side by side."""
    columns = [("", "as it was", "yours"),
               *((name, *(make(one) for one in steps)) for name, make in (
                   ("tokens a second", lambda one: f"{tokens_per_second(one) / 1e3:,.0f} thousand"),
                   ("model TFLOP/s a GPU", lambda one: f"{one.model_tflops:.0f}"),
                   ("MFU", lambda one: f"{one.mfu:.1%}"), ("HFU", lambda one: f"{one.hfu:.1%}"),
                   ("bubble, of the step", lambda one: f"{one.breakdown['bubble'] / one.seconds:.1%}")))]
    shapes, x = [], 24
    for name, *values in columns:
        shapes.append(text(x, y, name, 12, kind="faint"))
        shapes += [text(x, y + 24 * (k + 1), value, 13, bold=k == 1) for k, value in enumerate(values)]
        x += 100 if not name else 168
    return shapes


def WhatIf(case=FIRST):
    """The widget: a case, and everything about it that may be changed."""
    start, menu = START | CASES[case].start, option("Case", list(CASES), case)
    menu.observe(lambda change: explorer.set(**START | CASES[change["new"]].start), "value")   # before it is drawn
    explorer = Explorer(draw_what_if, {
        "case": menu,
        "tp": stops("TP", start["tp"], [1, 2, 4, 8, 16]), "pp": stops("PP", start["pp"], [1, 2, 4, 8, 16, 32]),
        "cp": stops("CP", start["cp"], [1, 2, 4, 8, 16, 32]),
        "ep": stops("EP", start["ep"], [1, 2, 4, 8, 16, 32, 64]),
        "expert_tp": option("Experts", [("cut by tp", 0), ("whole (expert-TP 1)", 1)], start["expert_tp"]),
        "zero": stops("ZeRO stage", start["zero"], [0, 1, 2, 3]),
        "chunks": stops("Chunks", start["chunks"], [1, 2, 3, 4, 5, 6, 7, 8]),
        "micro_batch": stops("Micro-batch", start["micro_batch"], [1, 2, 4, 8]),
        "recompute": option("Recompute", ["none", "selective", "full"], start["recompute"]),
        "network": stops("Network, times", 1.0, [0.1, 0.25, 0.5, 1.0, 2.0, 4.0]),
        "gpus": stops("GPUs, times", 1.0, [0.25, 0.5, 1.0, 2.0, 4.0]),
        "sequence": stops("Sequence, times", 1.0, [0.25, 0.5, 1.0, 2.0, 4.0]),
    }, name="what-if")
    return explorer
