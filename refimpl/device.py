"""Where a run's arrays live: in host memory, or on the GPUs of its machines.

    a host with 2 GPUs    rank 0 -> GPU 0    rank 1 -> GPU 1    rank 2 -> GPU 0    rank 3 -> GPU 1

    --device cpu    NumPy                  --device gpu    CuPy: the same operators, given arrays of another library

A process takes the GPU of its number on its host, modulo how many there are; several may share one, and take turns
(each keeps a context of half a gigabyte there). Ranks of one process share its GPU. Between processes arrays travel as
device buffers where MPI is CUDA-aware, else through page-locked host memory: `world/wire.py`.

REFIMPL_GPU_LIBRARY names another module that acts like CuPy: a rehearsal, on a machine without a GPU. Nothing that ran
on it has run on a GPU, and says so.
"""

import importlib
import importlib.util
import os
from typing import NamedTuple

import numpy as np

from refimpl.arrays import array_namespace, usable_gpu
from refimpl.world.cuda_aware import cuda_aware
from refimpl.world.launch import under_mpi

LIBRARY = "REFIMPL_GPU_LIBRARY"
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


class Device(NamedTuple):
    """Where to compute.

    name     "cpu", "gpu", or "rehearsal": a library that acts like CuPy, and no GPU
    like     an empty array of the library: what operators and the trainer are given to know it
    words    which device this is, and how arrays get from rank to rank; "" for the cpu
    """

    name: str
    like: object
    words: str


def add_argument(parser):
    """--device."""
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu",
                        help="NumPy, or CuPy on the GPUs of this machine (default cpu)")


def open_device(name, ranks=1):
    """Choose this process's device, before it makes its first array. -> `Device`

    name    "cpu" or "gpu"        ranks    of the run, for the words
    ValueError that says why there is no usable GPU, and what to do.
    """
    if name == "cpu":
        return Device("cpu", np.empty(0), "")
    if name != "gpu":
        raise ValueError(f"device={name!r}: expected cpu or gpu")
    if rehearsing():
        xp = library(rehearsing())
        return Device("rehearsal", xp.empty(0), f"no GPU: a rehearsal with {xp.__name__}; {transport(ranks)}")
    gpus = select()
    usable, found = usable_gpu()
    if not usable:
        raise ValueError(f"--device gpu: {found}")
    return Device("gpu", library("cupy").empty(0), described(found, gpus, ranks))


def announce(device, quiet=False):
    """Print where a run computes, as its first line; nothing of the cpu."""
    if device.words and not quiet:
        print(f"device: {device.words}\n", flush=True)


def rehearsing():
    """The module that stands in for CuPy, "" where nothing does."""
    return os.environ.get(LIBRARY, "")


def library(name):
    """The module of this name. ValueError where it makes no arrays: only a rehearsal can name a wrong one."""
    try:
        xp = importlib.import_module(name)
        array_namespace(xp.empty(0))
        return xp
    except Exception as error:                                 # whatever a module that is no array library raises
        raise ValueError(f"{LIBRARY}={name!r}: {error}; expected numpy, or a module that acts like CuPy") from None


def select():
    """Make the GPU of this process the current one, before anything touches another: GPUs here, 0 if none can be used.

    Whatever is wrong with them `usable_gpu` finds out, and says in words.
    """
    if importlib.util.find_spec("cupy") is None:
        return 0
    try:
        import cupy

        gpus = cupy.cuda.runtime.getDeviceCount()
        cupy.cuda.Device(local_rank() % gpus).use()
        return gpus
    except Exception:
        return 0


def local_rank():
    """The number of this process among the ranks of its job on this host."""
    if not under_mpi():
        return 0
    for variable in LOCAL_RANK:
        if variable in os.environ:
            return int(os.environ[variable])
    from mpi4py import MPI

    host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return host.Get_rank()
    finally:
        host.Free()


def described(model, gpus, ranks):
    """What a run prints at its start: "4 ranks on 2 GPUs of this host, NVIDIA H200, 2 or more on each; ..." """
    if not under_mpi():
        return f"{counted(ranks, 'rank')} on one GPU, {model}; {transport(ranks)}"
    from mpi4py import MPI

    here = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    mine = here.Get_size()
    here.Free()
    sharing = f", {-(-mine // gpus)} ranks on one: they take turns" if mine > gpus else ""
    return f"{counted(mine, 'rank')} on {counted(gpus, 'GPU')} of this host, {model}{sharing}; {transport(ranks)}"


def transport(ranks):
    """How arrays get from rank to rank."""
    if ranks == 1:
        return "nothing is sent"
    if not under_mpi():
        return "ranks of one process hand arrays over where they are"
    from mpi4py import MPI

    aware, source = cuda_aware(MPI)
    return (f"MPI gets device buffers: it is CUDA-aware ({source})" if aware else
            f"arrays travel through page-locked host memory: MPI is not CUDA-aware ({source})")


def counted(n, what):
    """ "1 rank", "4 ranks" """
    return f"{n} {what}{'s' * (n != 1)}"
