"""On a real GPU: `pytest -m gpu`. Elsewhere these did not run, and say why. With them run all tests that take `xp`."""

import pytest

from refimpl.arrays import usable_gpu
from refimpl.gpu import check

USABLE, WHY = usable_gpu()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not USABLE, reason=f"not run: {WHY}")]


@pytest.mark.parametrize("step", check.STEPS, ids=lambda step: step.name)
def test_step_of_gpu_check(step):
    status, words, _ = check.attempt(step)
    if status == check.NOT_RUN:
        pytest.skip(f"not run: {words}")
    assert status == check.PASSED, words
