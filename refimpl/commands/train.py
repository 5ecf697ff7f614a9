"""python -m refimpl train: a small language model on real text, cut along every dimension at once.

    python -m refimpl train                                                    one rank
    python -m refimpl train --dp 2 --pp 2 --tp 2 --check                       eight, in this process, and the truth beside
    python -m refimpl launch -n 8 train --dp 2 --pp 2 --tp 2 --check           eight processes

At the end: what each dimension sent, what each rank held, where the time went.
"""

import json

from refimpl.commands.demo import progress, ranks_in_words, standard

HELP = "train a small language model under any layout, and compare it with one device"
ROWS = 20                                             # steps, and ranks, shown in a table at most


def add_arguments(parser):
    """Options of the command."""
    from refimpl.train import flags

    flags.add(parser)
    parser.add_argument("--check", action="store_true", help="train on one device, too; exit 1 unless both agree")
    parser.add_argument("--network", metavar="FILE.toml", help="keep a virtual clock: links, nodes and FLOP/s from this file")
    parser.add_argument("--timeline", metavar="FILE.svg", help="with --network: draw what every rank did in the last step")
    parser.add_argument("--plot", metavar="FILE", help="draw the losses (.png, .svg or .pdf)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")


def main(args):
    """Train, perhaps twice, and report; the exit status."""
    from refimpl.measure.ledger import Ledger
    from refimpl.model import text
    from refimpl.train import flags
    from refimpl.train.run import Truth, differences, on_rank
    from refimpl.world import run
    from refimpl.world.launch import is_root

    setup = flags.setup(args)
    plan = flags.plan(args, setup.layout.world)
    if args.check and args.resume is not None:
        raise ValueError("--check compares a run from its beginning; with --resume, compare the whole run's losses")
    data = text.load(args.text)
    setup.batch(data, 0)                                          # is there enough text? Said before the work
    network = flags.network(args.network, setup.layout) if args.network else None
    if args.plot is not None:
        from refimpl.course.plots.files import check_plot_file
        check_plot_file(args.plot)
    quiet = args.json or not is_root()

    def program(comm):
        with progress(ranks_in_words(comm.size), plan.steps, quiet or comm.rank > 0, setup.tokens) as bar:
            return on_rank(comm, setup, data, plan, bar)

    log = Ledger()
    ranks = run(program, setup.layout.world, ledger=log, network=network)
    truth = None
    if args.check:
        with progress("one device", plan.steps, quiet, setup.tokens) as bar:
            truth = differences(setup, Truth(setup, data, plan.steps, bar), ranks)
    report = reported(setup, data, ranks, log, truth, network is not None)
    if is_root():
        print(json.dumps(standard(report), allow_nan=False) if args.json else describe(report, setup))
        if args.plot is not None:
            draw(args.plot, report)
    return 0 if truth is None or report["passed"] else 1


def reported(setup, data, ranks, log, truth, virtual):
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
        "memory": report.memory(ranks),
        "time": report.time(log, ranks, virtual),
        "tokens_per_second": (steps - 1) * setup.tokens / max(history.settled for history in ranks) if steps > 1 else None,
        "saved": ranks[0].saved,
    }
    return found | {"passed": truth is None or truth["passed"]}


def describe(report, setup):
    """The report as a page of text."""
    P, config, layout = report["ranks"], setup.config, setup.layout
    axes = " ".join(f"{axis} {getattr(layout, axis)}" for axis in ("dp", "pp", "cp", "tp", "ep") if getattr(layout, axis) > 1)
    kind = f"{config.family}{f', {config.experts} experts' if config.experts else ''}"
    lines = [f"{kind}: {config.layers} layers of {config.hidden} features, {setup.global_batch} sequences of "
             f"{setup.sequence} bytes a step, {setup.recipe.precision.parameters}",
             f"{ranks_in_words(P)}{f': {axes}' if axes else ''}, ZeRO {setup.zero}, {setup.microbatches} micro-batches, "
             f"{setup.pipeline!r}", ""]
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
    words = [f"{losses[-1]:.3f} nats a byte after step {first + len(losses) - 1}; knowing only how frequent each byte of "
             f"the text is: {report['entropy']:.3f}"] if losses else ["the run was complete already"]
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
    """Messages and bytes of each dimension, a step and rank."""
    steps, P = max(len(report["losses"]), 1), report["ranks"]
    lines = ["", f"{'sent by a rank in a step, mean':36} {'messages':>10} {'bytes':>14}"]
    for dimension in report["bytes"]:
        messages, sizes = sum(report["messages"][dimension]), sum(report["bytes"][dimension])
        if messages:
            lines.append(f"  {dimension:34} {messages / steps / P:>10,.1f} {sizes / steps / P:>14,.0f}")
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
        words = [f"{time['total']:.6f} virtual seconds; a rank computed {time['compute']:.6f} s and waited "
                 f"{time['waiting']:.6f} s, mean"]
    elif report["tokens_per_second"]:
        words = [f"{report['tokens_per_second']:,.0f} tokens/s"
                 + (f"; a rank waited {time['waiting'] / time['total']:.0%} of the time, mean" if time["waiting"] else "")]
    return ["", *words] if words else []


def draw(path, report):
    """The losses as a picture."""
    from refimpl.course.plots.losses import plot_losses

    curves = {"one device": report["reference_losses"]} if report["reference_losses"] else {}
    plot_losses(path, curves | {ranks_in_words(report["ranks"]): report["losses"]}, "Loss on real text")
