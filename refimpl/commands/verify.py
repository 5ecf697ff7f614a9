"""python -m refimpl verify: is every way to cut a run the run of one device?

    python -m refimpl verify --ranks 8                       a sample with every pair of values of two axes
    python -m refimpl verify --ranks 8 --full --part 3/20    all of them, in parts

Ranks are those of this process. The first difference ends it, with the layout and the array that is off. In the object
that --json prints "device" is "cpu", or what the run says of its GPUs as it starts.
"""

import json
import sys

from refimpl.commands.demo import standard
from refimpl.device import add_argument, announce, open_device

HELP = "try every layout, ZeRO stage, schedule and model: is it the run of one device?"
MOST_RANKS = 32                                       # 50,000 layouts, and 20 s to list them
SHOWN = ("dp", "pp", "cp", "tp", "ep", "zero", "schedule", "sp", "cp_kind", "recompute", "model")       # in the table


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("--ranks", type=int, default=8, metavar="N", help="of every layout (default 8)")
    parser.add_argument("--full", action="store_true", help="all combinations, instead of a sample")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="the K-th of N parts of them")
    parser.add_argument("--text", metavar="FILE", help="train on this file (default: the text that Python ships)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    add_argument(parser)


def world(args):
    """How many ranks every layout has."""
    if not 1 <= args.ranks <= MOST_RANKS:
        nearest = max(1, min(args.ranks, MOST_RANKS))
        raise ValueError(f"--ranks {args.ranks}: expected 1 to {MOST_RANKS}; nearest {nearest}")
    return args.ranks


def main(args):
    """Train them all; the exit status."""
    from refimpl.model import text
    from refimpl.train import verify
    from refimpl.train.threads import one_blas_thread

    ranks = world(args)
    which, _, of = args.part.partition("/")
    if not (which.isdecimal() and of.isdecimal()):
        raise ValueError(f"--part {args.part}: expected K/N, such as 1/20")
    data = text.load(args.text)
    text.windows(data, 0, 1, verify.SEQUENCE)                  # is there enough text? Said before the work
    found, refused = verify.valid(ranks)
    cases = found if args.full else verify.sample(found)
    chosen = verify.part(cases, int(which), int(of))
    if not chosen:
        raise ValueError(f"--part {args.part}: nothing is in it; {len(cases)} cases make {len(cases)} parts at most")
    device = open_device(args.device, ranks)
    announce(device, args.json)
    with one_blas_thread():
        results, failure = _try_all(chosen, data, args.json, device.like)
    report = {"ranks": ranks, "device": device.words or device.name,
              "combinations": len(found), "tried": len(results), "refused": refused,
              "cases": results, "failure": failure, "passed": failure is None}
    print(json.dumps(standard(report), allow_nan=False) if args.json else describe(report))
    return 0 if report["passed"] else 1


def _try_all(chosen, data, quiet, like):
    """Train the cases up to the first that differs: ([{"case", "gradients", "weights", "loss"}], what was wrong)"""
    from tqdm import tqdm

    from refimpl.train import verify

    results = []
    with tqdm(chosen, unit="case", disable=quiet, file=sys.stderr) as bar:
        for case in bar:
            try:
                found = verify.verify(case, data, like)
            except Exception as error:               # whatever a layout does wrong is what is looked for
                return results, {"case": str(case), "what": f"{type(error).__name__}: {error}"}
            results.append({"case": dict(zip(verify.AXES, case.values)), "loss": found["last"]["loss"],
                            "gradients": found["first"]["gradients"], "weights": found["last"]["weights"]})
            if not found["passed"]:
                return results, {"case": str(case), "what": in_words(found)}
    return results, None


def in_words(found):
    """What is off, and how much all are. found: from `run.differences`"""
    first, last = found["first"], found["last"]
    return (f"{found['worst'] or 'the list of skipped steps'} is off: loss {last['loss']:.1e}, gradients "
            f"{first['gradients']:.1e}, weights {last['weights']:.1e}, allowed {found['allowed']}")


def describe(report):
    """The report as a page of text: for each value of each axis how many runs had it, and the largest differences."""
    lines = [f"{'axis':10} {'value':16} {'runs':>6} {'gradients':>10} {'weights':>10}"]
    for axis in SHOWN:
        values = sorted({one["case"][axis] for one in report["cases"]}, key=str)
        for value in values:
            those = [one for one in report["cases"] if one["case"][axis] == value]
            lines.append(f"{axis if value == values[0] else '':10} {value!s:16} {len(those):>6} "
                         + " ".join(f"{max(one[kind] for one in those):>10.1e}" for kind in ("gradients", "weights")))
    lines += ["", f"{report['tried']} of {report['combinations']} combinations on {report['ranks']} ranks, "
              "two steps each, compared with one device"]
    if report["refused"]:
        lines += [f"{sum(report['refused'].values())} more do not fit together:",
                  *(f"  {count:>5}  {reason}"
                    for reason, count in sorted(report["refused"].items(), key=lambda one: -one[1]))]
    if report["failure"]:
        return "\n".join([*lines, "", f"DIFFERENT: {report['failure']['case']}", f"  {report['failure']['what']}"])
    return "\n".join([*lines, "All are the run of one device."])
