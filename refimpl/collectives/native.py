"""MPI's own all-reduce, to compare ours with. It counts no bytes, and it takes arrays of the host only."""

from refimpl.arrays import is_device

OPS = {"sum": "SUM", "prod": "PROD", "max": "MAX", "min": "MIN"}
LOGICAL = {"max": "LOR", "min": "LAND"}               # what MPI calls them for booleans


def all_reduce_(x, comm, op="sum"):
    """Reduce x over the ranks, in place, on every rank, with MPI_Allreduce.

    x (any shape), C-contiguous    ValueError in the local world, and for arrays of a device
    Order of additions, and what becomes of NaN in max and min, are up to the MPI library.
    """
    if not hasattr(comm, "native_all_reduce"):
        raise ValueError("algorithm='native' is MPI's own, and this is the local world: "
                         "use 'ring', 'doubling' or 'auto'")
    if is_device(x):
        raise ValueError("algorithm='native' takes arrays of the host: use 'ring' for arrays of a device")
    comm.native_all_reduce(x, (LOGICAL if x.dtype.kind == "b" else OPS)[op])
    return x
