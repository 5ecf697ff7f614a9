"""What the tests of pipelines share: all schedules of small sizes, and a small model, cut into stages and not."""

from pathlib import Path

import numpy as np
from backends import device_array

from refimpl.model import mlp
from refimpl.pipeline import FAMILIES, build, layers_of
from refimpl.pipeline.runner import execute
from refimpl.pipeline.stage import Layers

DATA = Path(__file__).parent / "data"
FEATURES, HIDDEN = 3, 4


def names_and_chunks():
    """[(name, chunks)] of every schedule, those that take any number of chunks with 1, 2 and 3."""
    return [(name, chunks) for name, family in FAMILIES.items()
            for chunks in ((1, 2, 3) if family.any_chunks else (family.chunks,))]


def every_schedule(stages=range(1, 6), microbatches=range(1, 10)):
    """Every schedule of these sizes, where there is one."""
    for name, chunks in names_and_chunks():
        for p in stages:
            for m in microbatches:
                try:
                    yield build(name, p, m, chunks)
                except ValueError:
                    continue


class Model:
    """Layers, more than stages and unevenly cut; micro-batches of 1, 2 or 3 rows; loss: mean of squares over all rows.

    schedule    says how many of each    xp    the array library
    """

    def __init__(self, schedule, xp=np, seed=0, scale=None):
        rng = np.random.default_rng(seed)
        self.schedule, self.xp = schedule, xp
        count = len(schedule.placement) + 2
        self.layers = [(str(number), mlp, {key: device_array(xp, value) for key, value in
                                           mlp.init(rng, FEATURES, HIDDEN).items()}) for number in range(count)]
        rows = [1 + k % 3 for k in range(schedule.microbatches)]
        self.inputs, self.targets = ([rng.standard_normal((n, FEATURES)) for n in rows] for _ in range(2))
        self.scale = 1 / sum(rows) if scale is None else scale

    def stages(self, rank):
        """{stage: its layers}, of one rank."""
        held = layers_of(len(self.layers), self.schedule.stages, self.schedule.chunks,
                         self.schedule.placement)[rank]
        return {stage: Layers(self.layers[part.start:part.stop])
                for stage, part in zip(self.schedule.stages_of(rank), held)}

    def loss(self, y, k):
        """Half the sum of squares, and its gradient."""
        difference = y - device_array(self.xp, self.targets[k])
        return (difference * difference).sum() / 2, difference

    def step(self, comm, **options):
        """One step as a rank: what `execute` returns."""
        inputs = [device_array(self.xp, x) for x in self.inputs]
        return execute(self.schedule, comm, self.stages(comm.rank), inputs, self.loss, scale=self.scale, **options)

    def truth(self):
        """(loss, {name: gradient}) of the whole batch at once, on one device, with NumPy."""
        x, kept = np.concatenate(self.inputs), []
        host = [{key: to_host(value) for key, value in parameters.items()} for _, _, parameters in self.layers]
        for parameters in host:
            x, saved = mlp.forward(x, parameters)
            kept.append(saved)
        difference = x - np.concatenate(self.targets)
        dy, gradients = difference * self.scale, {}
        for number in reversed(range(len(host))):
            dy, found = mlp.backward(dy, kept[number])
            gradients |= {f"{number}.{key}": value for key, value in found.items()}
        return (difference**2).sum() / 2 * self.scale, gradients


def to_host(x):
    """The array as a NumPy array."""
    return x.get() if hasattr(x, "get") else x


def assert_gradients(steps, expected, tolerance=1e-12):
    """The ranks' gradients together are the expected ones, each there once, norm-relative."""
    found = [(name, to_host(g)) for step in steps for named in step.gradients.values() for name, g in named.items()]
    assert sorted(name for name, _ in found) == sorted(expected)
    for name, g in found:
        assert g.dtype == expected[name].dtype
        assert np.linalg.norm(g - expected[name]) <= tolerance * np.linalg.norm(expected[name]), name
