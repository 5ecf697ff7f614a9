"""Rank programs that measure on two hosts; `python -m mpi4py tests/hosts/measure.py NAME` prints JSON on rank 0.

Times are those of the fastest round: what else this machine does only ever adds to them.
"""

import ctypes
import json
import platform
import struct
import sys
import time
from functools import partial
from unittest.mock import patch

import numpy as np
from mpi4py import MPI

from refimpl import Layout, Link, Network, run
from refimpl.bench.overlap import hidden_share
from refimpl.bench.timing import measure
from refimpl.collectives import all_reduce, all_reduce_start
from refimpl.cost import efficiency, hardware
from refimpl.cost.step import step
from refimpl.model import text, transformer
from refimpl.model.config import Config, init
from refimpl.parallel import data
from refimpl.precision import Precision
from refimpl.train.predicted import training_of
from refimpl.train.setup import Setup
from refimpl.train.single import Recipe
from refimpl.train.trainer import Trainer
from refimpl.world import helper, mpi_job


def link(comm, other, small=200, large=2**23, rounds=5):
    """alpha (seconds) and beta (seconds per byte) of the way from rank 0 to rank `other`: half a ping-pong."""
    def ping_pong(x, times):
        mine = []
        for _ in range(rounds):
            comm.barrier()
            began = time.perf_counter()
            for _ in range(times):
                if comm.rank == 0:
                    comm.send(x, other)
                    comm.recv(other, out=x)
                elif comm.rank == other:
                    comm.recv(0, out=x)
                    comm.send(x, 0)
            mine.append((time.perf_counter() - began) / (2 * times))
        return min(mine)

    alpha, x = ping_pong(np.zeros(1), small), np.ones(large // 8)
    return {"alpha": alpha, "beta": (ping_pong(x, 2) - alpha) / x.nbytes}


def links(comm):
    """The way inside a host and the way between the two."""
    half = comm.size // 2
    return {"inter": link(comm, half)} | ({"intra": link(comm, 1)} if half > 1 else {})


def hierarchical(comm, size=16 * 2**20, rounds=9):
    """All-reduce of 16 MiB: a ring over all ranks, and inside the hosts first."""
    x = np.full(size // 4, comm.rank, np.float32)
    variants = {name: partial(all_reduce, x, comm, algorithm=name) for name in ("ring", "hierarchical")}
    results = [f() for f in variants.values()]
    times = measure(comm, variants, rounds)
    fastest = {name: min(seconds) for name, seconds in times.items()}
    return {"seconds": fastest, "speedup": fastest["ring"] / fastest["hierarchical"],
            "equal": bool(np.array_equal(*results)), "sum": float(results[0][0])}


def short_slices():
    """Let the calling thread interrupt another one on its core when it wakes, as on a core of its own.

    A host here has one core. Since Linux 6.6 a thread that wakes waits there for the end of the running one's slice,
    3 ms: far too long to look after messages. A thread that asks for short slices (6.12) does not.
    """
    number = {"x86_64": 314, "aarch64": 274}[platform.machine()]                                       # sched_setattr
    attributes = struct.pack("IIQiIQQQII", 56, 0, 0, 0, 0, 100_000, 0, 0, 0, 0)                       # slice: 0.1 ms
    ctypes.CDLL(None, use_errno=True).syscall(number, 0, attributes, 0)


def overlap(comm, polite, rounds=3, hidden=192, layers=20, sequence=128, sequences=48):
    """Backward of a transformer with its gradients summed in buckets while it goes on, and afterwards.

    Backward has the gradients in buckets in each case: what is hidden, or is not, are the all-reduces alone.
    polite    microseconds between two looks at messages: each costs the core some 40, what it had in its cache
    """
    helper.same_device = lambda: short_slices                        # what the helper thread begins with
    mpi_job.POLITE_SECONDS = polite * 1e-6
    config = Config("gpt2", 256, hidden, layers, heads=8, context=sequence)
    parameters = init(config, np.random.default_rng(0), "float32")
    buckets = data.plan({name: p.size for name, p in parameters.items()}, 2**18)
    tokens = np.random.default_rng(comm.rank).integers(0, 256, (sequences, sequence))
    place = transformer.Place(range(sequences), range(sequence), range(config.heads), 0, 0)
    logits, saved = transformer.forward(tokens, parameters, config, place)
    dlogits = np.ones_like(logits) / logits.size
    full = data.GradientBuckets(parameters, buckets, comm).rooms

    def backward():
        step = data.GradientBuckets(parameters, buckets, comm)
        with step.no_sync():
            data.backward(dlogits, saved, step.ready)

    def reduce_only():
        for request in [all_reduce_start(room, comm, algorithm="ring", out=room) for room in full]:
            request.wait()

    def both():
        step = data.GradientBuckets(parameters, buckets, comm)
        data.backward(dlogits, saved, step.ready)
        step.finish()

    times = measure(comm, {"backward": backward, "reduce": reduce_only, "both": both}, rounds)
    fastest = {name: min(seconds) for name, seconds in times.items()}
    return {"hidden_share": hidden_share(*fastest.values()), "buckets": len(buckets)} | fastest


LAYOUTS = {                                   # 2 ranks a host: what crosses the cable, and what stays inside
    "tp inside, dp across": Layout(dp=2, tp=2, node_size=2),
    "tp across, dp inside": Layout(dp=2, tp=2, node_size=2, order="dp-cp-tp-pp"),
    "tp inside, pp across": Layout(pp=2, tp=2, node_size=2),
}


def setup_of(layout, batch=16):
    """What is trained: products that take a core longer than Python takes to call them."""
    config = Config("gpt2", 256, hidden=256, layers=4, heads=8, context=128)
    return Setup(config, layout, sequence=128, global_batch=batch, recipe=Recipe(precision=Precision("float32")))


def training(comm, rounds=4):
    """{layout: seconds of a step}; "alone": each rank by itself a quarter of the batch, all at once, nothing sent."""
    by_itself, data_ = comm.split(comm.rank, 0, name="alone"), text.load(None)
    trainers = {"alone": Trainer(by_itself, setup_of(Layout(), batch=4), data_)}
    trainers |= {name: Trainer(comm, setup_of(layout), data_) for name, layout in LAYOUTS.items()}
    times = measure(comm, {name: trainer.step for name, trainer in trainers.items()}, rounds)
    return {name: min(seconds) for name, seconds in times.items()}


def step_on_clock(comm, setup):
    """Virtual seconds of a step."""
    Trainer(comm, setup, text.load(None)).step()
    return comm.clock


def speed(alone):
    """Operations per second of a rank that needs so many seconds for its step by itself."""
    one_a_second = Network(Link(0, 0), flops=1.0)
    return run(step_on_clock, 1, setup_of(Layout(), batch=4), network=one_a_second)[0] / alone


def by_clock(flops, links):
    """{layout: seconds of a step} on the virtual clock, from alpha and beta; two ranks share a host's cable."""
    network = Network(Link(**links["intra"]), Link(**links["inter"]), node_size=2, nics_per_node=1, flops=flops)
    return {name: max(run(step_on_clock, 4, setup_of(layout), network=network)) for name, layout in LAYOUTS.items()}


def by_formula(flops, links):
    """The same of `cost.step`, for a GPU that has what a rank has, and reaches all of it."""
    rate = lambda link, share: hardware.Link(link["alpha"], share / link["beta"])
    rank = hardware.GPU("a rank", 1e12, 1e15, {"float32": flops}, rate(links["intra"], 1), rate(links["inter"], 1 / 2),
                        node_size=2, domain_size=2)
    reached = efficiency.Efficiency(product=1, depth=0, processors=1, memory=1, fabric=1, network=1, launch=0, beside=0)
    with patch.dict(efficiency.BY_GPU, {rank.name: reached}):
        return {name: step(training_of(setup_of(layout)), rank).seconds for name, layout in LAYOUTS.items()}


if __name__ == "__main__":
    program = {"links": links, "hierarchical": hierarchical, "overlap": overlap, "training": training}[sys.argv[1]]
    found = run(program, MPI.COMM_WORLD.size, *map(int, sys.argv[2:]))[0]
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(found))
