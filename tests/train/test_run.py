"""A whole run on a rank: what it remembers, what it looks out for, how it dies."""

from dataclasses import replace

import numpy as np
import pytest
from trainer_models import CONFIGS, SCALE, compared, setup_of, train, truth_of

from refimpl.model.adam import Adam
from refimpl.parallel import block
from refimpl.precision import wide
from refimpl.train.faults import Crash, Failure, NotFinite
from refimpl.train.run import Plan, differences
from refimpl.train.trainer import Trainer


def test_a_history_has_the_losses_of_every_step_on_every_rank_and_the_memory_of_the_first():
    setup = setup_of(dp=2, pp=2)
    histories = train(setup, 3, measure=True)
    assert [history.losses for history in histories] == 4 * [histories[0].losses] and len(histories[0].losses) == 3
    for history in histories:
        assert history.live["parameters"] == history.peak["parameters"] == history.live["optimizer"] // 2
        assert history.live["saved"] == 0 < history.peak["saved"]
        assert sum(history.live.values()) < history.total_peak <= sum(history.peak.values())
        assert history.first == 0 and history.seconds >= history.settled > 0


def test_pieces_are_kept_only_if_asked_for_and_are_copies():
    history, = train(setup_of(), 1, keep=False)
    assert history.gradients == history.parameters == {}
    history, = train(setup_of(), 2)
    first, = train(setup_of(), 1)
    for name, (_, g) in first.gradients.items():
        np.testing.assert_array_equal(history.gradients[name][1], g)


@pytest.mark.parametrize("name, value", [("steps", 0), ("every", 0)])
def test_a_plan_that_cannot_be_done(name, value):
    with pytest.raises(ValueError, match=f"{name}=0: expected 1 or more; nearest 1"):
        Plan(**{name: value})


# -- NaN --------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("how, rank, part, what", [
    ({}, 0, "blocks.1", "output"), ({"pp": 3}, 1, "blocks.1", "output"),
    ({"dp": 2, "zero": 3}, 0, "blocks.1", "output")])
def test_the_first_nan_is_named_by_step_rank_layer_and_tensor(how, rank, part, what, monkeypatch):
    """A weight of layer 1 becomes NaN after the second step: seen in the third."""
    def poisoned(self, loss):
        step = ORIGINAL(self, loss)
        if self.number == 2:
            for zero in self.zeros:
                for name, held in zero.state().items():
                    if name == "blocks.1.mlp.w1":
                        held.parameter[...] = np.nan
                        for key in zero.units:
                            zero._store(key)
        return step

    monkeypatch.setattr(Trainer, "update", poisoned)
    says = f"^step 3, rank {rank}, {part}: its {what} is the first tensor with a number that is NaN or infinite"
    with pytest.raises(NotFinite, match=says):
        train(setup_of("llama", **how), 4, detect=True)
    assert len(train(setup_of("llama", **how), 4)[0].losses) == 4                       # nobody looks: it goes on


ORIGINAL = Trainer.update


@pytest.mark.parametrize("what, function", [("input gradient", "backward_input"), ("gradient of blocks.2.norm1.w",
                                                                                    "backward_weight")])
def test_a_nan_that_backward_makes_is_named_too(what, function, monkeypatch):
    original = getattr(block, function)

    def spoilt(*args):
        found = original(*args)
        if function == "backward_input":
            found[0][...] = np.nan
            return found
        return found | {"norm1.w": found["norm1.w"] * np.nan}

    monkeypatch.setattr(block, function, spoilt)
    with pytest.raises(NotFinite, match=f"^step 1, rank 0, blocks.2: its {what} is the first"):
        train(setup_of("llama"), 2, detect=True)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("family", CONFIGS)
def test_looking_for_nan_finds_none_where_there_is_none_and_changes_nothing(family, dtype):
    plain, watched = (train(setup_of(family, dtype), 2, detect=detect)[0].losses for detect in (False, True))
    assert plain == watched


def test_a_run_that_blows_up_is_stopped():
    with pytest.raises(NotFinite, match="^step 2, rank 0, "), np.errstate(all="ignore"):
        train(setup_of(adam=Adam(rate=1e200)), 5, detect=True)


# -- a rank that dies -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("crash_at", [(1, 0), (3, 2)])
def test_a_rank_dies_where_it_is_told_to_and_takes_all_with_it(crash_at):
    says = rf"rank {crash_at[1]} was told to die at step {crash_at[0]} \(--crash-at\)"
    with pytest.raises(Crash, match=says) as caught:
        train(setup_of(dp=2, pp=2), 4, crash_at=crash_at)
    assert isinstance(caught.value, Failure)


def test_after_a_crash_fewer_ranks_continue_the_same_loss_curve(tmp_path):
    setup = setup_of("moe", dp=2, pp=2, ep=2, zero=1)
    with pytest.raises(Crash):
        train(setup, 6, save=str(tmp_path), crash_at=(4, 3))
    later = train(setup_of("moe", tp=2), 6, resume=str(tmp_path))[0]
    assert later.first == 3
    assert later.losses == pytest.approx([step.loss for step in truth_of(setup, 6).steps[3:]], rel=1e-10)


# -- compared with one device: what is wrong is seen ------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["gradients", "parameters", "biases", "losses", "skipped", "unchanged"])
def test_a_difference_in_anything_is_seen_and_named(kind):
    setup = setup_of("biased", dp=2)
    truth, ranks = truth_of(setup), train(setup)
    assert differences(setup, truth, ranks)["passed"]
    name = "blocks.1.moe.bias" if kind == "biases" else "blocks.1.attention.wo"
    if kind in ("gradients", "parameters"):
        held = getattr(ranks[0], kind)
        held[name] = held[name][0], held[name][1] * (1 + 1e-9)
    elif kind == "biases":
        ranks[1].biases[name][0] += 1e-9
    elif kind == "losses":
        ranks[1].steps[1] = replace(ranks[1].steps[1], loss=ranks[1].steps[1].loss + 1e-8)
    elif kind == "skipped":
        ranks[1].steps[0] = replace(ranks[1].steps[0], skipped=True)
    else:
        truth = type("Same", (), vars(truth) | {"fresh": truth.fresh | {name: truth.parameters[name]}})
    found = differences(setup, truth, ranks)
    assert not found["passed"]
    expected = {"gradients": f"gradient of {name}", "parameters": name, "biases": "some router's bias"}
    assert found["worst"] == expected.get(kind, found["worst"])


def test_losses_that_are_not_numbers_never_pass():
    setup = setup_of(dp=2)
    ranks = train(setup)
    ranks[0].steps[0] = replace(ranks[0].steps[0], loss=float("nan"))
    assert not differences(setup, truth_of(setup), ranks)["passed"]


def test_gradients_are_those_of_the_first_step_that_is_not_skipped():
    setup = setup_of("gpt2", "float16", scale=replace(SCALE, value=2.0**24), dp=2)
    found, truth = compared(setup, 8), truth_of(setup, 8)
    assert truth.steps[0].skipped and found["passed"]
    assert all(np.isfinite(wide(g)).all() for g in truth.gradients.values())
