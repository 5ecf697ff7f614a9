"""May MPI be handed memory of a GPU? If not, device arrays are staged through the host.

No library answers reliably (Open MPI says what it was built with, not what the machine has), so the order is:
REFIMPL_CUDA_AWARE=0|1, then what MPI 4.1 states in its info, then the libraries' own query functions, then no.
"""

import ctypes
import os
import sys


def cuda_aware(mpi):
    """(yes or no, where the answer comes from).

    mpi    the module mpi4py.MPI, imported
    ValueError when REFIMPL_CUDA_AWARE is neither 0, 1 nor auto.
    """
    chosen = os.environ.get("REFIMPL_CUDA_AWARE", "auto")
    if chosen not in ("0", "1", "auto", ""):
        raise ValueError(f"REFIMPL_CUDA_AWARE={chosen!r}: must be 0 (stage through the host), "
                         "1 (device buffers) or auto")
    if chosen in ("0", "1"):
        return chosen == "1", "REFIMPL_CUDA_AWARE"
    kinds = mpi.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds") or ""
    if "cuda" in kinds:
        return True, "mpi_memory_alloc_kinds"
    for path in loaded_libraries("libmpi"):
        library = ctypes.CDLL(path)
        if hasattr(library, "MPIX_Query_cuda_support"):
            return bool(library.MPIX_Query_cuda_support()), "MPIX_Query_cuda_support"
    return False, "the library does not say"


def loaded_libraries(name):
    """Paths of the shared libraries of this process whose file name begins with `name` (Linux; elsewhere none)."""
    if not sys.platform.startswith("linux"):
        return []
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    return sorted(p for p in paths if os.path.basename(p).startswith(name))
