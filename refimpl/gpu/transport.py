"""Device arrays between processes: do they arrive, and how fast? Run on every rank of an mpirun job:

    mpirun -n 2 python -m mpi4py -m refimpl.gpu.transport 1MiB,64MiB

The ring on device arrays has the bits of the ring on host arrays, in any process; and its bandwidth stands beside what
memory allows: bench/all_reduce.py. How they travel is REFIMPL_CUDA_AWARE's to say: 0 through page-locked host memory,
1 as device buffers. Rank 0 prints one line of JSON.
"""

import json
import sys

import numpy as np

from refimpl import run
from refimpl.arrays import to_device, to_host
from refimpl.bench import all_reduce as bench
from refimpl.bench.timing import parse_size
from refimpl.collectives import all_gather, all_reduce, all_reduce_start
from refimpl.device import open_device
from refimpl.gpu.collectives import ELEMENTS, addend
from refimpl.world.local import run_local

DTYPES = ("float64", "float32", "float16")


def on_rank(comm, sizes, like, rounds=3):
    """{"equal": {what: have all ranks the bits of the host's ring?}, "rows": of bench all-reduce, the ring's}"""
    equal = {}
    for dtype in DTYPES:
        mine = to_device(addend(comm.rank, dtype, ELEMENTS), like)
        expected = run_local(ring_on_host, comm.size, (dtype,))[comm.rank]
        found = {f"ring, {dtype}": all_reduce(mine, comm, algorithm="ring"),
                 f"ring in the background, {dtype}": all_reduce_start(mine, comm, algorithm="ring").wait()}
        for what, y in found.items():
            alike = np.array([np.array_equal(to_host(y), expected)], np.int64)
            equal[what] = bool(all_gather(alike, comm).all())
    rows = [row for row in bench.bench(comm, sizes, rounds, like)["rows"] if row["algorithm"] == "ring"]
    return {"equal": equal, "rows": rows}


def ring_on_host(comm, dtype):
    """What every rank should hold, found without MPI."""
    return all_reduce(addend(comm.rank, dtype, ELEMENTS), comm, algorithm="ring")


def main(sizes):
    """On every rank of a job."""
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD.Get_size()
    device = open_device("gpu", ranks)
    found = run(on_rank, ranks, [parse_size(size) for size in sizes.split(",")], device.like, rendezvous=False)[0]
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(json.dumps(found | {"device": device.words}))


if __name__ == "__main__":
    main(sys.argv[1])
