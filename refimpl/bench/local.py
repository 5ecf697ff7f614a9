"""The local world against MPI: a small message, and a ring all-reduce on 4 ranks.

Ranks of the local world take turns on one core, but lend their arrays instead of sending them; processes have all
cores, and copy. The two are measured in turn, a job of its own for each turn of MPI.
"""

import json
import subprocess
import sys
import time

import numpy as np

from refimpl.bench.timing import median, ratio, size_words
from refimpl.collectives import all_reduce
from refimpl.world.local import run_local

RANKS, SIZES, MESSAGES = 4, "64MiB", 5000


def bench(sizes, rounds):
    """Rows of size_bytes, local_s, mpi_s, ratio_to_mpi; and message_us, a small message of the local world."""
    rows = []
    for size in sizes:
        times = [(ring_seconds(size), mpi_seconds(size)) for _ in range(rounds)]
        local, mpi = zip(*times)
        rows.append({"size_bytes": size, "local_s": median(local), "mpi_s": median(mpi),
                     "ratio_to_mpi": ratio(local, mpi)})
    return {"ranks": RANKS, "rows": rows, "message_us": 1e6 * median([message_seconds() for _ in range(rounds)])}


def ring_seconds(size, repeat=3):
    """Seconds of one ring all-reduce of `size` bytes in the local world, warm."""
    def program(comm):
        x = np.zeros(size // 4, np.float32)
        for turn in range(repeat + 1):
            if turn == 1:
                began = time.perf_counter()
            all_reduce(x, comm, algorithm="ring", out=x)
        return (time.perf_counter() - began) / repeat

    return max(run_local(program, RANKS))


def mpi_seconds(size):
    """The same under MPI, as `bench all-reduce` measures it. ValueError in its words where that fails."""
    command = [sys.executable, "-m", "refimpl", "bench", "all-reduce", "--ranks", str(RANKS), "--sizes", str(size),
               "--rounds", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip().removeprefix("error: "))
    return next(row["median_s"] for row in json.loads(done.stdout)["rows"] if row["algorithm"] == "ring")


def message_seconds():
    """Seconds of one small message in a ring of the local world."""
    def program(comm):
        x, right, left = np.zeros(1), (comm.rank + 1) % RANKS, (comm.rank - 1) % RANKS
        began = time.perf_counter()
        for _ in range(MESSAGES):
            comm.sendrecv(x, right, left)
        return time.perf_counter() - began

    return max(run_local(program, RANKS)) / (RANKS * MESSAGES)


def describe(result):
    """The figures as text."""
    lines = [f"{'size':>8}  {'local':>10}  {'MPI':>10}  {'of MPI':>7}"]
    for row in result["rows"]:
        local, mpi = 1e3 * row["local_s"], 1e3 * row["mpi_s"]
        lines.append(f"{size_words(row['size_bytes']):>8}  {local:>7.2f} ms  {mpi:>7.2f} ms  "
                     f"{row['ratio_to_mpi']:>6.2f}x")
    return "\n".join([*lines, f"a small message of the local world: {result['message_us']:.2f} us"])
