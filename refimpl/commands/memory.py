"""python -m refimpl memory: what each GPU holds, by kind and pipeline stage, and whether it fits.

    python -m refimpl memory --model llama3-70b --dp 8 --tp 8 --zero 1 --seq 8192 --recompute selective --gpu h100-sxm
    python -m refimpl memory --params 7.5e9 --dp 64 --zero 2              model states alone: nothing else is known
"""

import argparse
import json
from math import ceil

from refimpl.cost import flags
from refimpl.world.launch import is_root

COLUMNS = 8                                # pipeline ranks shown in a table at most
RESERVE = "without what a GPU's context and allocator take: --gpu counts it"
OF_STATES = ("params", "dp", "tp", "pp", "cp", "ep", "order", "zero", "dtype", "grad_dtype", "gpu", "machines", "gpus",
             "json", "explain")            # what --params heeds, or refuses in words of its own
HELP = "what each GPU holds: weights, gradients, optimizer, activations, buffers"


def add_arguments(parser):
    """Options of the command."""
    flags.add_model(parser, parameters=True)
    flags.add_layout(parser)
    flags.add_machine(parser)
    flags.add_output(parser)


def main(args):
    """Count and show; the exit status, 0 whether it fits or not."""
    found, report = states_alone(args) if args.params is not None else whole_model(args)
    if is_root():
        print(json.dumps(report, allow_nan=False) if args.json else describe(found, report, args.explain))
    return 0


def whole_model(args):
    """The `Footprint` of a model that is known, and the report."""
    from refimpl.cost.footprint import footprint

    model, left_out = flags.model(args)
    gpu, run = flags.machine(args), flags.training(args, model)
    found = footprint(run, gpu)
    layout = run.layout
    sizes = {axis: getattr(layout, axis) for axis in ("dp", "tp", "pp", "cp", "ep", "expert_tp")}
    return found, {
        "model": model.name, "parameters": model.parameters, "active_parameters": model.active_parameters,
        "layout": sizes, "gpus": layout.world, "sequence": run.sequence, "micro_batch": run.micro_batch,
        "microbatches": run.microbatches, "schedule": run.schedule, "chunks": run.chunks, "zero": run.zero,
        "bytes_per_parameter": run.states.bytes, "convention": run.states.convention,
        **by_kind(found, gpu), "layers": [len(run.layers_of(rank)) for rank in range(layout.pp)],
        "assumed": flags.notes(args, run) + ([] if gpu else [RESERVE]), "not_understood": left_out,
    }


def states_alone(args):
    """The same of so many parameters: tp and pp cut them evenly, ZeRO over dp and cp."""
    from refimpl.cost.footprint import Footprint, reserve, state_lines
    from refimpl.cost.states import States

    given = [f"--{name.replace('_', '-')}" for name, usual in defaults().items()
             if name not in OF_STATES and getattr(args, name) != usual]
    if given:
        raise ValueError(f"--params {args.params:g} with {', '.join(given)}: give the model, or only its parameters "
                         "and how they are cut: --dp, --tp, --pp, --cp, --zero, --dtype, --grad-dtype")
    layout, gpu, states = flags.layout(args), flags.machine(args), States(args.dtype, args.grad_dtype, args.zero)
    if layout.ep > 1:
        raise ValueError(f"--ep {layout.ep} with --params: how many of them are experts' is not known; give the model")
    lines = state_lines(ceil(args.params / (layout.tp * layout.pp)), states, layout.dp * layout.cp)
    found = Footprint([lines + (reserve(lines) if gpu is not None else [])])
    return found, {
        "parameters": int(args.params), "gpus": layout.world, "zero": args.zero, "bytes_per_parameter": states.bytes,
        "convention": states.convention, **by_kind(found, gpu),
        "assumed": ["model states alone: of a model without sizes, activations are not known"], "not_understood": [],
    }


def defaults():
    """Every option of the command with its default."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return vars(parser.parse_args([]))


def by_kind(found, gpu):
    """What every command says of memory: bytes by kind and stage, the worst stage, and whether it fits a GPU."""
    from refimpl.cost.footprint import KINDS

    ranks = range(len(found.stages))
    report = {
        "memory": {kind: [found.kinds(rank)[kind] for rank in ranks] for kind in KINDS},
        "stage_bytes": [found.total(rank) for rank in ranks], "worst_stage": found.worst,
        "total_bytes": found.total(),
        "lines": [{"kind": line.kind, "what": line.what, "bytes": line.bytes, "formula": line.formula}
                  for line in found.stages[found.worst]],
    }
    if gpu is not None:
        report |= {"gpu": gpu.name, "gpu_source": gpu.source, "usable_bytes": int(gpu.memory),
                   "fits": found.total() <= gpu.memory}
    return report


def describe(found, report, explain):
    """The report as text: a line a kind, the worst stage beside all others, or a line for everything."""
    lines = [title(report)]
    if explain:
        lines += explained(report)
    else:
        lines += table(report)
    lines += verdict(report)
    if explain and "gpu" in report:
        lines.append(f"{report['gpu']}: {report['gpu_source']}")
    lines += [f"assumed: {note}" for note in report["assumed"]]
    if report["not_understood"]:
        lines.append(f"config.json: not understood, and left out: {', '.join(report['not_understood'])}")
    return "\n".join(lines)


def title(report):
    """What was counted, in two or three lines."""
    if "model" not in report:
        what = f"{report['parameters'] / 1e9:.6g} billion parameters on {_gpus(report['gpus'])}, ZeRO {report['zero']}"
        return f"{what}\n{report['convention']}\n"
    total, active = report["parameters"], report["active_parameters"]
    active = f", {active / 1e9:.2f} active" if active < total else ""
    cut = ", ".join(f"{axis} {size}" for axis, size in report["layout"].items()
                    if size > 1 and (axis != "expert_tp" or report["layout"]["ep"] > 1)) or "not cut"
    chunks = f", {report['chunks']} chunks" if report["chunks"] > 1 else ""
    return (f"{report['model']}: {total / 1e9:.2f} billion parameters{active}, on {_gpus(report['gpus'])}: {cut}, "
            f"ZeRO {report['zero']}\n{report['sequence']:,} positions, micro-batches of {report['micro_batch']}, "
            f"{report['microbatches']} a step, {report['schedule']}{chunks}\n{report['convention']}\n")


def table(report):
    """A line a kind, in GB, a column for each pipeline rank; of many, the first, the worst and the last few."""
    ranks, worst = list(range(len(report["stage_bytes"]))), report["worst_stage"]
    if len(ranks) > COLUMNS:
        ranks = sorted({0, 1, worst, ranks[len(ranks) // 2], *ranks[-2:]})
    head = [""] if len(report["stage_bytes"]) == 1 else [f"rank {rank}{'*' * (rank == worst)}" for rank in ranks]
    lines = [" " * 16 + "".join(name.rjust(10) for name in head)] if len(head) > 1 else []
    for kind, held in report["memory"].items():
        if any(held):
            lines.append(f"{kind:16}" + "".join(f"{held[rank] / 1e9:10.3f}" for rank in ranks) + " GB")
    lines.append(f"{'total':16}" + "".join(f"{report['stage_bytes'][rank] / 1e9:10.3f}" for rank in ranks) + " GB")
    return lines + (["pipeline ranks; * holds most"] if len(head) > 1 else [])


def explained(report):
    """Every line of the worst stage with the factors that it is the product of."""
    lines, kind = [], None
    if len(report["stage_bytes"]) > 1:
        lines.append(f"pipeline rank {report['worst_stage']}, which holds most:")
    for line in report["lines"]:
        if line["kind"] != kind:
            kind = line["kind"]
            held = report["memory"][kind][report["worst_stage"]]
            lines.append(f"{kind:16}{held / 1e9:10.3f} GB")
        lines.append(f"    {line['bytes'] / 1e9:10.3f}  {line['what']}: {line['formula']}")
    return [*lines, f"{'total':16}{report['total_bytes'] / 1e9:10.3f} GB"]


def verdict(report):
    """The worst GPU's total in both units, and beside a GPU whether it fits."""
    total = report["total_bytes"]
    lines = ["", f"{total / 1e9:.2f} GB ({total / 2**30:.2f} GiB) on the worst GPU"]
    if "gpu" in report:
        room = report["usable_bytes"] - total
        word = f"fits {report['gpu']}" if room >= 0 else f"does not fit {report['gpu']}"
        lines[-1] += (f"; {word}, which has {report['usable_bytes'] / 1e9:.2f} GB: "
                      f"{abs(room) / 1e9:.2f} GB {'left' if room >= 0 else 'too much'}")
    return lines


def _gpus(count):
    return f"{count:,} GPU{'s' * (count > 1)}"
