"""python -m refimpl train: a small language model on real text, cut along every dimension at once.

    python -m refimpl train                                                    one rank
    python -m refimpl train --dp 2 --pp 2 --tp 2 --check                    eight, in this process, and the truth beside
    python -m refimpl launch -n 8 train --dp 2 --pp 2 --tp 2 --check           eight processes

At the end: what each dimension sent, what each rank held, where the time went. In the object that --json prints
"device" is "cpu", or what the run says of its GPUs as it starts.
"""

import json
import sys

from refimpl.commands.demo import progress, ranks_in_words, standard
from refimpl.device import add_argument, announce, open_device

HELP = "train a small language model under any layout, and compare it with one device"
ROWS = 20                                             # steps, and ranks, shown in a table at most


def add_arguments(parser):
    """Options of the command."""
    from refimpl.train import flags

    flags.add(parser)
    parser.add_argument("--check", action="store_true", help="train on one device, too; exit 1 unless both agree")
    parser.add_argument("--network", metavar="FILE.toml", help="keep a virtual clock: links, nodes, FLOP/s as here")
    parser.add_argument("--timeline", metavar="FILE.svg",
                        help="with --network: draw what every rank did in the last step")
    parser.add_argument("--plot", metavar="FILE", help="draw the losses (.png, .svg or .pdf)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    add_argument(parser)


def world(args):
    """How many ranks the layout has. ValueError for options that do not fit together."""
    from refimpl.train import flags

    return flags.setup(args).layout.world


def main(args):
    """Train, perhaps twice, and report; the exit status."""
    from refimpl.train.threads import one_blas_thread

    with one_blas_thread():
        return trained(args)


def trained(args):
    """The same, on as many BLAS threads as there are."""
    from refimpl.measure.ledger import Ledger
    from refimpl.train import report as report_of
    from refimpl.train.faults import Failure
    from refimpl.train.run import Truth, differences, on_rank
    from refimpl.world import run
    from refimpl.world.launch import is_root

    setup, plan, data, network = checked(args)
    device = open_device(args.device, setup.layout.world)
    quiet, log = args.json or not is_root(), Ledger(trace=network is not None)
    announce(device, quiet)

    def program(comm):
        with progress(ranks_in_words(comm.size), plan.steps, quiet or comm.rank > 0, setup.tokens) as bar:
            began = [0.0, 0.0]                                    # virtual time, of the last two steps

            def on_step(loss):
                bar(loss)
                if comm.rank == 0:
                    forget(log, began.pop(0))
                    began.append(comm.clock)

            return on_rank(comm, setup, data, plan, on_step, device.like)

    try:
        ranks = run(program, setup.layout.world, ledger=log, network=network)
    except Failure as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    truth = None
    if args.check:
        with progress("one device", plan.steps, quiet, setup.tokens) as bar:
            truth = differences(setup, Truth(setup, data, plan.steps, bar), ranks)
    stretches = report_of.stretches(log, ranks) if network else None
    report = reported(setup, data, ranks, log, truth, stretches) | {"device": device.words or device.name}
    if is_root():
        print(json.dumps(standard(report), allow_nan=False) if args.json else describe(report, setup))
        if args.plot is not None:
            draw(args.plot, report)
        if args.timeline is not None:
            from refimpl.course.plots import activity, gantt
            gantt.save_svg(args.timeline, activity.svg(stretches))
    return 0 if truth is None or report["passed"] else 1


def checked(args):
    """What the options ask for: (setup, plan, data, network or None). ValueError for any of them, before the work."""
    from refimpl.course.plots.files import check_plot_file
    from refimpl.model import text
    from refimpl.train import checkpoint, flags

    setup = flags.setup(args)
    plan = flags.plan(args, setup.layout.world)
    if args.check and args.resume is not None:
        raise ValueError("--check compares a run from its beginning; with --resume, compare the whole run's losses")
    data = text.load(args.text)
    setup.batch(data, 0)                                          # is there enough text?
    network = flags.network(args.network, setup.layout) if args.network else None
    if args.plot is not None:
        check_plot_file(args.plot)
    if args.timeline is not None:
        if network is None:
            raise ValueError("--timeline draws virtual time: give --network FILE.toml, too")
        check_plot_file(args.timeline, (".svg",), "--timeline")
    if args.resume is not None:
        checkpoint.newest(args.resume)                            # says here, not below a bar, that there is none
    if args.save is not None:
        checkpoint.check_folder(args.save, args.resume)
    return setup, plan, data, network


def forget(log, before):
    """Let go of what the ledger traced before this virtual time: only the last step is drawn."""
    for trace in filter(None, (log.trace, log.spans)):
        trace[:] = [one for one in trace if one.end > before]


def reported(setup, data, ranks, log, truth, stretches):
    """Everything the command reports, as plain numbers."""
    from refimpl.model import text
    from refimpl.train import report

    steps = len(ranks[0].steps)
    sent = report.sent(log, len(ranks))
    found = {
        "ranks": len(ranks),
        "first_step": ranks[0].first + 1,
        "losses": ranks[0].losses,
        "skipped": sum(step.skipped for step in ranks[0].steps),
        "entropy": text.entropy(data),
        "reference_losses": truth and truth["losses"],
        "max_difference": truth and {when: truth[when] for when in ("first", "last")},
        "allowed": truth and truth["allowed"],
        "bytes": {dimension: counts["bytes"] for dimension, counts in sent.items()},
        "messages": {dimension: counts["messages"] for dimension, counts in sent.items()},
        "formula": report.formula(setup, log, steps, sum(step.skipped for step in ranks[0].steps)),
        "memory": report.memory(ranks),
        "time": report.time(log, ranks, stretches),
        "tokens_per_second": (steps - 1) * setup.tokens / max(rank.settled for rank in ranks) if steps > 1 else None,
        "resumed": ranks[0].resumed,
        "saved": ranks[0].saved,
    }
    return found | {"passed": truth is None or truth["passed"]}


def describe(report, setup):
    """The report as a page of text."""
    P, config, layout = report["ranks"], setup.config, setup.layout
    sizes = {axis: getattr(layout, axis) for axis in ("dp", "pp", "cp", "tp", "ep")}
    axes = " ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1)
    kind = f"{config.family}{f', {config.experts} experts' if config.experts else ''}"
    lines = [f"{kind}: {config.layers} layers of {config.hidden} features, {setup.global_batch} sequences of "
             f"{setup.sequence} bytes a step, {setup.recipe.precision.parameters}",
             f"{ranks_in_words(P)}{f': {axes}' if axes else ''}, ZeRO {setup.zero}, {setup.microbatches} "
             f"micro-batches, {setup.pipeline!r}", ""]
    lines += losses_in_words(report)
    lines += differences_in_words(report)
    lines += sent_in_words(report) + memory_in_words(report) + time_in_words(report, setup)
    if report["saved"]:
        lines += ["", f"saved after step {', '.join(map(str, report['saved'][-3:]))}"]
    if report["reference_losses"] is not None:
        lines += ["", f"The ranks and the single device {'agree' if report['passed'] else 'DISAGREE'}."]
    return "\n".join(lines)


def losses_in_words(report):
    """Some of the steps, and what there was to learn."""
    losses, first, alone = report["losses"], report["first_step"], report["reference_losses"]
    every = -(-len(losses) // ROWS)
    shown = [k for k in range(len(losses)) if k % every == 0 or k == len(losses) - 1]
    heading = f"{'step':>6}  {'loss':>18}" + (f"  {'one device':>18}" if alone else "")
    rows = [f"{first + k:>6}  {losses[k]:>18.14f}" + (f"  {alone[k]:>18.14f}" if alone else "") for k in shown]
    words = [f"{losses[-1]:.3f} nats a byte after step {first + len(losses) - 1}; knowing only how frequent each byte "
             f"of the text is: {report['entropy']:.3f}"] if losses else ["the run was complete already"]
    return [heading, *rows, "", *words] if losses else words


def differences_in_words(report):
    """How far the ranks are from one device."""
    if report["max_difference"] is None:
        return []
    lines = ["", f"{'largest relative difference':36} {'found':>9} {'allowed':>9}"]
    titles = {("first", "loss"): "loss of the first step", ("first", "gradients"): "its gradients",
              ("last", "loss"): "loss of any step", ("last", "weights"): "weights at the end"}
    for (when, kind), title in titles.items():
        lines.append(f"{title:36} {report['max_difference'][when][kind]:>9.1e} {report['allowed'][when]:>9.0e}")
    return lines


def sent_in_words(report):
    """Messages and bytes of each dimension, a step and rank, and what the formula of cost/ says."""
    steps, P, formula = max(len(report["losses"]), 1), report["ranks"], report["formula"]
    lines = ["", f"{'sent by a rank in a step, mean':36} {'messages':>10} {'bytes':>14}{'formula':>14}"]
    for dimension in report["bytes"]:
        messages, sizes = sum(report["messages"][dimension]), sum(report["bytes"][dimension])
        if messages:
            said = f"{sum(formula['bytes'][dimension]) / steps / P:>14,.0f}" if formula else f"{'none':>14}"
            lines.append(f"  {dimension:34} {messages / steps / P:>10,.1f} {sizes / steps / P:>14,.0f}{said}")
    return lines if len(lines) > 2 else []


def memory_in_words(report):
    """Bytes by kind on the rank that holds most."""
    most = max(range(report["ranks"]), key=lambda rank: report["memory"][rank]["total_peak"])
    rank = report["memory"][most]
    if not rank["peak"]:
        return []
    lines = ["", f"{f'bytes held by rank {most}':36} {'at rest':>14} {'at most':>14}"]
    for kind in rank["peak"]:
        lines.append(f"  {kind:34} {rank['at_rest'].get(kind, 0):>14,} {rank['peak'][kind]:>14,}")
    return [*lines, f"  {'together':34} {sum(rank['at_rest'].values()):>14,} {rank['total_peak']:>14,}"]


def time_in_words(report, setup):
    """Where the time went."""
    time, words = report["time"], []
    if time["virtual"]:
        parts = {"computes": time["compute"], "communicates": time["communication"], "waits": time["waiting"]}
        words = [f"{time['total']:.6g} virtual seconds; the last step {time['step']:.4g}, of which a rank, mean, "
                 + ", ".join(f"{what} {seconds:.4g}" for what, seconds in parts.items())]
    elif report["tokens_per_second"]:
        share = time["waiting_share"]
        words = [f"{report['tokens_per_second']:,.0f} tokens/s"
                 + (f"; a rank waited for messages {share:.0%} of the time, mean" if share else "")]
    return ["", *words] if words else []


def draw(path, report):
    """The losses as a picture."""
    from refimpl.course.plots.losses import plot_losses

    curves = {"one device": report["reference_losses"]} if report["reference_losses"] else {}
    plot_losses(path, curves | {ranks_in_words(report["ranks"]): report["losses"]}, "Loss on real text")
