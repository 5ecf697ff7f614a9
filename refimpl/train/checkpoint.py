"""Checkpoints that any layout can go on from, and that a kill at any moment leaves whole.

    run/
      step-00000004/                      the last good one stays until the next one is complete
        manifest.json                     the model, the layout, the position in the run, a checksum of every file
        rank-00000.safetensors ...        each rank's own pieces, flat: parameter/NAME@START, m/..., v/...
      step-00000005.saving/               being written: all files, then the manifest, then one rename

    save    every rank writes and syncs its file | rank 0 hears of all of them | manifest | rename: now it is saved
    load    pieces of all files --pieces.whole--> whole arrays --cut anew--> what this rank holds in the new layout

Parameters are master copies, so that they and the moments arrive bit by bit, whatever the layouts, ZeRO stages,
pipeline cuts and numbers of ranks are. Files are safetensors: a header and raw numbers, nothing that could run.
"""

import json
import os
import pathlib
import shutil
import tempfile
import zlib
from dataclasses import asdict

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load
from safetensors.numpy import save as packed

from refimpl.collectives import gather
from refimpl.layout import Layout
from refimpl.model.config import Config
from refimpl.train.faults import NotSaved
from refimpl.train.pieces import whole

MANIFEST, SAVING, KINDS = "manifest.json", ".saving", ("parameter", "m", "v")
HOW = "attention", "recompute"             # how a model is computed, not what: they may differ from run to run
KEEP = 2                                   # checkpoints that stay


def save(trainer, folder):
    """Write a checkpoint of the run after its latest step; every rank calls it. -> its path, on every rank

    folder    of the run; made if need be. Older checkpoints than the last KEEP are removed.
    When this returns, the step is saved. `NotSaved` where it cannot be written; what was saved before stays.
    """
    comm, folder = trainer.comm, pathlib.Path(folder)
    final = folder / f"step-{trainer.number:08}"
    saving = final.with_suffix(SAVING)
    try:
        if comm.rank == 0:
            for left in folder.glob(f"*{SAVING}"):                             # by a run that was killed
                shutil.rmtree(left)
            saving.mkdir(parents=True)
        comm.barrier()
        mine = write(saving / f"rank-{comm.rank:05}.safetensors", packed(
            {f"{key}@{start}": np.ascontiguousarray(piece) for key, (start, piece) in trainer.pieces().items()}))
        reports = gather(np.array([mine], np.int64), comm, root=0)
        if comm.rank == 0:
            write(saving / MANIFEST, json.dumps(manifest_of(trainer, reports), indent=1).encode())
            sync(saving)
            shutil.rmtree(final, ignore_errors=True)                           # there only if it was found damaged
            os.replace(saving, final)
            sync(folder)
            for old in checkpoints(folder)[:-KEEP]:
                shutil.rmtree(old)
    except OSError as error:
        shutil.rmtree(saving, ignore_errors=True)                              # perhaps the disk is full
        raise NotSaved(f"step {trainer.number} could not be saved in {str(folder)!r}: {error.strerror or error}; "
                       "what was saved before is still there") from None
    comm.barrier()
    return final


def write(path, data):
    """Write bytes into a new file and wait until they are on the disk. -> (bytes, checksum)"""
    with open(path, "xb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    return len(data), zlib.crc32(data)


def manifest_of(trainer, reports):
    """What a checkpoint says of itself. reports: bytes and checksum of each rank's file"""
    setup = trainer.setup
    return {
        "config": asdict(setup.config), "layout": asdict(setup.layout), "number": trainer.number,
        "steps": trainer.steps, "scale": None if trainer.scale is None else asdict(trainer.scale),
        "data": data_of(trainer), "master": setup.recipe.precision.master,
        "files": [{"bytes": int(size), "crc32": int(checksum)} for size, checksum in reports],
    }


def data_of(trainer):
    """What decides which tokens a step sees, the text included."""
    return trainer.setup.data | {"text": f"{len(trainer.data)} bytes, crc32 {zlib.crc32(trainer.data):08x}"}


def sync(path):
    """Wait until a folder's list of names is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checkpoints(folder):
    """The complete checkpoints in a run's folder, oldest first: paths."""
    found = pathlib.Path(folder).glob("step-*")
    return sorted(path for path in found if path.suffix != SAVING and (path / MANIFEST).is_file())


def check_folder(folder, resumed=None):
    """Make a run's folder; ValueError, before the work, if it cannot be written, or has another run's checkpoints.

    resumed    the folder that this run goes on from, or None: a fresh run's first steps would pass for old ones
    """
    path = pathlib.Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(f"cannot write checkpoints into {str(folder)!r}: {error.strerror or error}") from None
    if (there := checkpoints(path)) and (resumed is None or pathlib.Path(resumed).resolve() != path.resolve()):
        raise ValueError(f"{str(folder)!r} has checkpoints of another run, up to {there[-1].name}: go on from them "
                         "with resume, or choose another folder")


def restore(trainer, folder):
    """Go on from the newest whole checkpoint in `folder`; every rank calls it, before its first step. -> its path

    ValueError, before anything changes, where there is none, or it is of another model or other data.
    """
    path, manifest, held = newest(folder)
    check(trainer, manifest, path)
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


def check(trainer, manifest, path):
    """ValueError unless this run can go on from what the manifest says."""
    setup, saved = trainer.setup, manifest["config"]
    mine = asdict(setup.config)
    for name, value in mine.items():
        if name not in HOW and saved.get(name) != value:
            raise ValueError(f"{path} has a model with {name}={saved.get(name)!r}, but this run has {value!r}")
    if manifest["master"] != setup.recipe.precision.master:
        raise ValueError(f"{path} has {manifest['master']} parameters, but this run's are "
                         f"{setup.recipe.precision.master}: choose a dtype with that master copy")
    for name, value in data_of(trainer).items():
        if manifest["data"].get(name) != value:
            raise ValueError(f"{path} was trained with {name}={manifest['data'].get(name)!r}, but this run has "
                             f"{value!r}: the steps that follow would not be the same run's")
