"""--device: which library a rank computes with, which GPU is its own, what is said where there is none."""

import importlib.machinery
import json
import os
import queue
import subprocess
import sys
import types
from pathlib import Path

import fake_cupy
import numpy as np
import pytest

from refimpl import __main__, device
from refimpl.arrays import same_device
from refimpl.world.mpirun import start_job

ROOT = Path(__file__).resolve().parents[1]
QUICK = {"demo": ["demo", "mlp", "--tp", "3", "--steps", "2", "--batch", "16", "--hidden", "6", "--check"],
         "train": ["train", "--dp", "2", "--tp", "2", "--layers", "2", "--hidden", "16", "--heads", "4", "--seq", "16",
                   "--global-batch", "4", "--steps", "2", "--check"],
         "verify": ["verify", "--ranks", "1", "--part", "1/8"]}


def pretend_cupy(monkeypatch, gpus=2, **others):
    """A CuPy with so many GPUs; returns the list of those that were made current, thread by thread."""
    used, cupy = [], types.ModuleType("cupy")
    cupy.__spec__, cupy.__version__ = importlib.machinery.ModuleSpec("cupy", None), "14.2.0"
    names = others.get("names", [b"H200"] * gpus)
    runtime = types.SimpleNamespace(getDeviceProperties=lambda k: {"name": names[k]}, getDeviceCount=lambda: gpus)
    chosen = lambda k="current": types.SimpleNamespace(use=lambda: used.append(k), id=used[-1] if used else 0)
    cupy.cuda = types.SimpleNamespace(is_available=lambda: gpus > 0, runtime=runtime, Device=chosen)
    cupy.ones, cupy.empty = others.get("ones", np.ones), np.empty
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delenv(device.LIBRARY, raising=False)
    return used


def test_the_cpu_is_numpy_and_nothing_to_speak_of():
    found = device.open_device("cpu")
    assert found.name == "cpu" and found.words == "" and isinstance(found.like, np.ndarray)
    with pytest.raises(ValueError, match="device='tpu': expected cpu or gpu"):
        device.open_device("tpu")


@pytest.mark.parametrize("verb", QUICK)
@pytest.mark.parametrize("missing", [True, False], ids=["no CuPy", "no GPU"])
def test_without_a_gpu_every_command_says_why_in_one_line_and_exits_2(verb, missing, monkeypatch, capsys):
    pretend_cupy(monkeypatch, gpus=0)
    if missing:
        monkeypatch.setitem(sys.modules, "cupy", None)
    assert __main__.main([*QUICK[verb], "--device", "gpu"]) == 2
    shown = capsys.readouterr()
    why = "CuPy is not installed" if missing else "CuPy 14.2.0 finds no GPU"
    assert shown.out == "" and shown.err.count("\n") == 1 and shown.err.startswith(f"error: --device gpu: {why}")


@pytest.mark.parametrize("verb", QUICK)
@pytest.mark.parametrize("library", ["fake_cupy", "numpy"])
def test_every_command_computes_with_the_library_that_it_was_told_and_says_so_first(verb, library, monkeypatch, capsys):
    monkeypatch.setenv(device.LIBRARY, library)
    assert __main__.main([*QUICK[verb], "--device", "gpu"]) == 0
    assert capsys.readouterr().out.startswith(f"device: no GPU: a rehearsal with {library}; ")


@pytest.mark.parametrize("verb", ["demo", "train"])
def test_the_arrays_are_on_the_device_and_the_losses_are_those_of_the_host(verb, monkeypatch, capsys):
    monkeypatch.setenv(device.LIBRARY, "fake_cupy")
    products = []
    monkeypatch.setattr(fake_cupy.ndarray, "__matmul__", counting(products, fake_cupy.ndarray.__matmul__))
    assert __main__.main([*QUICK[verb], "--json", "--device", "gpu"]) == 0
    there, products_there = json.loads(capsys.readouterr().out), len(products)
    assert there["device"].startswith("no GPU: a rehearsal with fake_cupy; ranks of one process hand arrays over")
    assert __main__.main([*QUICK[verb], "--json"]) == 0
    assert there["losses"] == json.loads(capsys.readouterr().out)["losses"]
    assert products_there > 10 and len(products) == products_there


def counting(log, function):
    def counted(*args):
        log.append(1)
        return function(*args)
    return counted


@pytest.mark.parametrize(("rank", "expected"), [("0", 0), ("1", 1), ("2", 0), ("5", 1)])
def test_a_process_takes_the_gpu_of_its_number_on_its_host_and_several_share_one(rank, expected, monkeypatch):
    used = pretend_cupy(monkeypatch, gpus=2)
    monkeypatch.setattr(device, "under_mpi", lambda: True)
    monkeypatch.setattr(device, "described", lambda *words: words)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", rank)
    found = device.open_device("gpu", 8)
    assert used == [expected]                                          # before the first array, and no other
    assert found.name == "gpu" and found.words == ("H200", 2, 8)


def test_the_gpu_that_is_named_is_this_process_s_own(monkeypatch):
    pretend_cupy(monkeypatch, names=[b"GH200", b"T4"])
    monkeypatch.setattr(device, "under_mpi", lambda: True)
    monkeypatch.setattr(device, "described", lambda model, *_: model)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "3")
    assert device.open_device("gpu", 4).words == "T4"


def test_ranks_of_one_process_use_its_one_gpu(monkeypatch):
    used = pretend_cupy(monkeypatch, gpus=4)
    found = device.open_device("gpu", 3)
    assert used == [0]
    assert found.words == "3 ranks on one GPU, H200; ranks of one process hand arrays over where they are"


def test_a_thread_in_the_background_uses_the_same_gpu(monkeypatch):
    used = pretend_cupy(monkeypatch)
    use = same_device()                                                # asked in the rank's own thread
    assert used == []
    use()                                                              # called in the other
    assert used == ["current"]
    monkeypatch.setitem(sys.modules, "cupy", None)
    same_device()()
    assert used == ["current"]


def test_a_gpu_whose_libraries_are_missing_is_told_from_none(monkeypatch):
    def no_cublas(shape):
        raise RuntimeError("Failure finding libcublasLt.so.13")

    pretend_cupy(monkeypatch, ones=no_cublas)
    with pytest.raises(ValueError, match="--device gpu: CuPy cannot compute here: RuntimeError: Failure finding"):
        device.open_device("gpu")


@pytest.mark.parametrize(("name", "why"), [("cupi", "No module named 'cupi'"), (".cupy", "'package' argument is req"),
                                           ("json", "module 'json' has no attribute 'empty'"),
                                           ("queue", "queue")])
def test_a_library_that_is_not_there_or_makes_no_arrays_is_named(name, why, monkeypatch, capsys):
    monkeypatch.setattr(queue, "empty", queue.Queue, raising=False)            # makes something, but no array
    monkeypatch.setenv(device.LIBRARY, name)
    with pytest.raises(ValueError, match=f"REFIMPL_GPU_LIBRARY='{name}': .*{why}.*; expected numpy, or a module"):
        device.open_device("gpu")
    assert __main__.main([*QUICK["train"], "--device", "gpu"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_processes_say_how_arrays_get_from_one_to_the_other_and_it_is_overridden():
    for chosen, says in (("0", "page-locked host memory"), ("1", "MPI gets device buffers")):
        environment = {device.LIBRARY: "numpy", "REFIMPL_CUDA_AWARE": chosen}
        words = ["-m", "refimpl", *QUICK["demo"][:3], "2", *QUICK["demo"][4:], "--device", "gpu"]
        job = start_job(2, words, 60, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        output, errors = job.communicate(timeout=60)
        assert job.returncode == 0, errors
        assert says in output.splitlines()[0] and "(REFIMPL_CUDA_AWARE)" in output and output.count("device:") == 1


COUNTING = """
import atexit, sys
import fake_cupy
from fake_cupy import empty

calls, call = [], fake_cupy._call
fake_cupy._call = lambda *args, **keywords: calls.append(1) or call(*args, **keywords)
atexit.register(lambda: print(f"operations on the device: {len(calls)}", file=sys.stderr))
"""


@pytest.mark.parametrize(("bench", "size", "axis"), [("all-reduce", "1KiB", "algorithm"), ("scaling", "16", "axis"),
                                                     ("pipeline", "2", "schedule")])
def test_bench_measures_a_job_on_the_device(bench, size, axis, tmp_path):
    (tmp_path / "counting_cupy.py").write_text(COUNTING)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(tmp_path)])
    words = ["bench", bench, "--sizes", size, "--ranks", "2", "--rounds", "1", "--json", "--device", "gpu"]
    job = subprocess.run([sys.executable, "-m", "refimpl", *words], capture_output=True, text=True, timeout=120,
                         env=os.environ | {device.LIBRARY: "counting_cupy", "PYTHONPATH": paths}, cwd=ROOT)
    assert job.returncode == 0, job.stderr
    report = json.loads(job.stdout)
    assert report["device"].startswith("no GPU: a rehearsal with counting_cupy; arrays travel through page-locked")
    assert len(report["rows"]) > 3 and all(row[axis] and row["median_s"] > 0 for row in report["rows"])
    counts = [int(line.rpartition(" ")[2]) for line in job.stderr.splitlines() if line.startswith("operations on")]
    assert sum(count > 50 for count in counts) == 2, counts                    # both ranks; the launcher has none to do


@pytest.mark.parametrize("variable", device.LOCAL_RANK)
def test_the_launchers_say_which_rank_of_the_host_a_process_is(variable, monkeypatch):
    monkeypatch.setattr(device, "under_mpi", lambda: True)
    for other in device.LOCAL_RANK:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, "3")
    assert device.local_rank() == 3


@pytest.mark.mpi(2)
def test_else_mpi_itself_does(monkeypatch):
    from mpi4py import MPI

    for variable in device.LOCAL_RANK:
        monkeypatch.delenv(variable, raising=False)
    assert device.local_rank() == MPI.COMM_WORLD.Get_rank()            # one host
    assert device.described("H200", 1, 2).startswith("2 ranks on 1 GPU of this host, H200, 2 ranks on one: they take")
    assert device.described("H200", 2, 2).startswith("2 ranks on 2 GPUs of this host, H200; ")
