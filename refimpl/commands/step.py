"""python -m refimpl step: how long a training step takes, what of it is what, and what share of the peak is reached.

    python -m refimpl step --model gpt3-175b --gpu a100-80gb --tp 8 --pp 8 --dp 16 --global-batch 1536 --recompute full
    python -m refimpl step ... --timeline step.svg       every action of the pipeline, drawn
    python -m refimpl step --published                   runs that papers have timed, beside the prediction
"""

import json

from refimpl.cost import flags
from refimpl.world.launch import is_root

HELP = "how long a step takes: products, links, bubble; MFU and HFU"
WORDS = {
    "products": ("matrix products", "2 m k n / (peak x share): cost/efficiency.py"),
    "moved": ("kernels that move bytes", "norms, activations, softmax, dropout: bytes / (memory bandwidth x share)"),
    "again": ("computed again", "selective: the attention's core once more; full: all of forward"),
    "tp": ("tensor parallelism", "rings of traffic's bytes over the fabric, waited for"),
    "cp": ("context parallelism", "blocks, as far as work does not hide them"),
    "ep": ("expert parallelism", "four all-to-alls a layer, over fabric and network at once"),
    "pp": ("pipeline messages", "2 m v (alpha + b s h / t / bandwidth)"),
    "bubble": ("pipeline bubble", "closed form of cost/pipeline.py, of ranks that take the mean"),
    "dp": ("replicas", "sums of gradients, gathers of parameters, as far as work does not hide them"),
    "optimizer": ("optimizer", "7 passes over gradients, 2 over Adam's memory, the weights: bytes / memory bandwidth"),
}


def add_arguments(parser):
    """Options of the command."""
    flags.add_model(parser)
    flags.add_layout(parser)
    flags.add_machine(parser)
    parser.add_argument("--no-overlap", action="store_true", help="sums over replicas begin when backward has ended")
    parser.add_argument("--timeline", metavar="FILE.svg", help="draw every action of the pipeline")
    parser.add_argument("--published", action="store_true", help="predict runs that papers have timed, and compare")
    flags.add_output(parser)


def main(args):
    """Predict and show; the exit status."""
    if args.published:
        return published(args)
    from refimpl.cost.step import step

    model, left_out = flags.model(args)
    gpu, training = flags.machine(args), flags.training(args, model)
    if gpu is None:
        raise ValueError("which GPU? Give --gpu NAME, such as --gpu h100-sxm: seconds depend on it")
    if args.timeline is not None:
        from refimpl.course.plots.files import check_plot_file
        check_plot_file(args.timeline, (".svg",), "--timeline")
    found = step(training, gpu, not args.no_overlap)
    report = reported(found) | {"assumed": assumed(args, training, gpu), "not_understood": left_out}
    if is_root():
        if args.timeline is not None:
            draw(args.timeline, found)
        print(json.dumps(report, allow_nan=False) if args.json else describe(report, args.explain))
    return 0


def assumed(args, training, gpu):
    """What was not said, a sentence each."""
    from refimpl.cost import efficiency

    notes = flags.notes(args, training) + [f"shares of the peak and of links: {efficiency.of(gpu).source}"]
    tp, node = training.layout.tp, gpu.node_size
    if 1 < tp < node and node % tp and training.layout.world > node:
        notes.append(f"tp {tp} does not divide a node of {node}: groups that cross it are not in the time")
    if training.layout.ep > 1:
        notes.append("all experts have the same load")
    return notes


def reported(found):
    """Everything the command reports, as plain numbers."""
    training, layout = found.training, found.training.layout
    return {
        "model": training.model.name, "parameters": training.model.parameters,
        "active_parameters": training.model.active_parameters, "gpu": found.gpu.name, "gpus": layout.world,
        "layout": {axis: getattr(layout, axis) for axis in ("dp", "tp", "pp", "cp", "ep", "expert_tp")},
        "global_batch": training.global_batch, "sequence": training.sequence, "micro_batch": training.micro_batch,
        "microbatches": training.microbatches, "schedule": training.schedule, "chunks": training.chunks,
        "recompute": training.recompute, "zero": training.zero,
        "step_time_s": found.seconds, "mfu": found.mfu, "hfu": found.hfu, "model_tflops_per_gpu": found.model_tflops,
        "tokens_per_second": training.global_batch * training.sequence / found.seconds,
        "breakdown_s": found.breakdown,
    }


def describe(report, explain):
    """The report as a table."""
    cut = ", ".join(f"{axis} {size}" for axis, size in report["layout"].items()
                    if size > 1 and (axis != "expert_tp" or report["layout"]["ep"] > 1)) or "not cut"
    chunks = f", {report['chunks']} chunks" if report["chunks"] > 1 else ""
    total = report["step_time_s"]
    lines = [f"{report['model']} on {report['gpus']:,} {report['gpu']}: {cut}, ZeRO {report['zero']}",
             f"{report['global_batch']} sequences of {report['sequence']:,} positions, {report['microbatches']} "
             f"micro-batches of {report['micro_batch']}, {report['schedule']}{chunks}, "
             f"recompute {report['recompute']}", ""]
    for name, seconds in report["breakdown_s"].items():
        if seconds:
            lines.append(f"{WORDS[name][0]:26}{seconds:12.4f} s {seconds / total:7.1%}")
            if explain:
                lines.append(f"    {WORDS[name][1]}")
    lines += [f"{'a step':26}{total:12.4f} s", "",
              f"MFU {report['mfu']:.1%}, HFU {report['hfu']:.1%}: {report['model_tflops_per_gpu']:.1f} TFLOP/s a GPU, "
              f"nothing counted twice; {report['tokens_per_second']:,.0f} tokens/s"]
    if explain:
        lines.append("    MFU = model FLOPs / (time x GPUs x peak); HFU counts what is computed again, too")
    lines += [f"assumed: {note}" for note in report["assumed"]]
    if report["not_understood"]:
        lines.append(f"config.json: not understood, and left out: {', '.join(report['not_understood'])}")
    return "\n".join(lines)


def draw(path, found):
    """The step's timeline as a picture."""
    from refimpl.cost.step import timeline
    from refimpl.course.plots import gantt

    gantt.save_svg(path, gantt.svg(timeline(found.training, found.ranks, found.hop)))


# Published runs


def published(args):
    """The table of cost/published.py; the exit status."""
    from refimpl.cost import published as runs

    rows = runs.rows()
    report = {"rows": [{"source": row.source, "run": row.what, "measured_s": row.measured, "predicted_s": row.predicted,
                        "error": row.error, "assumed": row.assumed} for row in rows],
              "summary": {source: {"median": middle, "worst": worst}
                          for source, (middle, worst) in runs.summary(rows).items()}}
    if is_root():
        print(json.dumps(report, allow_nan=False) if args.json else published_table(report))
    return 0


def published_table(report):
    """The same as text."""
    lines = [f"{'':44} {'measured':>9} {'predicted':>10} {'error':>7}   assumed"]
    for row in report["rows"]:
        lines.append(f"{row['run']:44} {row['measured_s']:7.2f} s {row['predicted_s']:8.2f} s {row['error']:+7.1%}   "
                     f"{row['assumed']}".rstrip())
    lines.append("")
    for source, found in report["summary"].items():
        lines.append(f"{source}: median {found['median']:.1%}, worst {found['worst']:.1%}")
    lines.append("One set of constants for the A100, none of them fitted to a row: cost/efficiency.py.")
    return "\n".join(lines)
