"""The byte-level MLP: ranks and the single device agree step by step, learn, and send what the formula says."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from refimpl import Ledger, run
from refimpl.collectives import chunk_sizes
from refimpl.model import text
from refimpl.train import mlp

DATA = text.load()
SMALL = mlp.Setup(steps=4, batch=12, hidden=6, seed=1)


@pytest.fixture(scope="module")
def alone():
    return mlp.train_alone(SMALL, DATA)


@pytest.mark.parametrize("P", [1, 2, 3, 4, 7])                   # 7 ranks, 6 hidden features: one rank has none
def test_ranks_train_as_one_device_does_and_send_two_all_reduces_a_step(P, world, alone):
    log = Ledger()
    ranks = run(mlp.train_on_rank, P, SMALL, DATA, ledger=log)
    found = mlp.largest_differences(alone, ranks)
    assert max(found["first"].values()) <= 1e-12
    assert max(found["last"].values()) <= 1e-10
    assert mlp.copies_alike(ranks)
    for rank, history in enumerate(ranks):
        assert history.losses == ranks[0].losses
        assert history.weights[3]["w1"].shape == (8 * 256, chunk_sizes(6, P)[rank])
        for phase, nbytes in SMALL.bytes_per_step(P, rank).items():
            assert log.bytes_sent(rank=rank, phase=phase) == SMALL.steps * nbytes
            assert log.messages(rank=rank, phase=phase) == SMALL.steps * 2 * (P - 1)


def test_the_formula_of_the_bytes_by_hand():
    """4 ranks: each sends 2 * 3/4 of a batch of logits forward and of inputs backward, 8 bytes a number."""
    setup = mlp.Setup(batch=256)
    assert setup.bytes_per_step(4, 0) == {"forward": 256 * 256 * 8 * 3 // 2, "backward": 256 * 2048 * 8 * 3 // 2}
    assert setup.bytes_per_step(1, 0) == {"forward": 0, "backward": 0}


def test_a_step_subtracts_rate_times_the_gradient_from_every_parameter(alone):
    before, gradients, after = SMALL.parameters(), alone.gradients[0], alone.weights[0]
    assert before.keys() == gradients.keys() == after.keys() == {"w1", "b1", "w2", "b2"}
    for name in before:
        assert np.linalg.norm(gradients[name]) > 0
        assert_array_equal(after[name], before[name] - SMALL.rate * gradients[name])


def test_it_learns():
    """From the 256 equally likely bytes of fresh weights, ln 256 = 5.5 nats, to well below that."""
    losses = mlp.train_alone(mlp.Setup(steps=30, batch=64, hidden=32), DATA).losses
    assert 5 < losses[0] < 7 and np.mean(losses[-5:]) < losses[0] - 1.5


def test_a_run_is_the_same_run_every_time_and_another_seed_is_another(alone):
    again, other = mlp.train_alone(SMALL, DATA), mlp.train_alone(mlp.Setup(steps=4, batch=12, hidden=6, seed=2), DATA)
    assert again.losses == alone.losses != other.losses
    assert_array_equal(again.weights[3]["w2"], alone.weights[3]["w2"])


def test_every_step_is_reported_with_its_loss(alone):
    seen = []
    mlp.train_alone(SMALL, DATA, on_step=seen.append)
    assert seen == alone.losses and len(seen) == 4 and sorted(alone.weights) == sorted(alone.gradients) == [0, 3]


def test_one_step_is_the_first_and_the_last():
    setup = mlp.Setup(steps=1, batch=4, hidden=3)
    found = mlp.largest_differences(mlp.train_alone(setup, DATA), run(mlp.train_on_rank, 2, setup, DATA))
    assert found["first"] == found["last"] and max(found["first"].values()) <= 1e-12


# -- a difference is seen wherever it is ------------------------------------------------------------------------------

def spoil_loss(history):
    history.losses[2] *= 1.001


def spoil_gradient(history):
    history.gradients[3]["w2"][0, 0] += 1


def spoil_weight(history):
    history.weights[0]["b1"][...] = np.nan


@pytest.mark.parametrize("spoil, when, kind", [
    (spoil_loss, "last", "loss"), (spoil_gradient, "last", "gradients"), (spoil_weight, "first", "weights")])
def test_what_is_wrong_on_one_rank_shows_in_its_place_only(alone, spoil, when, kind):
    ranks = run(mlp.train_on_rank, 3, SMALL, DATA)
    spoil(ranks[1])
    found = mlp.largest_differences(alone, ranks)
    wrong = {(w, k) for w, kinds in found.items() for k, value in kinds.items() if value > 1e-10}
    assert wrong == {(when, kind)}


def test_copies_that_differ_in_one_bit_are_found():
    ranks = run(mlp.train_on_rank, 2, SMALL, DATA)
    assert mlp.copies_alike(ranks)
    ranks[1].weights[3]["b2"][7] = np.nextafter(ranks[1].weights[3]["b2"][7], 1)
    assert not mlp.copies_alike(ranks)


@pytest.mark.parametrize("sizes, says", [
    ({"steps": 0}, "steps=0: must be 1 or more"), ({"batch": -1}, "batch=-1: must be 1 or more"),
    ({"context": 0}, "context=0: must be 1 or more"), ({"hidden": 0}, "hidden=0: must be 1 or more"),
    ({"seed": -1}, "seed=-1: must be 0 or more")])
def test_sizes_that_mean_nothing_are_refused(sizes, says):
    with pytest.raises(ValueError, match=says):
        mlp.Setup(**sizes)
