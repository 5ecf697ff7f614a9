"""MPI's own all-reduce, to compare ours with. It counts no bytes, and it takes arrays of the host only."""

from refimpl.arrays import is_device

OPS = {"sum": "SUM", "prod": "PROD", "max": "MAX", "min": "MIN"}


def all_reduce_(x, comm, op="sum"):
    """Reduce x over the ranks, in place, on every rank, with MPI_Allreduce.

    x (any shape), C-contiguous    ValueError in the local world, and for arrays of a device
    """
    if not hasattr(comm, "native_all_reduce"):
        raise ValueError("algorithm='native' is MPI's own, and this is the local world: use 'ring', 'doubling' or 'auto'")
    if is_device(x):
        raise ValueError("algorithm='native' takes arrays of the host: use 'ring' for arrays of a device")
    comm.native_all_reduce(x, OPS[op])
    return x
