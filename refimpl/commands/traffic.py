"""python -m refimpl traffic: what a GPU sends in a step, by dimension and phase, and over which link.

    python -m refimpl traffic --model gpt3-175b --gpu a100-80gb --tp 8 --pp 8 --dp 16 --global-batch 1536
    python -m refimpl traffic --model mixtral-8x7b --dp 8 --ep 8 --rank 3 --explain
"""

import json

from refimpl.cost import flags
from refimpl.world.launch import is_root

HELP = "what each GPU sends in a step: messages, bytes and links of every dimension"
FORMULAS = {
    ("tp", "forward"): "a layer: 2 all-reduces of b s h, 2 (t-1)/t of it each; with sp gathers and scatters, as much",
    ("tp", "backward"): "as forward; with sp the input of each block is gathered once more",
    ("tp", "loss"): "3 numbers of 4 bytes a position, all-reduced",
    ("tp", "finish"): "gradients of norms (sp), and of key-value heads that ranks share",
    ("cp", "forward"): "a layer: (P-1) blocks of keys and values; Ulysses: (P-1)/P of q, k, v and out",
    ("cp", "backward"): "the same again, and gradients of the blocks, 4 bytes each; Ulysses: as forward",
    ("ep", "forward"): "a layer: T k h (ep-1)/ep out and as much back, balanced; and how many rows come",
    ("ep", "backward"): "as much",
    ("pp", "pp forward"): "b s h for each micro-batch and boundary; with sp the rank's s/t of it",
    ("pp", "pp backward"): "as forward",
    ("pp", "pp tied"): "the table's gradient, between the two ends",
    ("dp", "zero reduce"): "gradients: all-reduce 2 psi (N-1)/N; with ZeRO reduce-scatter, 2 and 3: each micro-batch",
    ("dp", "zero gather"): "parameters psi (N-1)/N, once; ZeRO 3: twice each micro-batch",
    ("agreement", ""): "numbers of 8 bytes by doubling, lg P messages: targets that count, norm, loss",
}


def add_arguments(parser):
    """Options of the command."""
    flags.add_model(parser)
    flags.add_layout(parser)
    flags.add_machine(parser)
    parser.add_argument("--rank", type=flags.index, metavar="R",
                        help="of the world (default: the pipeline rank that sends most)")
    flags.add_output(parser)


def main(args):
    """Count and show; the exit status."""
    model, left_out = flags.model(args)
    report = reported(flags.training(args, model), flags.machine(args), args.rank)
    report |= {"assumed": assumed(args, report), "not_understood": left_out}
    if is_root():
        print(json.dumps(report, allow_nan=False) if args.json else describe(report, args.explain))
    return 0


def assumed(args, report):
    """What was not said, a sentence each."""
    return [*flags.notes(args, report.pop("training"))] + (["all experts have the same load"] if report["ep"] else [])


def reported(training, gpu, rank=None):
    """Everything the command reports, as plain numbers."""
    from refimpl.cost.seat import Seat
    from refimpl.cost.step_traffic import rows, totals

    layout = training.layout
    if rank is not None and rank >= layout.world:
        raise ValueError(f"--rank {rank} of {layout.world} ranks: expected 0 to {layout.world - 1}; "
                         f"nearest {layout.world - 1}")
    ranks = [layout.rank(pp=stage) for stage in range(layout.pp)] if rank is None else [rank]
    found = {one: rows(Seat(training, one), gpu=gpu) for one in ranks}
    most = max(found, key=lambda one: sum(row.bytes for row in found[one]))
    sums = totals(found[most])
    return {
        "model": training.model.name, "parameters": training.model.parameters,
        "active_parameters": training.model.active_parameters, "gpus": layout.world, "rank": most,
        "place": layout.coordinates(most),
        "ep": layout.ep > 1, "training": training,
        "rows": [{"dimension": row.dimension, "phase": row.phase, "group": row.group, "messages": row.messages,
                  "bytes": row.bytes, "link": row.link} for row in found[most]],
        "bytes": {name: nbytes for name, (_, nbytes) in sums.items()},
        "messages": {name: messages for name, (messages, _) in sums.items()},
        "total_bytes": sum(nbytes for _, nbytes in sums.values()),
    }


def describe(report, explain):
    """The report as a table."""
    place = ", ".join(f"{axis} {index}" for axis, index in report["place"].items())
    lines = [f"{report['model']} on {report['gpus']:,} GPU{'s' * (report['gpus'] > 1)}: sent by rank {report['rank']} "
             f"({place}) in one step", "",
             f"{'dimension':10} {'phase':16} {'group':11} {'messages':>10} {'bytes':>20}   link"]
    for row in report["rows"]:
        lines.append(f"{row['dimension']:10} {row['phase']:16} {row['group']:11} {row['messages']:>10,} "
                     f"{row['bytes']:>20,}   {row['link']}")
        if explain:
            key = row["dimension"], "" if row["dimension"] == "agreement" else row["phase"]
            lines.append(f"{'':10} {FORMULAS[key]}")
    lines += ["", f"{report['total_bytes'] / 1e9:.3f} GB in all"] if report["rows"] else ["nothing: one rank alone"]
    lines += [f"assumed: {note}" for note in report["assumed"]]
    if report["not_understood"]:
        lines.append(f"config.json: not understood, and left out: {', '.join(report['not_understood'])}")
    return "\n".join(lines)
