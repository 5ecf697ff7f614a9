"""How to time variants on a noisy machine: in interleaved rounds, compared pair by pair.

    round 1: a b c    round 2: a b c    ...        ratio of b to a = median over rounds of (b's time / a's time)

A machine that slows down for a second slows down the whole round, so the ratio of two times of one round is far
steadier than the times. In a round every variant runs once, all ranks starting together; the slowest rank counts.
"""

import os
import statistics
import time

import numpy as np

from refimpl.arrays import array_namespace
from refimpl.collectives import all_reduce
from refimpl.cost.listing import listed


def measure(comm, variants, rounds=7, repeat=1, settle=lambda: None):
    """Time every variant in each round: {name: seconds per round}, the same on every rank.

    variants    {name: function without arguments}        rounds    after one more that is not counted
    repeat      calls per measurement, for what is too short for the clock; the time is that of one call
    settle      called before the clock is read: on a device, waits for the kernels that are only queued
    """
    names = list(variants)
    seconds = np.zeros((rounds + 1, len(names)))
    for turn in range(rounds + 1):
        for k, name in enumerate(names):
            run = variants[name]
            comm.barrier()
            began = time.perf_counter()
            for _ in range(repeat):
                run()
            settle()
            seconds[turn, k] = (time.perf_counter() - began) / repeat
    slowest = all_reduce(seconds, comm, op="max")[1:]
    return {name: slowest[:, k].tolist() for k, name in enumerate(names)}


def median(times):
    """Median of seconds."""
    return statistics.median(times)


def ratio(times, reference):
    """Median over rounds of times[k] / reference[k]."""
    return statistics.median(a / b for a, b in zip(times, reference, strict=True))


def repeats(nbytes):
    """Calls per measurement, so that a small message is not timed by the tick of the clock."""
    return max(1, min(200, 2**20 // max(nbytes, 1)))


def touched_zeros(arrays, n, like=None):
    """`arrays` arrays of n float32 zeros, in memory of their own; on the device of the array `like`, if one is given.

    What np.zeros gives is no memory until it is written: all of it reads one page of zeros, from the cache.
    """
    return np.full((arrays, n), 0, np.float32) if like is None else array_namespace(like).zeros((arrays, n), "float32")


def pin(rank):
    """Keep this process on one core (Linux): two ranks that spin may else share a core for long while one is idle."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def check_ranks(ranks, works, why):
    """ValueError unless `ranks` is one of those that work: names these, and the nearest."""
    if ranks not in works:
        raise ValueError(f"ranks={ranks}: {why}; expected {listed(works)}; "
                         f"nearest {min(works, key=lambda n: abs(n - ranks))}")


def parse_size(text):
    """Bytes from "64MiB", "4KiB", "100"; ValueError that says how to write one."""
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "B": 1, "": 1}
    number = text.strip().rstrip("KMGiB")
    unit = text.strip()[len(number):]
    if not number.isdecimal() or unit not in units or int(number) == 0:
        raise ValueError(f"size {text!r}: write a whole number of bytes with a unit, as in 4KiB, 64MiB or 1GiB")
    return int(number) * units[unit]


def size_words(nbytes):
    """4096 -> "4 KiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size and nbytes % size == 0:
            return f"{nbytes // size} {unit}"
    return f"{nbytes} B"
