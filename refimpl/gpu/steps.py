"""The steps of `gpu-check` that are one process: each returns (status, words, figures). See check.py."""

import random
import time

import numpy as np

from refimpl.arrays import array_namespace, is_device, synchronize
from refimpl.bench.timing import median
from refimpl.device import open_device
from refimpl.gpu import collectives, operators
from refimpl.gpu.check import FAILED, NOT_RUN, PASSED

LAYOUT_SECONDS, LAYOUT_RANKS = 40.0, 4


def run_step(name):
    """Run the step of this name on the device."""
    device = open_device("gpu")
    return {"device": about, "operators": all_operators, "collectives": all_collectives,
            "layouts": all_layouts}[name](device)


def about(device):
    """Which device, and how fast its memory and its way to the host are."""
    x = array_namespace(device.like).zeros(2**18 if device.name == "rehearsal" else 2**27, "float32")
    figures = {"copy_bytes_per_s": 2 * x.nbytes / seconds(lambda: x.copy(), x)}
    if device.name == "gpu":
        figures |= of_cuda(x)
    words = f"{device.words.partition(';')[0]}; memory copies {figures['copy_bytes_per_s'] / 1e9:.0f} GB/s"
    return PASSED, words, figures


def of_cuda(x):
    """Versions, and the bus to the host, from page-locked and from ordinary memory."""
    import cupy
    import cupyx

    runtime, locked, ordinary = cupy.cuda.runtime, cupyx.empty_pinned(x.shape, x.dtype), np.zeros(x.shape, x.dtype)
    figures = {"cupy": cupy.__version__, "driver": runtime.driverGetVersion(), "runtime": runtime.runtimeGetVersion(),
               "gpus": runtime.getDeviceCount(), "memory_bytes": runtime.memGetInfo()[1]}
    for name, host in (("page_locked", locked), ("ordinary", ordinary)):
        figures[f"to_host_{name}_bytes_per_s"] = x.nbytes / seconds(lambda host=host: x.get(out=host), x)
        figures[f"to_device_{name}_bytes_per_s"] = x.nbytes / seconds(lambda host=host: x.set(host), x)
    return figures


def seconds(work, x, rounds=7):
    """Median seconds of `work`, warm, with the device's work done."""
    times = []
    for _ in range(rounds + 2):
        synchronize(x)
        began = time.perf_counter()
        work()
        synchronize(x)
        times.append(time.perf_counter() - began)
    return median(times[2:])


def all_operators(device):
    """The operators of `operators.py` against NumPy."""
    figures, wrong = {}, []
    for dtype, allowed in operators.TOLERANCE.items():
        figures[dtype] = found = operators.compare(device.like, dtype)
        wrong += [f"{name}, {dtype}: {difference:.1e}" for name, difference in found.items() if difference > allowed]
    worst = {dtype: max(found.values()) for dtype, found in figures.items()}
    if wrong:
        return FAILED, f"off by more than {operators.TOLERANCE}: {'; '.join(wrong)}", figures
    return PASSED, (f"{len(figures['float64'])} operators, largest relative difference "
                    + ", ".join(f"{value:.1e} in {dtype}" for dtype, value in worst.items())), figures


def all_collectives(device):
    """Every collective against the host's, bit by bit."""
    rows = collectives.compare(device.like)
    wrong = [row for row in rows if not row["equal"]]
    if wrong:
        named = "; ".join(f"{row['collective']}, {row['dtype']}, {row['ranks']} ranks" for row in wrong[:5])
        return FAILED, f"{len(wrong)} of {len(rows)} have other bits than the host's: {named}", rows
    return PASSED, f"{len(rows)} runs on up to {max(collectives.RANKS)} ranks, bit by bit the host's", rows


def all_layouts(device, limit=LAYOUT_SECONDS, ranks=LAYOUT_RANKS):
    """The trainer on ranks of this process, layout by layout, until all are tried or the seconds of `limit` are over.

    Passed only if there was time for the first ones, which reach every operator: see `in_order`.
    """
    from refimpl.model import text
    from refimpl.train import verify

    began, data, (chosen, first) = time.perf_counter(), text.load(None), in_order(ranks)
    tried, worst = 0, 0.0
    while tried < len(chosen) and time.perf_counter() - began < limit:
        case, tried = chosen[tried], tried + 1
        differences = verify.verify(case, data, device.like)
        worst = max(worst, differences["first"]["gradients"])
        if not differences["passed"]:
            return FAILED, f"{case} is not the run of one device: {differences['worst']} is off", {"tried": tried}
    figures = {"tried": tried, "first": first, "sample": len(chosen), "on_device": is_device(device.like)}
    if tried < first:
        return NOT_RUN, f"time for {tried} of the {first} layouts that between them reach every operator", figures
    return PASSED, f"{tried} of a sample of {len(chosen)} layouts on {ranks} ranks, gradients to {worst:.1e}", figures


def in_order(ranks):
    """(`verify.sample` in the order in which it is tried, how many come first)

    Those that come first have, between them, every value of every axis, and so reach what `operators` leaves out: the
    attention of context parallelism, experts on several ranks, weight gradients that wait. The others are shuffled.
    """
    from refimpl.train import verify

    sample = verify.sample(verify.valid(ranks)[0])
    random.Random(1).shuffle(sample)
    values = {case: set(zip(verify.AXES, case.values)) for case in sample}
    missing, first = set().union(*values.values()), []
    while missing:
        first.append(max(sample, key=lambda case: len(missing & values[case])))
        missing -= values[first[-1]]
    return first + [case for case in sample if case not in first], len(first)
