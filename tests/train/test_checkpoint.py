"""Checkpoints: any layout goes on from any other, bit by bit; what was saved survives whatever happens next."""

import json
import os
import random
import resource
import shutil

import numpy as np
import pytest
from trainer_models import CONFIGS, DATA, assert_equals_one_device, on_ranks, setup_of, train, truth_of

from refimpl import run
from refimpl.model.adam import Adam
from refimpl.precision import LossScale
from refimpl.testing import norm_of_all, relative_difference
from refimpl.train import checkpoint
from refimpl.train.faults import NotSaved
from refimpl.train.pieces import whole
from refimpl.train.trainer import Trainer

DENSE = [{}, {"dp": 2, "zero": 1}, {"dp": 3, "zero": 3}, {"pp": 3}, {"pp": 2, "schedule": "zbv", "chunks": 2},
         {"tp": 2, "sequence_parallel": True}, {"tp": 4, "dp": 2, "zero": 2}, {"cp": 2, "zero": 3}, {"tp": 8},
         {"dp": 2, "pp": 2, "tp": 2, "zero": 1}, {"cp": 2, "pp": 2, "order": "pp-cp-tp-dp"}]
EXPERTS = [{}, {"dp": 2, "ep": 2}, {"dp": 4, "ep": 2, "zero": 3}, {"tp": 2, "ep": 2, "expert_tp": 1,
           "sequence_parallel": True}, {"cp": 2, "ep": 2, "zero": 1}, {"dp": 2, "tp": 2, "ep": 2, "pp": 2, "zero": 2}]


def layouts(family, dtype="float64"):
    """Setups of one model and one run under layouts of all kinds."""
    hows = EXPERTS if CONFIGS[family].experts else DENSE
    hows = [how for how in hows if how.get("tp", 1) <= CONFIGS[family].heads]
    return [setup_of(family, dtype, layers=5, **how) for how in hows]


def pairs(count=20):
    """(family, dtype, layout A, layout B), drawn at random, the same ones each time."""
    rng = random.Random(0)
    for number in range(count):
        family, dtype = rng.choice(list(CONFIGS)), "float32" if number % 7 == 6 else "float64"
        yield (family, dtype, *rng.sample(range(len(layouts(family))), 2))


def everything(setup, ranks):
    """{(kind, name): whole array} from what the ranks' `pieces()` say."""
    found = {}
    for kind in checkpoint.KINDS:
        held = [{key.partition("/")[2]: piece for key, piece in mine.items() if key.startswith(kind + "/")}
                for mine in ranks]
        found |= {(kind, name): p for name, p in whole(setup.config, setup.layout, held).items()}
    return found


def copied(pieces):
    return {key: (at, piece.copy()) for key, (at, piece) in pieces.items()}


@pytest.mark.parametrize("family, dtype, a, b", list(pairs()))
def test_five_steps_under_one_layout_and_five_under_another_are_ten_on_one_device(family, dtype, a, b, tmp_path):
    """Parameters, moments and biases arrive bit by bit; then the loss goes on as if nothing had been."""
    one, other = layouts(family, dtype)[a], layouts(family, dtype)[b]

    def before(trainer):
        for _ in range(5):
            trainer.step()
        checkpoint.save(trainer, tmp_path)
        return copied(trainer.pieces()), {name: bias.copy() for name, bias in trainer.buffers.items()}

    def after(trainer):
        checkpoint.restore(trainer, tmp_path)
        arrived = copied(trainer.pieces()), {name: bias.copy() for name, bias in trainer.buffers.items()}
        return arrived, [trainer.step().loss for _ in range(5)], trainer.held("parameter")

    saved, went_on = on_ranks(one, before), on_ranks(other, after)
    mine, theirs = everything(one, [p for p, _ in saved]), everything(other, [p for (p, _), *_ in went_on])
    assert mine.keys() == theirs.keys()
    for key, array in mine.items():
        np.testing.assert_array_equal(theirs[key], array, strict=True)
    biases = {name: bias for _, found in saved for name, bias in found.items()}
    for (_, found), *_ in went_on:
        for name, bias in found.items():
            np.testing.assert_array_equal(bias, biases[name])

    truth, tolerance = truth_of(one, 10), 1e-10 if dtype == "float64" else 1e-4
    for _, losses, _ in went_on:
        assert losses == pytest.approx([step.loss for step in truth.steps[5:]], rel=tolerance)
    last = whole(other.config, other.layout, [held for *_, held in went_on])
    norm = norm_of_all(truth.parameters.values())
    for name, p in truth.parameters.items():
        assert relative_difference(last[name], p, norm) < tolerance, name


def test_a_run_that_is_resumed_makes_the_same_checkpoints_and_losses_as_one_that_is_not(tmp_path):
    setup = setup_of("moe", dp=2, pp=2, zero=2)
    straight = train(setup, 4)[0].losses
    train(setup, 2, save=str(tmp_path))
    history = train(setup, 4, save=str(tmp_path), resume=str(tmp_path))[0]
    assert history.first == 2 and history.saved == [3, 4] and history.losses == straight[2:]
    assert history.resumed == str(tmp_path / "step-00000002")
    assert train(setup, 4, resume=str(tmp_path))[0].losses == []                     # complete already


def test_loss_scale_and_skipped_steps_are_remembered(tmp_path):
    setup = setup_of("gpt2", "float16", scale=LossScale(2.0**24, interval=2), dp=2, zero=1)
    straight = train(setup, 12)
    assert any(step.skipped for step in straight[0].steps[:6])
    train(setup, 6, save=str(tmp_path))
    assert [step for step in train(setup, 12, resume=str(tmp_path))[0].steps] == straight[0].steps[6:]


@pytest.mark.parametrize("P", [2, 4])
def test_in_every_world(P, world, tmp_path_factory):
    """Saved by P ranks, gone on from by as many otherwise arranged."""
    folder = shared_folder(tmp_path_factory, P)
    one, other = (setup_of(dp=2, pp=P // 2, zero=1), setup_of(tp=P))
    try:
        first = train(one, 2, save=folder)[0].losses
        later = train(other, 4, resume=folder)[0].losses
        truth = truth_of(one, 4)
        assert first + later == pytest.approx([step.loss for step in truth.steps], rel=1e-10)
        run(lambda comm: comm.barrier(), P)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shared_folder(factory, P):
    """A folder that all ranks agree on: under MPI each has a pytest, and a temporary folder, of its own."""
    mine = str(factory.mktemp("shared"))
    chosen = run(lambda comm: mine, P)[0]
    return chosen


# -- what is kept -----------------------------------------------------------------------------------------------------

def test_the_last_two_are_kept_and_every_nth_is_written(tmp_path):
    history = train(setup_of(dp=2), 7, save=str(tmp_path), every=3)
    assert history[0].saved == [3, 6, 7]
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step-00000006", "step-00000007"]
    assert sorted(path.name for path in (tmp_path / "step-00000007").iterdir()) == [
        "manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"]


def test_what_a_killed_run_left_half_written_is_no_checkpoint_and_is_cleared_away(tmp_path):
    setup = setup_of(dp=2)
    train(setup, 2, save=str(tmp_path))
    shutil.copytree(tmp_path / "step-00000002", tmp_path / "step-00000003.saving")
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step-00000001", "step-00000002"]
    train(setup, 4, save=str(tmp_path), resume=str(tmp_path))
    assert not list(tmp_path.glob("*.saving"))


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    setup = setup_of(dp=2)
    straight = train(setup, 4)[0].losses
    for harm in (truncate, flip, remove, spoil_manifest):
        folder = tmp_path / harm.__name__
        train(setup, 3, save=str(folder))
        harm(folder / "step-00000003")
        history = train(setup, 4, resume=str(folder))[0]
        assert history.resumed.endswith("step-00000002") and history.losses == straight[2:], harm.__name__
        harm(folder / "step-00000002")
        with pytest.raises(ValueError, match="no checkpoint to go on from.*step-00000003.*step-00000002"):
            train(setup, 4, resume=str(folder))


def truncate(path):
    file = path / "rank-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-9])


def flip(path):
    file = path / "rank-00000.safetensors"
    data = bytearray(file.read_bytes())
    data[-20] ^= 4
    file.write_bytes(data)


def remove(path):
    (path / "rank-00001.safetensors").unlink()


def spoil_manifest(path):
    (path / "manifest.json").write_text((path / "manifest.json").read_text()[:-30])


# -- what cannot be ---------------------------------------------------------------------------------------------------

def test_another_model_other_data_or_another_precision_is_refused_with_what_differs(tmp_path):
    train(setup_of("llama"), 1, save=str(tmp_path))
    for setup, says in [
            (setup_of("llama", layers=4), "has a model with layers=3, but this run has 4"),
            (setup_of("gpt2"), "has a model with family='llama', but this run has 'gpt2'"),
            (setup_of("llama", batch=8), "was trained with global_batch=7, but this run has 8"),
            (setup_of("llama", sequence=7), "was trained with sequence=8, but this run has 7"),
            (setup_of("llama", "float32"), "has float64 parameters, but this run's are float32")]:
        with pytest.raises(ValueError, match=says):
            train(setup, 2, resume=str(tmp_path))
    setup = setup_of("llama")
    with pytest.raises(ValueError, match=r"was trained with text='20000 bytes, crc32 \w+', but this run has '19999"):
        run(lambda comm: checkpoint.restore(Trainer(comm, setup, DATA[:-1]), tmp_path), 1)
    assert train(setup_of("llama", recompute="full", attention="blockwise", adam=Adam(rate=1e-4)), 2,
                 resume=str(tmp_path))[0].first == 1                    # how it is computed, and the rate, may change


def test_nothing_to_go_on_from(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint to go on from in .*: expected a folder that train --save has"):
        train(setup_of(), 2, resume=str(tmp_path / "nowhere"))


def test_a_folder_that_cannot_be_written_or_has_another_run_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write checkpoints into .*: (Not a directory|File exists)"):
        checkpoint.check_folder(tmp_path / "file")
    checkpoint.check_folder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()
    train(setup_of(), 2, save=str(tmp_path / "run"))
    with pytest.raises(ValueError, match="has checkpoints of another run, up to step-00000002: go on from them"):
        checkpoint.check_folder(tmp_path / "run")
    with pytest.raises(ValueError, match="has checkpoints of another run"):
        checkpoint.check_folder(tmp_path / "run", tmp_path / "elsewhere")
    checkpoint.check_folder(tmp_path / "run", str(tmp_path / "." / "run"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="cannot write checkpoints into .*: Permission denied"):
        checkpoint.check_folder(tmp_path)


@pytest.mark.parametrize("P, how", [(1, {}), (2, {"dp": 2, "zero": 1})])
def test_a_full_disk_is_one_line_and_the_last_good_checkpoint_survives(P, how, tmp_path):
    """Full for files of more than 2 KB, by this process's own limit."""
    setup = setup_of(**how)
    train(setup, 2, save=str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(NotSaved, match="^step 3 could not be saved in .*: File too large; what was saved before"):
            train(setup, 4, save=str(tmp_path), resume=str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
    assert train(setup, 3, resume=str(tmp_path))[0].first == 2


def test_at_no_moment_of_a_save_is_there_no_whole_checkpoint(tmp_path, monkeypatch):
    """Stop before every single thing that a save does to the disk: the newest whole checkpoint is the last reported."""
    setup = setup_of(dp=2)
    train(setup, 2, save=str(tmp_path / "start"))
    stops = 0
    for stop in range(40):
        folder = tmp_path / str(stop)
        shutil.copytree(tmp_path / "start", folder)
        left = [stop]

        def counted(function, left=left):
            def wrapped(*args, **options):
                if str(args[0]).startswith(str(tmp_path)):
                    left[0] -= 1
                    if left[0] < 0:
                        raise Stop
                return function(*args, **options)
            return wrapped

        with monkeypatch.context() as patch:
            for module, name in ((checkpoint, "write"), (checkpoint, "sync"), (os, "replace"), (shutil, "rmtree"),
                                 (os, "unlink"), (os, "rmdir")):
                patch.setattr(module, name, counted(getattr(module, name)))
            try:
                train(setup, 3, save=str(folder), resume=str(folder))
                finished = True
            except Stop:
                finished, stops = False, stops + 1
        path, manifest, _ = checkpoint.newest(folder)
        assert manifest["number"] >= 2 and (manifest["number"] == 3 or not finished)
        assert train(setup, 4, resume=str(folder))[0].first == manifest["number"]
        if finished:
            break
    assert finished and stops >= 6


class Stop(BaseException):
    """The run is killed here."""


def test_a_checkpoint_is_json_and_safetensors_and_says_what_it_is(tmp_path):
    setup = setup_of("gpt2", dp=2, tp=2, zero=1)
    train(setup, 1, save=str(tmp_path))
    manifest = json.loads((tmp_path / "step-00000001" / "manifest.json").read_text())
    assert manifest["layout"]["dp"] == 2 and manifest["number"] == manifest["steps"] == 1
    assert manifest["config"]["hidden"] == 8 and len(manifest["files"]) == 4
    assert manifest["data"].keys() == {"sequence", "global_batch", "ignored", "seed", "text"}
    assert_equals_one_device(setup)
