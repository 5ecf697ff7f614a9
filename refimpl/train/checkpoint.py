"""Checkpoints that any layout can go on from, and that a kill at any moment leaves whole.

    run/
      step-00000004/                      the last good one stays until the next one is complete
        manifest.json                     the model, the layout, the position in the run, a checksum of every file
        rank-00000.safetensors ...        each rank's own pieces, flat: parameter/NAME@START, m/..., v/...
      step-00000005.saving/               being written: all files, then the manifest, then one rename

    save    every rank writes and syncs its file | rank 0 hears of all of them | manifest | rename: from here on it is saved
    load    pieces of all files --pieces.whole--> whole arrays --cut anew--> what this rank holds in the new layout

Parameters are master copies, so that they and the moments arrive bit by bit, whatever the layouts, ZeRO stages, pipeline
cuts and numbers of ranks are. Files are safetensors: a header and raw numbers, nothing that could run.
"""

import json
import os
import pathlib
import shutil
import zlib
from dataclasses import asdict

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from refimpl.collectives import gather
from refimpl.layout import Layout
from refimpl.model.config import Config
from refimpl.train.pieces import whole

MANIFEST, SAVING, KINDS = "manifest.json", ".saving", ("parameter", "m", "v")
HOW = "attention", "recompute"             # how a model is computed, not what: they may differ from run to run
KEEP = 2                                   # checkpoints that stay


def save(trainer, folder):
    """Write a checkpoint of the run after its latest step; every rank calls it. -> its path, on every rank

    folder    of the run; made if need be. Older checkpoints than the last KEEP are removed.
    When this returns, the step is saved. OSError where it cannot be written; what was saved before stays.
    """
    comm, folder = trainer.comm, pathlib.Path(folder)
    final = folder / f"step-{trainer.number:08}"
    saving = final.with_suffix(SAVING)
    if comm.rank == 0:
        shutil.rmtree(saving, ignore_errors=True)
        saving.mkdir(parents=True)
    comm.barrier()
    mine = write(saving / f"rank-{comm.rank:05}.safetensors", trainer.pieces())
    reports = gather(np.array([mine], np.int64), comm, root=0)
    if comm.rank == 0:
        _write_manifest(saving, trainer, reports)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(saving, final)
        sync(folder)
        for old in checkpoints(folder)[:-KEEP]:
            shutil.rmtree(old)
    comm.barrier()
    return final


def write(path, pieces):
    """Write a rank's {"kind/name": (start, flat array)} and wait until it is on the disk. -> (bytes, checksum)"""
    save_file({f"{key}@{start}": np.ascontiguousarray(piece) for key, (start, piece) in pieces.items()}, path)
    sync(path)
    data = path.read_bytes()
    return len(data), zlib.crc32(data)


def _write_manifest(saving, trainer, reports):
    setup = trainer.setup
    manifest = {
        "config": asdict(setup.config), "layout": asdict(setup.layout), "number": trainer.number,
        "steps": trainer.steps, "scale": None if trainer.scale is None else asdict(trainer.scale),
        "data": setup.data, "master": setup.recipe.precision.master,
        "files": [{"bytes": int(size), "crc32": int(checksum)} for size, checksum in reports],
    }
    path = saving / MANIFEST
    path.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    sync(path)
    sync(saving)


def sync(path):
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checkpoints(folder):
    """The complete checkpoints in a run's folder, oldest first: paths."""
    found = pathlib.Path(folder).glob("step-*")
    return sorted(path for path in found if path.suffix != SAVING and (path / MANIFEST).is_file())


def restore(trainer, folder):
    """Go on from the newest checkpoint in `folder` that is whole; every rank calls it, before its first step. -> its path

    ValueError, before anything changes, where there is none, or it is of another model or other data.
    """
    path, manifest, held = newest(folder)
    check(trainer.setup, manifest, path)
    config, layout = Config(**manifest["config"]), Layout(**manifest["layout"])
    state = {}
    for kind in KINDS:
        prefix = f"{kind}/"
        state[kind] = whole(config, layout, [{key.removeprefix(prefix): piece for key, piece in mine.items()
                                              if key.startswith(prefix)} for mine in held])
    state["buffer"] = {key.removeprefix("buffer/"): piece for mine in held for key, (_, piece) in mine.items()
                       if key.startswith("buffer/")}
    trainer.load(state, manifest)
    return path


def newest(folder):
    """The newest whole checkpoint: (path, manifest, for each file {"kind/name": (start, flat array)}).

    One that was damaged on the disk is passed over for the one before it. ValueError where none can be read.
    """
    reasons = []
    for path in reversed(checkpoints(folder)):
        try:
            return path, *read(path)
        except (ValueError, OSError, SafetensorError, KeyError) as error:
            reasons.append(f"{path.name}: {error}")
    raise ValueError(f"there is no checkpoint to go on from in {str(folder)!r}: "
                     + ("; ".join(reasons) or "expected a folder that train --save has written"))


def read(path):
    """A checkpoint's manifest and pieces. ValueError if a file is not what was written."""
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    held = []
    for rank, expected in enumerate(manifest["files"]):
        data = (path / f"rank-{rank:05}.safetensors").read_bytes()
        if (len(data), zlib.crc32(data)) != (expected["bytes"], expected["crc32"]):
            raise ValueError(f"rank-{rank:05}.safetensors is damaged: {len(data)} bytes, written were "
                             f"{expected['bytes']}")
        named = {key.rpartition("@"): piece for key, piece in load(data).items()}
        held.append({key: (int(start), piece) for (key, _, start), piece in named.items()})
    return manifest, held


def check(setup, manifest, path):
    """ValueError unless a run of this `Setup` can go on from what the manifest says."""
    mine, saved = asdict(setup.config), manifest["config"]
    for name, value in mine.items():
        if name not in HOW and saved.get(name) != value:
            raise ValueError(f"{path} has a model with {name}={saved.get(name)!r}, but this run has {value!r}")
    if manifest["master"] != setup.recipe.precision.master:
        raise ValueError(f"{path} has {manifest['master']} parameters, but this run's are "
                         f"{setup.recipe.precision.master}: choose a dtype with that master copy")
    for name, value in setup.data.items():
        if manifest["data"].get(name) != value:
            raise ValueError(f"{path} was trained with {name}={manifest['data'].get(name)!r}, but this run has "
                             f"{value!r}: the steps that follow would not be the same run's")
