"""python -m refimpl plan: all layouts for a number of GPUs: which fit, which is fastest, and why the others are not.

    python -m refimpl plan --model gpt3-175b --gpu a100-80gb --gpus 1024 --global-batch 1536 --seq 2048
    python -m refimpl plan --model moe-409b --gpu h100-sxm --gpus 1024 --global-batch 1024 --tp 8 --pp 8 --ep 8
"""

import argparse
import json

from refimpl.cost import flags
from refimpl.world.launch import is_root

HELP = "all layouts for a number of GPUs: refused with the reason, the rest ranked by predicted time"
FIXED = ("tp", "pp", "cp", "dp", "ep", "expert_tp", "micro_batch", "chunks", "zero", "recompute")
REASONS = 8                                # of the refused, shown in a table at most


def add_arguments(parser):
    """Options of the command."""
    flags.add_model(parser)
    fixed = parser.add_argument_group("fixed, where only one value is to be tried")
    for name in FIXED[:8]:
        number = flags.few if name in ("pp", "chunks") else flags.count
        fixed.add_argument(f"--{name.replace('_', '-')}", type=number, metavar="N")
    fixed.add_argument("--zero", type=int, choices=range(4), help="0 to 3")
    fixed.add_argument("--recompute", choices=("none", "selective", "full"))
    run = parser.add_argument_group("run")
    run.add_argument("--global-batch", type=flags.count, metavar="N", help="sequences of a step (default: one a GPU)")
    run.add_argument("--order", default="tp-cp-dp-pp", metavar="AXES", help="fastest first (default tp-cp-dp-pp)")
    run.add_argument("--flash", action=argparse.BooleanOptionalAction, default=True,
                     help="attention in one kernel (default)")
    run.add_argument("--dtype", default="bfloat16", metavar="T", help="of weights and activations (default bfloat16)")
    run.add_argument("--grad-dtype", metavar="T", help="of gradients (default: as --dtype)")
    flags.add_machine(parser)
    parser.add_argument("--top", type=flags.count, default=10, metavar="N", help="layouts shown (default 10)")
    flags.add_output(parser)


def main(args):
    """Search and show; the exit status: 1 if nothing fits."""
    from refimpl.cost.planner import plan

    question, left_out = asked(args)
    found = plan(question)
    report = reported(found, args) | {"not_understood": left_out}
    if is_root():
        print(json.dumps(report, allow_nan=False) if args.json else describe(report, args.explain))
    return 0 if found.layouts else 1


def asked(args):
    """The `Question`, and the fields of a config.json that were not understood."""
    from refimpl.cost.planner import Question, layouts
    from refimpl.cost.states import States
    from refimpl.layout import Layout

    model, left_out = flags.model(args)
    gpu = flags.machine(args)
    missing = [f"--{name}" for name, value in (("gpu", gpu), ("gpus", args.gpus)) if value is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ValueError(f"{' and '.join(missing)} {verb} missing: such as --gpu h100-sxm --gpus 1024")
    fixed = tuple((name, getattr(args, name)) for name in FIXED if getattr(args, name) is not None)
    sizes = {name: size for name, size in fixed if name in ("tp", "pp", "cp", "dp")}
    product = 1
    for size in sizes.values():
        product *= size
    if args.gpus % product or len(sizes) == 4 and product != args.gpus:
        words = " x ".join(f"{name} {size}" for name, size in sizes.items())
        nearest = max(args.gpus // product, 1) * product
        raise ValueError(f"{words} = {product} ranks do not divide --gpus {args.gpus}; {nearest} GPUs work "
                         "(ep does not multiply)")
    if args.pp == 1 and (args.chunks or 1) > 1:
        raise ValueError(f"--pp 1 --chunks {args.chunks}: chunks are stages of a pipeline rank, and there is no "
                         "pipeline; --chunks 1, or --pp 2 or more")
    Layout(order=args.order)                                           # says if it is none
    gpu.flops(args.dtype)
    States(args.dtype, args.grad_dtype)                                # says if they are none, once and not by layout
    if (model.experts or 1) % (args.ep or 1):
        raise ValueError(f"--ep {args.ep} does not divide the {model.experts} experts of {model.name}"
                         if model.experts else f"--ep {args.ep}: {model.name} has no experts; ep may be 1")
    question = Question(model, gpu, args.gpus, args.global_batch or args.gpus, args.seq, args.flash, args.dtype,
                        args.grad_dtype, args.order, True, fixed)
    if next(layouts(question), None) is None:
        words = ", ".join(f"{name} {value}" for name, value in fixed)
        raise ValueError(f"no layout of {args.gpus} GPUs has {words}: expected expert_tp 1 or as tp, and ep that "
                         "divides the ranks that share experts")
    return question, left_out


def reported(found, args):
    """Everything the command reports, as plain numbers and words."""
    from refimpl.cost import advice

    question = found.question
    top = [entry(ranked, question.gpu) for ranked in found.layouts[:args.top]]
    report = {
        "model": question.model.name, "parameters": question.model.parameters,
        "active_parameters": question.model.active_parameters, "gpu": question.gpu.name, "gpus": question.gpus,
        "global_batch": question.batch, "usable_bytes": int(question.gpu.memory), "layouts": top,
        "fitting": len(found.layouts), "tried": found.tried,
        "refused": [refusal(refused) for refused in found.refused], "assumed": assumed(question, args),
    }
    if found.layouts:
        words, rule = advice.classical(question)
        best = found.layouts[0]
        report |= {"classical": {"steps": words, "layout": rule and entry(rule, question.gpu)},
                   "sensitivity": [{"what": what, "step_time_s": seconds, "tokens_per_second": rate}
                                   for what, seconds, rate in advice.sensitivity(question, best)],
                   "batch_limit": advice.batch_limit(question, best)}
        if question.model.experts:
            report["expert_groups"] = advice.expert_groups(best.training.layout)
    return report


def entry(ranked, gpu):
    """One layout that fits."""
    from refimpl.cost.step import step

    training, layout = ranked.training, ranked.training.layout
    starts = range(0, min(layout.world, layout.tp * max(gpu.node_size, gpu.domain_size)), layout.tp)
    predicted = step(training, gpu)
    return {axis: getattr(layout, axis) for axis in ("dp", "tp", "pp", "cp", "ep", "expert_tp")} | {
        "micro_batch": training.micro_batch, "microbatches": training.microbatches, "chunks": training.chunks,
        "schedule": training.schedule, "recompute": training.recompute, "zero": training.zero,
        "sequence_parallel": training.sequence_parallel, "step_time_s": predicted.seconds, "mfu": predicted.mfu,
        "hfu": predicted.hfu, "model_tflops_per_gpu": predicted.model_tflops, "total_bytes": ranked.bytes,
        "breakdown_s": predicted.breakdown, "tp_crosses_nodes": any(
            gpu.span(layout.group("tp", rank)) == "network" for rank in starts),
    }


def refusal(refused):
    """One that does not."""
    layout = refused.layout
    return {axis: getattr(layout, axis) for axis in ("dp", "tp", "pp", "cp", "ep", "expert_tp")} | {
        "zero": refused.zero, "reason": refused.reason}


def assumed(question, args):
    """What was not said, a sentence each."""
    from refimpl.cost import efficiency

    notes = [f"shares of the peak and of links: {efficiency.of(question.gpu).source}",
             "sequence parallelism with every tp (step, memory: --sp); sums over replicas beside backward"]
    if args.global_batch is None:
        notes.append(f"{question.batch} sequences a step, one a GPU, as --global-batch was not given")
    if args.flash:
        notes.append("attention in one kernel (step, memory: --flash; --no-flash: with its scores in memory)")
    if question.model.experts:
        notes.append("all experts have the same load; cp 1, unless --cp is given")
    return notes


def describe(report, explain):
    """The report as a page of text."""
    lines = [f"{report['model']} on {report['gpus']:,} {report['gpu']}, {report['global_batch']:,} sequences a step: "
             f"{report['fitting']} layouts fit, {len(report['refused'])} do not, {report['tried']:,} settings "
             "tried", ""]
    if report["layouts"]:
        lines += ranking(report["layouts"], explain)
        lines += ["", "the classical rule:", *(f"  {words}" for words in report["classical"]["steps"])]
        rule, best = report["classical"]["layout"], report["layouts"][0]
        if rule:
            more = rule["step_time_s"] / best["step_time_s"] - 1
            lines.append(f"  {rule['step_time_s']:.3f} s, {more:+.1%} beside the best of all: {short(rule)}")
        lines += ["", "the best, if something changes:"]
        lines += [f"  {row['what']:44} {row['step_time_s']:9.3f} s {row['tokens_per_second']:16,.0f} tokens/s"
                  for row in report["sensitivity"]]
        lines += ["", f"batch: {report['batch_limit']}"]
        if "expert_groups" in report:
            lines += ["", *report["expert_groups"]]
    lines += refusals(report["refused"], everything=explain)
    lines += ["", *(f"assumed: {note}" for note in report["assumed"])]
    if report["not_understood"]:
        lines.append(f"config.json: not understood, and left out: {', '.join(report['not_understood'])}")
    return "\n".join(lines)


def ranking(layouts, explain):
    """A line a layout."""
    lines = [f"{'step':>10} {'MFU':>6} {'memory':>9}   layout"]
    for found in layouts:
        lines.append(f"{found['step_time_s']:8.3f} s {found['mfu']:6.1%} {found['total_bytes'] / 1e9:6.1f} GB   "
                     f"{short(found)}")
        if explain:
            parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in found["breakdown_s"].items() if seconds)
            lines.append(f"{'':30}{parts} s")
    return lines


def short(found):
    """A layout and its settings in a line."""
    axes = " ".join(f"{axis} {found[axis]}" for axis in ("dp", "tp", "pp", "cp", "ep") if found[axis] > 1)
    folded = f" expert_tp {found['expert_tp']}" if found["ep"] > 1 else ""
    chunks = f", {found['chunks']} chunks" if found["chunks"] > 1 else ""
    several = f"{found['microbatches']} micro-batch{'es' * (found['microbatches'] > 1)}"
    return (f"{axes or 'one GPU'}{folded}, ZeRO {found['zero']}, {several} of {found['micro_batch']}{chunks}, "
            f"recompute {found['recompute']}")


def refusals(refused, everything):
    """Some of those that do not fit, of different kinds; or all."""
    if not refused:
        return []
    shown = refused if everything else refused[::max(len(refused) // REASONS, 1)][:REASONS]
    lines = ["", f"refused, {len(shown)} of {len(refused)}{'' if everything else ' (all: --explain, or --json)'}:"]
    for one in shown:
        axes = " x ".join(f"{axis} {one[axis]}" for axis in ("dp", "tp", "pp", "cp", "ep")
                          if one[axis] > 1 or axis == "dp")
        zero = "" if one["zero"] is None else f", ZeRO {one['zero']}"
        lines.append(f"  {axes}{zero}: {one['reason']}")
    return lines
