"""What all tests share: the array libraries, the worlds, the marks.

    def test_something(P, world, xp): ...

runs on numpy and on the CuPy stand-in, in the local world (rendezvous and eager) and, where P is at most 4, under MPI.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")    # before NumPy is loaded: two spinning threads share a core here
os.environ.setdefault("REFIMPL_RENDEZVOUS", "1")      # what would hang on a real network must hang here
os.environ.setdefault("REFIMPL_CHECK", "1")           # headers on every message

import pytest  # noqa: E402
from backends import BACKENDS  # noqa: E402
from mpi_jobs import MPITests, RankReporter, in_rank  # noqa: E402

MPI_RANKS = 4                                         # more ranks than this on two cores mostly wait


def pytest_configure(config):
    config.pluginmanager.register(RankReporter() if in_rank() else MPITests(), "mpi jobs")


def pytest_generate_tests(metafunc):
    if "world" in metafunc.fixturenames:
        metafunc.parametrize("world", ["rendezvous", "eager", "mpi"], indirect=True)


def pytest_collection_modifyitems(config, items):
    """Tests of the world `mpi` get the mark with their rank count P; those with too many ranks are left out."""
    left_out = []
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if params.get("xp") == "cupy":
            item.add_marker(pytest.mark.gpu)
        if params.get("world") == "mpi":
            item.add_marker(pytest.mark.mpi(params["P"]))
            if params["P"] > MPI_RANKS:
                left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(params=list(BACKENDS))
def xp(request):
    """The array library: numpy, the stand-in that keeps CuPy's rules, and CuPy itself where there is a GPU."""
    return BACKENDS[request.param]


@pytest.fixture
def world(request, monkeypatch):
    """Which world `run` uses: local with rendezvous, local without, or MPI (then the test itself runs on the ranks)."""
    monkeypatch.setenv("REFIMPL_RENDEZVOUS", "1" if request.param == "rendezvous" else "0")
    return request.param
