"""MPI's own collectives, to compare ours with. They count no bytes, and take arrays of the host only.

`all_reduce(..., algorithm="native")` reaches the first, the bench all three.
"""

import math

from refimpl.arrays import is_device
from refimpl.collectives.chunks import chunk_sizes

OPS = {"sum": "SUM", "prod": "PROD", "max": "MAX", "min": "MIN"}
LOGICAL = {"max": "LOR", "min": "LAND"}               # what MPI calls them for booleans


def all_reduce_(x, comm, op="sum"):
    """Reduce x over the ranks, in place, on every rank, with MPI_Allreduce.

    x (any shape), C-contiguous    ValueError in the local world, and for arrays of a device
    Order of additions, and what becomes of NaN in max and min, are up to the MPI library.
    """
    mpi, op = _mpi(comm, x), _op(op, x)
    with comm.in_native("MPI_Allreduce"):
        flat = x.reshape(-1)
        for a, b in comm.native_pieces(flat.size):
            comm.mpi.Allreduce(mpi.IN_PLACE, flat[a:b], getattr(mpi, op))
    return x


def reduce_scatter(x, comm, op, out):
    """Chunk r of the reduction of x, in `out`, with MPI_Reduce_scatter.

    x (n, ...), out (len(chunk r), ...), both C-contiguous    ValueError as for all_reduce_
    """
    mpi, op = _mpi(comm, x), _op(op, x)
    with comm.in_native("MPI_Reduce_scatter"):
        comm.mpi.Reduce_scatter(x, out, _counts(x, comm.size), getattr(mpi, op))
    return out


def all_gather(x, comm, out):
    """Every rank's chunk of `out`, in `out`, with MPI_Allgatherv.

    x (len(chunk r), ...), out (n, ...), both C-contiguous    ValueError as for all_reduce_
    """
    _mpi(comm, x)
    with comm.in_native("MPI_Allgatherv"):
        comm.mpi.Allgatherv(x, [out, _counts(out, comm.size)])
    return out


def _mpi(comm, x):
    """The module mpi4py.MPI; ValueError where MPI has no collectives for x."""
    if not hasattr(comm, "mpi"):
        raise ValueError("algorithm='native' is MPI's own, and this is the local world: "
                         "use 'ring', 'doubling' or 'auto'")
    if is_device(x):
        raise ValueError("algorithm='native' takes arrays of the host: use 'ring' for arrays of a device")
    from mpi4py import MPI

    return MPI


def _counts(x, P):
    """Elements of each chunk of x along its first axis."""
    return [math.prod(x.shape[1:]) * rows for rows in chunk_sizes(x.shape[0], P)]


def _op(op, x):
    return (LOGICAL if x.dtype.kind == "b" else OPS)[op]
