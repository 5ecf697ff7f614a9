"""One BLAS thread for training: matrices are small here, and threads that spin wait for each other on busy cores."""

import contextlib
import os

CHOSEN = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def one_blas_thread():
    """A context in which NumPy's products take one thread, unless the environment says how many."""
    if any(name in os.environ for name in CHOSEN):
        return contextlib.nullcontext()
    import numpy  # noqa: F401    the limit is set on libraries that are loaded
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, user_api="blas")
