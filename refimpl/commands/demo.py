"""python -m refimpl demo mlp: train on one device and on ranks, side by side, and say how far they differ.

Alone or under mpirun; the same code, the same numbers. In the object that --json prints "device" is "cpu", or what the
run says of its GPUs as it starts.
"""

import json
import math
import sys

from refimpl.device import add_argument, announce, open_device
from refimpl.measure.ledger import Ledger
from refimpl.world import run
from refimpl.world.launch import is_root

HELP = "train a small model on real text, on one device and on ranks, and compare"
ALLOWED = {"first": 1e-12, "last": 1e-10}             # relative difference after the first and the last step
MOST = 100_000                                        # of any size
ROWS = 20                                             # steps, and ranks, shown in a table at most


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("model", choices=["mlp"], help="mlp: guesses the next byte of a text from the last 8")
    parser.add_argument("--tp", type=int, default=4, metavar="P", help="ranks to cut the model over (default 4)")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="training steps (default 20)")
    parser.add_argument("--batch", type=int, default=256, metavar="N", help="sequences a step (default 256)")
    parser.add_argument("--hidden", type=int, default=128, metavar="N", help="hidden features (default 128)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and batches (default 0)")
    parser.add_argument("--text", metavar="FILE", help="train on this file (default: the text that Python ships)")
    parser.add_argument("--check", action="store_true", help="exit 1 unless both agree and bytes equal the formula")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--plot", metavar="FILE", help="draw the losses (.png, .svg or .pdf)")
    add_argument(parser)


def world(args):
    """How many ranks the model is cut over."""
    if args.tp < 1:
        raise ValueError(f"--tp {args.tp}: the model is cut over 1 rank or more")
    for name in ("tp", "batch", "hidden"):
        if getattr(args, name) > MOST:
            raise ValueError(f"--{name} {getattr(args, name)}: expected at most {MOST}; nearest {MOST}")
    return args.tp


def main(args):
    """Train twice, compare, report; the exit status."""
    from refimpl.course.plots.losses import check_plot_file, plot_losses
    from refimpl.model import text
    from refimpl.train import mlp

    P = world(args)
    setup = mlp.Setup(steps=args.steps, batch=args.batch, hidden=args.hidden, seed=args.seed)
    data = text.load(args.text)
    text.batch(data, 0, 1, setup.context, setup.seed)          # is there enough text? Said before the work
    if args.plot is not None:
        check_plot_file(args.plot)
    device = open_device(args.device, P)
    quiet = args.json or not is_root()

    def on_rank(comm):
        with progress(ranks_in_words(P), setup.steps, quiet or comm.rank > 0) as bar:
            return mlp.train_on_rank(comm, setup, data, bar, device.like)

    announce(device, quiet)
    log = Ledger()
    ranks = run(on_rank, P, ledger=log)                  # first, since mpirun may have started another number
    with progress("one device", setup.steps, quiet) as bar:
        alone = mlp.train_alone(setup, data, bar)
    report = compare(setup, alone, ranks, log) | {"device": device.words or device.name}
    if is_root():
        print(json.dumps(standard(report), allow_nan=False) if args.json else describe(report, setup, len(data)))
        if args.plot is not None:
            label = f"tensor-parallel, {ranks_in_words(P)}"
            plot_losses(args.plot, {"one device": alone.losses, label: ranks[0].losses},
                        title=f"Next-byte MLP on {len(data):,} bytes of text")
            if not args.json:
                print(f"plot: {args.plot}")
    return 0 if report["passed"] or not args.check else 1


def compare(setup, alone, ranks, log):
    """Everything the command reports, as plain numbers: losses, largest differences, bytes beside the formula."""
    from refimpl.train import mlp

    differences = mlp.largest_differences(alone, ranks)
    sent = [
        {"rank": rank, "phase": phase, "counted": log.bytes_sent(rank, phase), "formula": setup.steps * formula}
        for rank in range(len(ranks)) for phase, formula in setup.bytes_per_step(len(ranks), rank).items()]
    agree = all(value <= ALLOWED[when] for when, kinds in differences.items() for value in kinds.values())
    alike = mlp.copies_alike(ranks)
    return {
        "ranks": len(ranks),
        "losses": ranks[0].losses,
        "reference_losses": alone.losses,
        "max_difference": differences,
        "allowed": ALLOWED,
        "copies_alike": alike,
        "bytes": sent,
        "passed": agree and alike and all(row["counted"] == row["formula"] for row in sent),
    }


def standard(value):
    """`value` as every JSON parser reads it: null for infinity and NaN, which a loss that diverges may be."""
    if isinstance(value, dict):
        return {key: standard(v) for key, v in value.items()}
    if isinstance(value, list):
        return [standard(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def describe(report, setup, text_bytes):
    """The report as a page of text."""
    from refimpl.testing import relative_difference

    P, steps = report["ranks"], setup.steps
    every = -(-steps // ROWS)
    lines = [
        f"Next-byte MLP: {setup.inputs} -> {setup.hidden} -> 256, batch {setup.batch}, {text_bytes:,} bytes of text, "
        "float64",
        "",
        f"{'step':>5}  {'one device':>18}  {ranks_in_words(P):>18}  {'difference':>10}",
    ]
    for step, (alone, mine) in enumerate(zip(report["reference_losses"], report["losses"], strict=True)):
        if step % every == 0 or step == steps - 1:
            lines.append(f"{step + 1:>5}  {alone:>18.14f}  {mine:>18.14f}  {relative_difference(mine, alone):>10.1e}")
    lines += ["", f"{'largest relative difference':32} {'loss':>9} {'gradients':>10} {'weights':>9} {'allowed':>9}"]
    for when, title in (("first", "after the first step"), ("last", f"after {steps} steps")):
        d = report["max_difference"][when]
        lines.append(f"{title:32} {d['loss']:>9.1e} {d['gradients']:>10.1e} {d['weights']:>9.1e} {ALLOWED[when]:>9.0e}")
    if not report["copies_alike"]:
        lines.append("the ranks' copies of the bias b2 are not the same bits: they drift apart")
    lines += ["", f"{'bytes sent in all steps':32} {'counted':>14} {'formula':>14}"]
    for k, row in enumerate(report["bytes"]):
        equal = "==" if row["counted"] == row["formula"] else "!="
        if k >= 2 * ROWS and equal == "==":
            continue
        lines.append(f"  rank {row['rank']:<4} {row['phase']:20} {row['counted']:>14,} {equal} {row['formula']:>13,}")
    if P > ROWS:
        lines.append(f"  and so on for {P} ranks; all that differ are shown")
    verdict = "agree" if report["passed"] else "DISAGREE"
    return "\n".join([*lines, "", f"The ranks and the single device {verdict}."])


def ranks_in_words(P):
    """ "1 rank", "4 ranks" """
    return f"{P} rank{'s' * (P > 1)}"


class progress:
    """A progress bar over the steps of a run, as a context: call it with each step's loss.

    tokens    of a step: then the bar counts these, and shows how many there are a second
    """

    def __init__(self, title, steps, quiet, tokens=None):
        from tqdm import tqdm

        self.each, unit = (1, "step") if tokens is None else (tokens, "token")
        self.bar = tqdm(total=steps * self.each, desc=f"{title:>12}", unit=unit, unit_scale=tokens is not None,
                        disable=quiet, file=sys.stderr, leave=True)

    def __enter__(self):
        return self

    def __call__(self, loss):
        self.bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        self.bar.update(self.each)

    def __exit__(self, *_):
        self.bar.close()
