"""The memory bar: what the fullest GPU of a layout holds, by kind, and what would change it.

    ZeRO 0  |weights|gradients|optimizer         |activations|other|   129 GB
    ZeRO 1  |weights|gradients|op|activations|other|      .           64 GB        . the GPU's memory
    ...
    rank 0  ...  below, each pipeline rank, and the product that each number is

All lengths come from cost/footprint.py, which the suite holds against what trainers were counted to hold.
"""

from refimpl.cost.footprint import footprint, held_parameters, replicas
from refimpl.cost.hardware import find as find_gpu
from refimpl.cost.models import change
from refimpl.cost.models import find as find_model
from refimpl.cost.training import Training
from refimpl.course.widgets.interactive import Explorer, option, stops, switch
from refimpl.course.widgets.svg import box, legend, line, picture, text, width_of
from refimpl.layout import Layout

COLOURS = {"weights": "forward", "gradients": "backward", "optimizer": "weight", "activations": "purple"}
OTHER = "other"
MODELS = ("gpt2-xl", "megatron-7.5b", "megatron-22b", "llama2-70b", "llama3-70b", "gpt3-175b", "llama3-405b",
          "mixtral-8x7b", "deepseek-v3")
GPUS = ("v100-32gb", "a100-40gb", "a100-80gb", "h100-sxm", "h200", "b200", "mi300x")
POWERS = [1, 2, 4, 8, 16, 32, 64, 128]
LEFT, WIDE, HIGH = 84, 740, 26                             # pixels: where bars begin, the longest one, a bar's height
SHOWN = 6                                                  # pipeline ranks at most


def training_of(model, dp=1, tp=1, pp=1, ep=1, zero=0, sequence=2048, micro_batch=1, recompute="none",
                sequence_parallel=False, flash=False, grad_dtype=None):
    """The `Training` that the controls describe: 1F1B, four micro-batches a stage."""
    found = find_model(model)
    if found.positions:
        found = change(found, positions=max(found.positions, sequence))
    return Training(found, Layout(dp=dp, tp=tp, pp=pp, ep=ep), sequence, micro_batch,
                    4 * pp if pp > 1 else 1, sequence_parallel=sequence_parallel, zero=zero, recompute=recompute,
                    flash=flash, grad_dtype=grad_dtype)


def draw_footprint(model="llama3-70b", gpu="h100-sxm", dp=8, tp=8, pp=1, ep=1, zero=0, sequence=8192,
                micro_batch=1, recompute="selective", sequence_parallel=True, flash=False, grad_dtype=None):
    """What the fullest GPU holds under each ZeRO stage, and of the chosen one ranks and numbers: a `Picture`."""
    chosen = dict(dp=dp, tp=tp, pp=pp, ep=ep, sequence=sequence, micro_batch=micro_batch, recompute=recompute,
                  sequence_parallel=sequence_parallel, flash=flash, grad_dtype=grad_dtype)
    card = find_gpu(gpu)
    stages = [footprint(training_of(model, zero=stage, **chosen), card) for stage in range(4)]
    run, mine = training_of(model, zero=zero, **chosen), stages[zero]
    total, room = mine.total(), card.memory - mine.total()
    gpus = run.layout.world
    fits = f"fits {card.name}, {gb(room)} left" if room >= 0 else f"{gb(-room)} more than {card.name} has"
    title = f"{model} on {gpus:,} GPU{'s' * (gpus > 1)}, ZeRO {zero}: {gb(total)} on the fullest, {fits}"
    scale = WIDE / min(max(stage.total() for stage in stages) * 1.02, 2.6 * card.memory)
    shapes = [text(12, 24, title, 16, bold=True),
              text(12, 44, f"{run.model.parameters / 1e9:.1f} billion parameters; {run.states.convention}", 12,
                   kind="faint"), legend(LEFT, 70, [*((kind, name) for name, kind in COLOURS.items()),
                                                    ("idle", "other: logits, buffers, reserve")])]
    top, totals = 84, []                                                # the totals lie on the line of the capacity
    for stage, held in enumerate(stages):
        shapes.append(bar(top + 32 * stage, f"ZeRO {stage}", kinds := by_colour(held), scale, bold=stage == zero))
        totals.append(total_of(top + 32 * stage, kinds, scale, bold=stage == zero))
    bottom = top + 32 * 4 - 6
    if pp > 1:
        shapes.append(text(12, bottom + 26, f"ZeRO {zero}, the pipeline's ranks: each holds layers / {pp}, and of "
                           "1F1B's micro-batches the first most", 12, kind="faint"))
        for k, rank in enumerate(ranks_shown(pp, mine.worst)):
            y, kinds = bottom + 36 + 32 * k, by_colour(mine, rank)
            shapes.append(bar(y, f"rank {rank}", kinds, scale, rank == mine.worst))
            totals.append(total_of(y, kinds, scale, rank == mine.worst))
            end = y + HIGH
        bottom = end
    shapes += [capacity(card, scale, 78, bottom), *totals]
    rows = [text(12, bottom + 34, f"The fullest GPU{f', rank {mine.worst}' if pp > 1 else ''}, in numbers", bold=True)]
    for k, row in enumerate(numbers(run, mine)):
        rows.append(number_row(bottom + 58 + 24 * k, *row))
    kinds = by_colour(mine)
    return picture(930, bottom + 58 + 24 * len(numbers(run, mine)), *shapes, *rows, title=title,
                   words=f"{', '.join(f'{name} {gb(held)}' for name, held in kinds.items())}. With ZeRO 0 to 3: "
                   f"{', '.join(gb(stage.total()) for stage in stages)}.")


def by_colour(held, rank=None):
    """Bytes of the four kinds that have a colour, and of all others together, on one pipeline rank or the fullest."""
    kinds = held.kinds(held.worst if rank is None else rank)
    found = {name: kinds.pop(name) for name in COLOURS}
    return found | {OTHER: sum(kinds.values())}


def bar(y, label, kinds, scale, bold=False):
    """A bar of stacked kinds; one that is too long ends in a broken edge."""
    shapes, x, total = [text(LEFT - 8, y + 18, label, 13, "end", bold)], LEFT, sum(kinds.values())
    edge = LEFT + WIDE
    for name, held in kinds.items():
        wide = min(held * scale, max(edge - x, 0))
        words = name if width_of(name, 11) + 8 < wide else ""
        shapes.append(box(x, y, wide, HIGH, words, COLOURS.get(name, "idle"), 11, hint=f"{name} {gb(held)}", round=1)
                      if wide > 0.3 else "")
        x += wide
    if total * scale > WIDE + 0.5:
        shapes.append(line([(edge - 9, y - 2), (edge - 4, y + 8), (edge - 10, y + 17), (edge - 5, y + HIGH + 2)],
                           "ink", 2))
    return "".join(shapes)


def total_of(y, kinds, scale, bold=False):
    """What a bar's kinds are together, behind its end."""
    total = sum(kinds.values())
    return text(LEFT + min(total * scale, WIDE) + 7, y + 18, gb(total), 13, bold=bold, kind="ink halo")


def capacity(card, scale, top, bottom):
    """A dashed line where the GPU's memory ends."""
    x = LEFT + card.memory * scale
    if x > LEFT + WIDE:
        return text(LEFT + WIDE, bottom + 16, f"{card.name} has {gb(card.memory)}, further right", 12, "end")
    return (line([(x, top), (x, bottom + 4)], "ink", 2, "5 3")
            + text(x, bottom + 17, f"{card.name} has {gb(card.memory)}", 12, "middle" if x > 160 else "start"))


def ranks_shown(pp, worst):
    """Pipeline ranks that are drawn: all of a few; of many the first, some between, the last and the fullest."""
    if pp <= SHOWN:
        return list(range(pp))
    return sorted({0, 1, pp // 2, pp - 2, pp - 1, worst})


def numbers(run, held):
    """[(kind, bytes, what it is the product of)] of the fullest pipeline rank."""
    rank = held.worst
    kinds, states, many = held.kinds(rank), run.states, replicas(run)
    own = held_parameters(run, rank)
    rows = []
    for name, item, cut in states.kinds:
        words = " + ".join(f"{count / 1e9:,.3f} billion{' of experts' * (kind == 'experts')} x {item} bytes"
                           + (f" / {many[kind]} ranks" if cut and many[kind] > 1 else "")
                           for kind, count in own.items() if count)
        rows.append((name, kinds[name], words))
    layers = len(run.layers_of(rank))
    flying = run.in_flight(rank)
    each = kinds["activations"] / (layers * flying)
    rows.append(("activations", kinds["activations"],
                 f"{layers} layers x {flying:g} micro-batch{'es' * (flying > 1)} in flight x {gb(each)} a layer"))
    others = {name: kinds[name] for name in kinds if name not in COLOURS and kinds[name]}
    largest = sorted(others, key=others.get, reverse=True)[:4]
    rows.append((OTHER, sum(others.values()), ", ".join(f"{name} {gb(others[name])}" for name in largest)))
    return rows


def number_row(y, name, held, words):
    """A line of the table below the bars."""
    return (box(24, y - 11, 12, 12, kind=COLOURS.get(name, "idle"), round=2) + text(44, y, name)
            + text(220, y, gb(held), 13, "end") + text(240, y, words, 12, kind="faint"))


def gb(nbytes):
    """Bytes in words: "52.3 GB", "0.031 GB", "1,120 GB"."""
    number = nbytes / 1e9
    if number >= 999.5:
        return f"{number:,.0f} GB"
    return f"{number:.1f} GB" if number >= 0.95 else f"{1e3 * number:.3g} MB"


def MemoryBar(model="llama3-70b", gpu="h100-sxm", dp=8, tp=8, pp=1, zero=0):
    """The widget: a model, a GPU and a layout, and what the fullest GPU holds."""
    return Explorer(draw_footprint, {
        "model": option("Model", MODELS, model), "gpu": option("GPU", GPUS, gpu),
        "dp": stops("Data-parallel", dp, [*POWERS, 256, 512, 1024]), "tp": stops("Tensor-parallel", tp, POWERS[:6]),
        "pp": stops("Pipeline", pp, [1, 2, 4, 8, 12, 16, 32]), "ep": stops("Expert-parallel", 1, POWERS[:7]),
        "zero": stops("ZeRO stage", zero, [0, 1, 2, 3]),
        "sequence": stops("Sequence", 8192, [1024 * 2**k for k in range(8)], "{:,}".format),
        "micro_batch": stops("Micro-batch", 1, [1, 2, 4, 8]),
        "recompute": option("Recompute", ["none", "selective", "full"], "selective"),
        "sequence_parallel": switch("Sequence-parallel with tp", True), "flash": switch("Flash attention"),
        "grad_dtype": option("Gradients", ["bfloat16", "float32", "both"]),
    }, name="memory-bar")
