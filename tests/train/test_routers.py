"""Auxiliary losses and routers' biases of a step: the same whatever the layout, agreed on in one small message."""

import numpy as np
import pytest
from trainer_models import on_ranks, setup_of, truth_of

from refimpl import Ledger
from refimpl.train.routers import BALANCE, LOADS

LAYOUTS = [{}, {"dp": 3}, {"cp": 2, "ep": 2}, {"tp": 2}, {"tp": 2, "ep": 2, "sequence_parallel": True, "expert_tp": 1},
           {"pp": 3}, {"dp": 2, "pp": 2, "tp": 2, "sequence_parallel": True, "micro_batch": 2}]

STEPS = 3                                        # an odd number: steps up and down by the same rate cannot cancel


@pytest.mark.parametrize("how", LAYOUTS, ids=str)
def test_biases_are_those_of_one_device_with_the_same_bits_on_all_ranks_of_a_stage(how):
    setup = setup_of("biased", **how)
    biases = on_ranks(setup, lambda trainer: (*(trainer.step() for _ in range(STEPS)), dict(trainer.buffers))[-1])
    truth = truth_of(setup, STEPS).biases
    assert {name for mine in biases for name in mine} == set(truth)
    for mine in biases:
        for name, bias in mine.items():
            np.testing.assert_array_equal(bias, truth[name])                 # steps of bias_rate: exact
    assert all(np.abs(bias).max() > 0 for bias in truth.values())


def test_what_is_agreed_on_is_small_and_only_where_it_is_needed():
    def sent(setup):
        log = Ledger()
        on_ranks(setup, lambda trainer: trainer.step(), ledger=log)
        return {phase: log.messages(rank=0, phase=phase) for phase in (BALANCE, LOADS)}

    assert sent(setup_of("llama", dp=2, tp=2)) == {BALANCE: 0, LOADS: 0}
    assert sent(setup_of("moe", dp=2, tp=2)) == {BALANCE: 0, LOADS: 0}
    assert sent(setup_of("moe", dp=2, tp=2, sequence_parallel=True)) == {BALANCE: 1, LOADS: 0}
    found = sent(setup_of("biased", dp=2, tp=2))
    assert found[BALANCE] == 0 < found[LOADS]
