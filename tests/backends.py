"""The array libraries that every operator test runs on: `xp` in a test is one of these."""

import importlib

import fake_cupy
import numpy

from refimpl.arrays import usable_gpu

BACKENDS = {"numpy": numpy, "cupy stand-in": fake_cupy}
if usable_gpu()[0]:
    BACKENDS["cupy"] = importlib.import_module("cupy")        # these tests get the mark `gpu`: see conftest.py


def device_array(xp, host):
    """A copy of the host array in the library xp (numpy, fake_cupy or cupy)."""
    return xp.array(host)
