"""The array libraries that every operator test runs on: `xp` in a test is one of these."""

import fake_cupy
import numpy

BACKENDS = {"numpy": numpy, "cupy stand-in": fake_cupy}


def device_array(xp, host):
    """A copy of the host array in the library xp (numpy, fake_cupy or cupy)."""
    return xp.array(host)
